"""A network of many small layers: on a fast GPU the host cannot start its kernels as quickly as they are done."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mix, self.drop = nn.BatchNorm1d(width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(torch.relu(self.mix(self.norm(x))))


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = torch.randn(256, 32)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1) > 0), batch_size=16)
    model = nn.Sequential(*(Block(32) for _ in range(4)), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.long().to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
