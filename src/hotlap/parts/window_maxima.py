"""Max pooling of images in channels_last whose windows overlap, with a backward that looks at each window as it passes:
the compiler's own looks at every window again for every pixel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

MOST = 11  # of a window's side: places in it are counted in 8 bits


def pooled(x: Tensor, side: int, stride: int, padding: int) -> Tensor:
    """What `max_pool2d(x, side, stride, padding)` gives, of N, C, H, W in channels_last."""
    out: Tensor = maxima(x, side, stride, padding)[0]
    return out


@torch.library.custom_op("hotlap::window_maxima", mutates_args=())
def maxima(x: Tensor, side: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    """The largest of each window, and its place in the window."""
    out, place = (_like(x, _pooled_size(x, side, stride, padding), dtype) for dtype in (x.dtype, torch.int8))
    if x.is_cuda:
        from hotlap.parts.window_kernels import find

        find(x.contiguous(memory_format=torch.channels_last), out, place, side, stride, padding)
        return out, place
    found, at = max_pool2d(x, side, stride, padding, return_indices=True)
    row, column = at // x.shape[3], at % x.shape[3]
    down, across = (torch.arange(size) * stride - padding for size in out.shape[2:])
    place.copy_((row - down[:, None]) * side + column - across)
    return out.copy_(found), place


@torch.library.custom_op("hotlap::window_maxima_backward", mutates_args=())
def given_back(grad: Tensor, place: Tensor, high: int, wide: int, side: int, stride: int, padding: int) -> Tensor:
    grad = grad.contiguous(memory_format=torch.channels_last)
    out = _like(grad, (high, wide), grad.dtype)
    if grad.is_cuda:
        from hotlap.parts.window_kernels import give_back

        give_back(grad, place, out, side, stride, padding)
        return out
    at = pixels_at(place, wide, side, stride, padding)
    flat = grad.new_zeros(*grad.shape[:2], high * wide, dtype=torch.promote_types(grad.dtype, torch.float32))
    flat.scatter_add_(2, at.flatten(2), grad.flatten(2).to(flat.dtype))
    return out.copy_(flat.view(out.shape))


def pixels_at(place: Tensor, wide: int, side: int, stride: int, padding: int) -> Tensor:
    """Which pixel of its image each place is, row after row."""
    down, across = (torch.arange(size, device=place.device) * stride - padding for size in place.shape[2:])
    return (down[:, None] + place // side) * wide + across + place % side


def _pooled_size(x: Tensor, side: int, stride: int, padding: int) -> tuple[int, int]:
    high, wide = ((size + 2 * padding - side) // stride + 1 for size in x.shape[2:])
    return high, wide


def _like(x: Tensor, size: tuple[int, int], dtype: torch.dtype) -> Tensor:
    shape = (*x.shape[:2], *size)
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)


@maxima.register_fake
def _(x: Tensor, side: int, stride: int, padding: int) -> tuple[Tensor, Tensor]:
    size = _pooled_size(x, side, stride, padding)
    return _like(x, size, x.dtype), _like(x, size, torch.int8)


@given_back.register_fake
def _(grad: Tensor, place: Tensor, high: int, wide: int, side: int, stride: int, padding: int) -> Tensor:
    return _like(grad, (high, wide), grad.dtype)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.window = inputs
    ctx.size = x.shape[2:]
    ctx.save_for_backward(output[1])
    ctx.mark_non_differentiable(output[1])


def _backward(ctx: Any, grad: Tensor, _: Any) -> Any:
    return given_back(grad, *ctx.saved_tensors, *ctx.size, *ctx.window), None, None, None


maxima.register_autograd(_backward, setup_context=_keep)
