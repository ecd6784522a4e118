"""A small network of linear layers on made-up data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


def train_epoch(model, loader, criterion, optimizer, device):
    model.train()
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        output = model(inputs)
        # the loss of this batch
        loss = criterion(
            output,
            labels,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs, labels = torch.randn(192, 16), torch.randint(0, 4, (192,))
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        train_epoch(model, loader, nn.CrossEntropyLoss(), optimizer, device)


if __name__ == "__main__":
    main()
