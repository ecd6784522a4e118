"""The first convolution of an image network, which strides over few channels, as one that does not stride over more of
them: each block of pixels becomes the channels of one. The same products are added up, none of them twice, and layouts
of channels that matrix units can read are met."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

_ALIGNED = 8  # channels that are read at once


def convolve_blocks(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    """What `conv2d(x, weight, bias, stride, padding)` gives, for square windows of a stride's size or larger."""
    return conv2d(*blocked(x, weight, stride, padding), bias)


def blocked(x: Tensor, weight: Tensor, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """Images and weights of the convolution that does not stride."""
    high, wide = x.shape[2:]
    side = weight.shape[2]
    before = -padding % stride  # zeros, so that windows begin where blocks do
    reach = -(-(side + before) // stride)  # blocks that a window spans
    made = [(size + 2 * padding - side) // stride + 1 for size in (high, wide)]
    needed = [(count - 1 + reach) * stride for count in made]
    first = padding + before
    x = pad(x, (first, needed[1] - wide - first, first, needed[0] - high - first))
    after = reach * stride - side - before
    x, weight = _blocks(x, stride), _blocks(pad(weight, (before, after, before, after)), stride)
    more = -x.shape[1] % _ALIGNED
    if more:
        x, weight = (pad(one, (0, 0, 0, 0, 0, more)) for one in (x, weight))
    return x.contiguous(memory_format=torch.channels_last), weight.contiguous(memory_format=torch.channels_last)


def _blocks(x: Tensor, side: int) -> Tensor:
    number, channels, high, wide = x.shape
    parted = x.reshape(number, channels, high // side, side, wide // side, side)
    return parted.permute(0, 3, 5, 1, 2, 4).reshape(number, channels * side * side, high // side, wide // side)
