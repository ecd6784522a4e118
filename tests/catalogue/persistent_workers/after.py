"""Three short epochs with a validation pass each; all workers are started anew for every one of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time = torch.linspace(0, 1, 64)
        frequency = index % 8 + 1
        return torch.sin(6.2832 * frequency * time), torch.tensor(frequency - 1)


def train(model, loader, optimizer, criterion):
    model.train()
    for waves, labels in loader:
        optimizer.zero_grad()
        criterion(model(waves), labels).backward()
        optimizer.step()


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(waves).argmax(dim=1) == labels).sum() for waves, labels in loader)
    return right / len(loader.dataset)


def main():
    torch.manual_seed(0)
    settings = {"batch_size": 16, "num_workers": 2, "persistent_workers": True}
    train_loader = DataLoader(Waves(192), shuffle=True, **settings)
    test_loader = DataLoader(
        Waves(32),
        batch_size=16,
        num_workers=1,
        persistent_workers=True,
    )
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        train(model, train_loader, optimizer, nn.CrossEntropyLoss())
        for waves, _ in test_loader:
            model(waves)
        print(f"epoch {epoch}: accuracy {accuracy(model, test_loader):.2f}")


if __name__ == "__main__":
    main()
