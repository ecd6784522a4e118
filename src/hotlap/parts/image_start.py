"""The start of an image network as one: a first convolution, batch norm in training, relu, and max pooling by windows
that overlap. On the way there nothing is written between convolution and windows: pixels are normed where windows look
at them. On the way back sums for the norm are taken over what windows chose, as nothing else is given back to; and the
convolution's gradient is made, from what came back to pixels, where that of its weights reads it. Images need none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d

from hotlap.parts.image_stem import blocked
from hotlap.parts.summed_norm import Norm, for_affine, has_kernels, known_of, shares_of, wide
from hotlap.parts.window_maxima import given_back, maxima, pixels_at

MOST = 5  # of a pooling window's side: it is written out
_MOST_CHANNELS, _MOST_COLUMNS = 128, 512  # of weights whose gradient is worth a kernel of ours
_LOW = (torch.bfloat16, torch.float16)
_LASTING = torch.channels_last


def image_start(
    convolution: Sequence[Any], norm: Sequence[Any], window: Sequence[int], is_read_twice: bool = False
) -> tuple[Tensor, ...]:
    """What these give one after the other: `convolve_blocks(*convolution)`, `batch_norm(x, *norm, is_rectified=True)`
    and `pooled(x, *window)`. For two readers twice the same tensor: what they give back is then added up on the way."""
    image, weight, bias, stride, padding = convolution
    x, weight = blocked(image, weight, stride, padding)
    by = Norm(*norm)
    with torch.no_grad():
        y, sums = _with_sums(x, weight, bias)
    made: tuple[Tensor, ...] = _Start.apply(
        x, weight, bias, y, by.weight, by.bias, *known_of(y, by, sums), tuple(window), is_read_twice
    )
    return made


def _with_sums(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Any]:
    if _is_ours(x):
        from hotlap.parts.start_convolution_kernels import is_fit

        if is_fit(x, weight, bias):
            y, *sums = _first_convolution(x, weight, bias)
            return y, sums
    return conv2d(x, weight, bias), None


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, norm_weight: Tensor | None,
        norm_bias: Tensor | None, mean: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor,
        window: tuple[int, int, int], is_read_twice: bool,
    ) -> Any:  # fmt: skip
        if _is_ours(y):
            out, place, kept = _found(y, mean, scale, shift, *window)
        else:
            level = ((y.to(mean.dtype) - wide(mean)) * wide(scale) + wide(shift)).relu().to(y.dtype)
            out, place = maxima(level, *window)
            kept = y.flatten(2).gather(2, pixels_at(place, y.shape[3], *window).flatten(2)).view(place.shape)
        known = (mean, inverse, scale, shift)
        ctx.save_for_backward(x, weight, bias, y, place, kept, norm_weight, norm_bias, *known)
        ctx.window = window
        ctx.set_materialize_grads(False)
        return (out, out.view_as(out)) if is_read_twice else (out,)

    @staticmethod
    @once_differentiable  # what is kept of the way there has no way back of its own
    def backward(ctx: Any, grad: Tensor | None, twin: Tensor | None = None) -> Any:
        x, weight, bias, y, place, kept, norm_weight, norm_bias, mean, inverse, scale, shift = ctx.saved_tensors
        if grad is None:
            grad, twin = twin, None
        if grad is None:
            return (None,) * 12
        if _is_ours(y):
            passed, sums = _passed(grad, twin, kept, mean, scale, shift)
        else:
            apart = kept.to(mean.dtype) - wide(mean)
            level = (apart * wide(scale) + wide(shift)).to(y.dtype)
            passed = torch.where(level <= 0.0, 0.0, grad if twin is None else grad + twin)
            sums = torch.stack([one.sum((0, 2, 3)) for one in (passed.to(mean.dtype), passed * apart)])
        of_bias, of_weight = sums[0], sums[1] * inverse
        by = (mean, *shares_of(of_bias, of_weight, y, inverse), scale)
        made = _for_convolution(x, weight, bias, y, passed, place, by, ctx.window)
        return None, *made, None, *for_affine(of_weight, of_bias, norm_weight, norm_bias), *(None,) * 6


def _for_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, passed: Tensor, place: Tensor,
    by: tuple[Tensor, Tensor, Tensor, Tensor], window: tuple[int, int, int],
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Gradients of its weights and biases, from what passed back to the pixels that windows chose."""
    channels, inputs, reach, _ = weight.shape
    if _is_ours(y) and channels <= _MOST_CHANNELS and reach * reach * inputs <= _MOST_COLUMNS:
        given = given_back(passed, place, *y.shape[2:], *window)
        for_weight, for_bias = _weighed(y, given, x, torch.stack(by), bias is not None)
        for_weight = for_weight.permute(0, 3, 1, 2).to(weight.dtype)
        return for_weight, None if bias is None else for_bias.to(bias.dtype)
    mean, along, level, scale = (wide(one) for one in by)
    given = given_back(passed, place, *y.shape[2:], *window).to(mean.dtype)
    grad = ((given - (y.to(mean.dtype) - mean) * along - level) * scale).to(y.dtype)
    grad = grad.contiguous(memory_format=_LASTING)
    for_weight = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    return for_weight, None if bias is None else grad.sum((0, 2, 3)).to(bias.dtype)


def _is_ours(y: Tensor) -> bool:
    return has_kernels(y) and y.dtype in _LOW


@torch.library.custom_op("hotlap::image_start_convolution", mutates_args=())
def _first_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """What it makes, and the fields of `Sums`."""
    from hotlap.parts.start_convolution_kernels import convolved

    x, weight = (one.contiguous(memory_format=_LASTING) for one in (x, weight))
    return convolved(x, weight, None if bias is None else bias.contiguous())


@torch.library.custom_op("hotlap::image_start_maxima", mutates_args=())
def _found(
    y: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, side: int, stride: int, padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The largest of each window of what is normed and rectified, its place, and the pixel there as it was."""
    from hotlap.parts.image_start_kernels import find

    out, place, kept = _windows(y, side, stride, padding)
    y, *by = y.contiguous(memory_format=_LASTING), *(one.contiguous() for one in (mean, scale, shift))
    find(y, *by, side, stride, padding, out, place, kept)
    return out, place, kept


@torch.library.custom_op("hotlap::image_start_passed", mutates_args=())
def _passed(
    grad: Tensor, twin: Tensor | None, kept: Tensor, mean: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    from hotlap.parts.image_start_kernels import passed_sums

    grad, kept = (one.contiguous(memory_format=_LASTING) for one in (grad, kept))
    twin = None if twin is None else twin.contiguous(memory_format=_LASTING)
    passed = torch.empty_like(kept)
    return passed, passed_sums(grad, twin, kept, mean.contiguous(), scale.contiguous(), shift.contiguous(), passed)


@torch.library.custom_op("hotlap::image_start_weights", mutates_args=())
def _weighed(y: Tensor, given: Tensor, x: Tensor, by: Tensor, has_bias: bool) -> tuple[Tensor, Tensor]:
    """For weights, channels of their window last, and biases."""
    from hotlap.parts.image_start_kernels import weight_grads

    y, given, x = (one.contiguous(memory_format=_LASTING) for one in (y, given, x))
    mean, along, level, scale = by.contiguous().unbind()
    return weight_grads(y, given, x, (mean, along, level, scale), has_bias)


def _windows(y: Tensor, side: int, stride: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    high, across = ((size + 2 * padding - side) // stride + 1 for size in y.shape[2:])
    shape = (*y.shape[:2], high, across)
    types = (y.dtype, torch.int8, y.dtype)
    out, place, kept = (torch.empty(shape, dtype=one, device=y.device, memory_format=_LASTING) for one in types)
    return out, place, kept


@_first_convolution.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    from hotlap.parts.start_convolution_kernels import results

    return results(x, weight)


@_found.register_fake
def _(
    y: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, side: int, stride: int, padding: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _windows(y, side, stride, padding)


@_passed.register_fake
def _(
    grad: Tensor, twin: Tensor | None, kept: Tensor, mean: Tensor, scale: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    passed = torch.empty_like(kept, memory_format=_LASTING)
    return passed, mean.new_empty(2, kept.shape[1])


@_weighed.register_fake
def _(y: Tensor, given: Tensor, x: Tensor, by: Tensor, has_bias: bool) -> tuple[Tensor, Tensor]:
    reach = x.shape[2] - y.shape[2] + 1
    return by.new_empty(y.shape[1], reach, reach, x.shape[1]), by.new_empty(y.shape[1])
