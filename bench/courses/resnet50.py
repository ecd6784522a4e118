"""Train ResNet-50 on images that already lie on the device."""

import argparse

import torch
from torch import nn


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, blocks, classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        channels = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for block in range(count):
                layers.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = 4 * width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        return self.fc(self.pool(self.features(x)).flatten(1))


def network(small=False):
    """torchvision's ResNet-50 where it is installed, else the same layers; one block a stage when small."""
    if small:
        return ResNet([1, 1, 1, 1])
    try:
        from torchvision.models import resnet50
    except ImportError:
        return ResNet([3, 4, 6, 3])
    return resnet50()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--small", action="store_true", help="a smaller network on smaller images")
    args = parser.parse_args()
    if args.small:
        args.batch_size, args.image_size = 4, 32

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = network(args.small).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    # noise alone looks the same all over to a network that averages: what it then learns from is rounding
    shapes = nn.functional.interpolate(torch.randn(args.batch_size, 3, 7, 7, device=device), size=args.image_size)
    images = shapes + 0.1 * torch.randn_like(shapes)
    labels = torch.randint(0, 1000, (args.batch_size,), device=device)

    model.train()
    for step in range(args.steps):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
