"""Convolutions and linear layers whose bias the batch norm after them takes away."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


def block(channels_in, channels_out):
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def tail(widths):
    layers = []
    for width in widths:
        layers += [nn.Conv2d(width, width, 1, bias=False), nn.BatchNorm2d(width)]
    layers.append(nn.Conv2d(widths[-1], 8, 3, bias=False))
    layers.append(nn.BatchNorm2d(8))
    return nn.Sequential(*layers)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = block(3, 8)
        self.conv1 = nn.Conv2d(8, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(
            8,
            8,
            kernel_size=3,
            bias=False,
        )
        self.bn2 = nn.BatchNorm2d(8)
        self.tail = tail([8])
        self.up = nn.Sequential(OrderedDict([("conv", nn.ConvTranspose2d(8, 4, 2, bias=False)), ("norm", nn.BatchNorm2d(4))]))
        self.hidden = nn.Linear(4, 16, bias=False)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 2)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(self.first(x))))
        x = self.conv2(x)
        x = F.relu(self.bn2(x))
        x = self.up(self.tail(x)).mean(dim=(2, 3))
        x = self.hidden(x)
        x = self.norm(x)
        return self.last(F.relu(x))


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(torch.randn(4, 3, 12, 12)), torch.randint(2, (4,)))
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
