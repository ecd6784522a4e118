"""A small convolutional network on made-up images."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = torch.relu(self.second(x))
        return self.head(x.mean(dim=(2, 3)))


def train(model, device, loader, optimizer):
    model.train()
    criterion = nn.CrossEntropyLoss()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device, non_blocking=True)
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.randn(128, 3, 16, 16)
    labels = torch.randint(0, 4, (128,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        train(model, device, loader, optimizer)


if __name__ == "__main__":
    main()
