"""A small network on made-up data, trained with Adam."""

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def make_data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 20, generator=generator)
    labels = (inputs[:, :10].sum(dim=1) > 0).long()
    return TensorDataset(inputs, labels)


def polish(model, loader, device):
    """A few plain steps at the end, written by hand."""
    lr = 1e-3
    for inputs, labels in loader:
        model.zero_grad()
        F.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.data.add_(p.grad, alpha=-lr)
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(make_data(), batch_size=16, shuffle=True)
    model = nn.Sequential(
        nn.Linear(20, 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, 2),
    ).to(device)
    optimizer = optim.Adam(
        model.parameters(),
        lr=1e-3,
        weight_decay=1e-4,  # a little
    )
    for epoch in range(2):
        total = 0.0
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.4f}")
    polish(model, loader, device)


if __name__ == "__main__":
    main()
