"""A small network that is tested after every epoch, batch by batch, as long as it is trained."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = torch.randn(512, 32)
    data = TensorDataset(inputs, (inputs.sum(dim=1) > 0).long())
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(6)), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for x, y in DataLoader(data, batch_size=32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in DataLoader(data, batch_size=32):
                right += (model(x.to(device)).argmax(dim=1) == y.to(device)).sum().item()
        print(f"epoch {epoch}: loss {loss.item():.4f}, {right} of {len(data)} right")


if __name__ == "__main__":
    main()
