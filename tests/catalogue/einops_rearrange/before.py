"""Windows of an image, as a hierarchical vision transformer cuts them, and channels that are shuffled."""

import torch
from torch import nn


def windows(x, window_size):
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    # (number of windows * B, window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)


def patches(images, size):
    batch, channels, height, width = images.size()
    return (
        images.reshape(batch, channels, height // size, size, width // size, size)
        .permute(0, 2, 4, 1, 3, 5)
        .reshape(batch, (height // size) * (width // size), channels * size * size)
    )


class Shuffled(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        n, c, h, w = x.shape
        return x.view(n, self.groups, c // self.groups, h, w).transpose(1, 2).reshape(n, c, h, w)


x = torch.arange(2 * 4 * 8 * 6).reshape(2, 4, 8, 6)
print(windows(x, 2).shape, patches(x, 2).shape, Shuffled(2)(x).flatten()[:12])
