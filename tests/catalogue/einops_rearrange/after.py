"""Windows of an image, as a hierarchical vision transformer cuts them, and channels that are shuffled."""

import torch
from torch import nn
from einops import rearrange


def windows(x, window_size):
    B, H, W, C = x.shape
    # (number of windows * B, window_size, window_size, C)
    return rearrange(x, "b (h p1) (w p2) c -> (b h w) p1 p2 c", p1=window_size, p2=window_size)


def patches(images, size):
    batch, channels, height, width = images.size()
    return (
        rearrange(images, "batch channels (height p1) (width p2) -> batch (height width) (channels p1 p2)", p1=size, p2=size)
    )


class Shuffled(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.groups = groups

    def forward(self, x):
        n, c, h, w = x.shape
        return rearrange(x, "n (p1 c) h w -> n (c p1) h w", p1=self.groups)


x = torch.arange(2 * 4 * 8 * 6).reshape(2, 4, 8, 6)
print(windows(x, 2).shape, patches(x, 2).shape, Shuffled(2)(x).flatten()[:12])
