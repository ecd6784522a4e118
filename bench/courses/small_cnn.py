"""Train a small convolutional network on pictures of 32x32 that already lie on the device."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self, width, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.conv3 = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.pool = nn.MaxPool2d(2)
        self.fc1 = nn.Linear(4 * width * 16, 256)
        self.fc2 = nn.Linear(256, classes)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        x = self.pool(F.relu(self.bn3(self.conv3(x))))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc2(self.dropout(x))


def train(model, images, labels, optimizer, criterion, batch_size):
    model.train()
    running_loss = 0.0
    order = torch.randperm(len(images), device=images.device)
    for first in range(0, len(images), batch_size):
        index = order[first : first + batch_size]
        optimizer.zero_grad()
        loss = criterion(model(images[index]), labels[index])
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    return running_loss / (len(images) // batch_size)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--images", type=int, default=12_800)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--small", action="store_true", help="a narrower network on fewer pictures")
    args = parser.parse_args()
    if args.small:
        args.batch_size, args.images, args.width = 16, 320, 8

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Net(args.width).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    images = torch.randn(args.images, 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (args.images,), device=device)

    for epoch in range(args.epochs):
        loss = train(model, images, labels, optimizer, criterion, args.batch_size)
        print(f"epoch {epoch}: loss {loss:.4f}")


if __name__ == "__main__":
    main()
