"""Images with the channels innermost, for a network whose weights keep the layout they have: scripts flatten those,
write them to files, and go on from what others have written.

A layer takes on the layout of its input, and hands it on. `Entry` stands before one where images come back from another
shape within a network. What leaves it, results and gradients, is laid out as the script expects it (`usual`)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

_LOOKED_AT = 8  # calls of a layer whose input needs nothing


def nhwc(value: Any) -> Any:
    """An image; anything else is left as it is."""
    if not isinstance(value, torch.Tensor) or value.dim() != 4 or not _has_layout(value):
        return value
    if not value.is_contiguous(memory_format=torch.channels_last) or value.requires_grad:
        return value.to(memory_format=torch.channels_last)
    _, channels, height, width = value.shape
    strides = (channels * height * width, 1, width * channels, channels)
    if value.stride() == strides:
        return value
    return value.as_strided(value.shape, strides)  # one channel lies in either layout, and is taken for the usual one


def is_nhwc(value: Any) -> bool:
    """And surely so: one channel, or one pixel, lies in either layout."""
    is_image = isinstance(value, torch.Tensor) and value.dim() == 4 and _has_layout(value)
    return is_image and not value.is_contiguous() and value.is_contiguous(memory_format=torch.channels_last)


def usual(tensor: torch.Tensor) -> torch.Tensor:
    """As a network gives it that was given images in the usual layout: a script may flatten it by `view`. Also what is
    no image any more, but still has that order, as the positions of one that was flattened."""
    if tensor.dim() < 3 or not _has_layout(tensor):
        return tensor
    return tensor if tensor.is_contiguous() or 0 in tensor.stride() else tensor.contiguous()


def _has_layout(tensor: torch.Tensor) -> bool:
    """Within a transform of torch.func, as `vmap`, nobody sees how a tensor lies in memory."""
    is_plain = tensor.is_floating_point() and tensor.layout is torch.strided
    return is_plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def written(given: Any, original: Any) -> bool:
    """Whether something was put into a copy that a network got in place of what the script gave it."""
    if given is original or not isinstance(given, torch.Tensor) or given.is_inference():
        return False
    return given._version > 0 and given.data_ptr() != original.data_ptr()


class Entry:
    """Round the calls of one layer, which it leaves when the input was right a few times in a row from the first on."""

    def __init__(self, leave: Callable[[Any, Entry], None]) -> None:
        self._leave, self._idle = leave, 0

    def __call__(self, original: Callable[..., Any], layer: Any, args: Any, kwargs: Any) -> Any:
        given = tuple(map(nhwc, args))
        if not all(map(operator.is_, given, args)):
            self._idle = -1
        elif self._idle >= 0:
            self._idle += 1
        out = original(layer, given, kwargs)
        if self._idle > _LOOKED_AT:
            self._leave(layer, self)
        return out
