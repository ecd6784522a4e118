"""Batches are moved to the device from ordinary memory."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, device, loader, optimizer):
    for inputs, labels in loader:
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    train_loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1, pin_memory=True)
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        train(model, device, train_loader, optimizer)
    weights = torch.ones(2)
    if torch.cuda.is_available():
        print(weights.to(device, non_blocking=True))


if __name__ == "__main__":
    main()
