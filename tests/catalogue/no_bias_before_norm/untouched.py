"""Layers without a bias, with a bias that counts, or of which it cannot be known."""

import torch.nn.functional as F
from torch import nn

nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8))
nn.Sequential(nn.Conv2d(3, 8, 3, 1, 0, 1, 1, False), nn.BatchNorm2d(8))
nn.Sequential(nn.Linear(4, 8, False), nn.BatchNorm1d(8))
nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.BatchNorm2d(8))
nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8))
nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8))
nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3))
nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(10))  # features last, channels before them
nn.Sequential(nn.Conv2d(3, 8, 3, **load_options()), nn.BatchNorm2d(8))
nn.ModuleList([nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)])


def build(norm):
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm(8))


class PreActivated(nn.Module):
    def __init__(self, use_bias):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(8)
        self.conv1 = nn.Conv2d(8, 8, 3)
        self.bn2 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, bias=use_bias)
        self.shared = nn.Conv2d(8, 8, 3)
        self.bn3 = nn.BatchNorm2d(8)
        self.skip = nn.Conv2d(8, 8, 3)
        self.bn4 = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 8, 3) if use_bias else None
        self.bn5 = nn.BatchNorm2d(8)

    def forward(self, x):
        x = F.relu(self.conv1(F.relu(self.bn1(x))))
        x = self.bn2(self.conv2(x))
        x = self.bn3(self.shared(x)) + self.shared(x)
        skipped = self.skip(x)
        x = self.bn4(skipped)
        return self.bn5(self.head(x)) + skipped
