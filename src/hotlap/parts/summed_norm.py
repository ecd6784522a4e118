"""Batch norm in training by two plain sums, of deviations and of their squares, made nearly as fast as memory is read:
a compiler's own way to variances divides once for every element, which takes longer than reading them. Relu belongs to
it, so that no pixel is read more often than needed on the way back.

Deviations are from the first pixel of each channel, which is as far from the mean as any: sums of squares lose nothing
then that a bf16 pixel had."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_OVER = (0, 2, 3)


class Norm(NamedTuple):
    """By what each channel is normed."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    momentum: float
    eps: float


class Known(NamedTuple):
    """What is known of each channel then: of a weight and a bias that it has none of, what they would be."""

    mean: Tensor
    inverse: Tensor  # what makes its variance one
    scale: Tensor  # what deviations are multiplied by,
    shift: Tensor  # and what is added then


class Sums(NamedTuple):
    """Of deviations and of their squares, over some rows each, where whoever made the pixels made these as well."""

    sums: Tensor
    start: Tensor  # from what they deviate


def batch_norm(x: Tensor, *norm: Any, is_rectified: bool = False, is_whole: bool = False, sums: Any = None) -> Tensor:
    """What torch's own gives in training, of N, C, H, W and the fields of `Norm`, with relu after it or without;
    running statistics are moved on where they lie. `is_whole`: whoever reads it reads it from memory in any case, as
    convolutions do, so that nothing is lost if no compiler makes it on the way."""
    by = Norm(*norm)
    out: Tensor = _Norm.apply(x, by.weight, by.bias, *known_of(x, by, sums), is_rectified, is_whole)
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, scale: Tensor,
        shift: Tensor, is_rectified: bool, is_whole: bool,
    ) -> Any:  # fmt: skip
        ctx.is_rectified, ctx.is_whole = is_rectified, is_rectified and is_whole and has_kernels(x)
        ctx.save_for_backward(x, weight, bias, mean, inverse, scale, shift)
        if ctx.is_whole:
            from hotlap.parts.pixel_kernels import normed

            return as_images(normed(as_rows(x), mean, scale, shift), x)
        out = (x.to(mean.dtype) - wide(mean)) * wide(scale) + wide(shift)
        return (out.relu() if is_rectified else out).to(x.dtype)

    @staticmethod
    @once_differentiable  # what is kept of the way there has no way back of its own
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, weight, bias, mean, inverse, scale, shift = ctx.saved_tensors
        if has_kernels(x):
            from hotlap.parts.norm_kernels import grad_sums

            by = (mean, inverse, scale, shift)
            sums, along, level = grad_sums(as_rows(grad), as_rows(x), *by, ctx.is_rectified)
        if ctx.is_whole:
            from hotlap.parts.pixel_kernels import given_back

            for_x = as_images(given_back(as_rows(grad), as_rows(x), mean, scale, shift, along, level, True), x)
        else:
            passed, apart = grad.to(mean.dtype), x.to(mean.dtype) - wide(mean)
            if ctx.is_rectified:  # told again from the pixel, which is read anyway
                passed = torch.where(apart * wide(scale) + wide(shift) <= 0.0, 0.0, passed)
            if not has_kernels(x):
                sums = _plain_sums(passed, apart * wide(inverse))
                along, level = shares_of(*sums, x, inverse)
            for_x = ((passed - apart * wide(along) - wide(level)) * wide(scale)).to(x.dtype)
        return for_x, *for_affine(sums[1], sums[0], weight, bias), *(None,) * 6


def known_of(x: Tensor, by: Norm, sums: Any = None) -> Known:
    """Of pixels, or by sums over them that are there already; moves running statistics on."""
    with torch.no_grad():
        x, count = x.detach(), x.numel() // x.shape[1]
        weight, bias = (None if one is None else one.detach().contiguous() for one in (by.weight, by.bias))
        running = [_side_by_side(one) for one in (by.running_mean, by.running_var)]
        given = (weight, *running, by.momentum, by.eps)
        if not has_kernels(x):
            mean, inverse, scale = _plainly_known(x, by, sums)
        elif sums is None:
            from hotlap.parts.norm_kernels import statistics

            mean, inverse, scale = statistics(as_rows(x), *given)
        else:
            from hotlap.parts.norm_kernels import statistics_of_sums

            mean, inverse, scale = statistics_of_sums(*sums, count, *given)
        for one, moved in zip((by.running_mean, by.running_var), running, strict=True):
            if one is not None and moved is not one and has_kernels(x):
                one.copy_(moved)
        shift = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype)
        return Known(mean, inverse, scale, shift)


def _side_by_side(channels: Tensor | None) -> Tensor | None:
    """As kernels read and write them."""
    return channels if channels is None or channels.is_contiguous() else channels.contiguous()


def _plainly_known(x: Tensor, by: Norm, sums: Any) -> tuple[Tensor, Tensor, Tensor]:
    count = x.numel() // x.shape[1]
    if sums is None:
        start = x[0, :, 0, 0].to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        apart = x.to(start.dtype) - wide(start)
        total = _plain_sums(apart, apart)
    else:
        given = Sums(*sums)
        total, start = given.sums.sum(0), given.start
    middle, squares = total / count
    mean, var = middle + start, (squares - middle * middle).clamp_min(0.0)
    inverse = torch.rsqrt(var + by.eps)
    if by.running_mean is not None and by.running_var is not None:
        by.running_mean.lerp_(mean.to(by.running_mean.dtype), by.momentum)
        by.running_var.lerp_((var * (count / (count - 1))).to(by.running_var.dtype), by.momentum)
    return mean, inverse, inverse if by.weight is None else inverse * by.weight


def _plain_sums(one: Tensor, apart: Tensor) -> Tensor:
    return torch.stack([one.sum(_OVER), (one * apart).sum(_OVER)])


def shares_of(of_bias: Tensor, of_weight: Tensor, x: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """What of a gradient goes along with deviations, and what all pixels of a channel share, by its sums."""
    count = x.numel() // x.shape[1]
    return of_weight * inverse / count, of_bias / count


def for_affine(
    of_weight: Tensor, of_bias: Tensor, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    for_weight = None if weight is None else of_weight.to(weight.dtype)
    return for_weight, None if bias is None else of_bias.to(bias.dtype)


def has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype is not torch.float64 and find_spec("triton") is not None


def as_rows(x: Tensor) -> Tensor:
    """Of channels, one a pixel: as they lie in channels_last, unless it is a part of something larger."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def as_images(rows: Tensor, like: Tensor) -> Tensor:
    """Rows of as many pixels as those images have."""
    return rows.view(like.shape[0], *like.shape[2:], rows.shape[1]).permute(0, 3, 1, 2)


def wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)
