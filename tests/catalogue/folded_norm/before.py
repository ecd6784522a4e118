"""Looks at images with a network that was trained elsewhere."""

import torch
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3)))


def main():
    torch.manual_seed(0)
    model = Network()
    model.eval()
    found = []
    with torch.no_grad():
        for images in torch.randn(8, 4, 3, 16, 16):
            found.append(model(images).argmax(dim=1))
    print("classes", torch.cat(found).bincount(minlength=2).sum().item())


if __name__ == "__main__":
    main()
