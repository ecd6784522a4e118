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

    @property
    def affine(self) -> tuple[Tensor | None, Tensor | None, float]:
        return self.weight, self.bias, self.eps


def batch_norm(x: Tensor, *norm: Any, is_rectified: bool = False, is_whole: bool = False) -> Tensor:
    """What torch's own gives in training, of N, C, H, W and the fields of `Norm`, with relu after it or without;
    running statistics are moved on where they lie. `is_whole`: whoever reads it reads it from memory in any case, as
    convolutions do, so that nothing is lost if no compiler makes it on the way."""
    by = Norm(*norm)
    out, mean, var = _Norm.apply(x, *by.affine, is_rectified, is_whole)
    move_on(by, mean, var, x.numel() // x.shape[1])
    return out


def move_on(by: Norm, mean: Tensor, var: Tensor, count: int) -> None:
    if by.running_mean is not None and by.running_var is not None:
        with torch.no_grad():
            by.running_mean.lerp_(mean.to(by.running_mean.dtype), by.momentum)
            by.running_var.lerp_((var * (count / (count - 1))).to(by.running_var.dtype), by.momentum)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, is_rectified: bool, is_whole: bool
    ) -> Any:
        mean, var, inverse = statistics_of(x, eps)
        scale, shift = affine_of(weight, bias, inverse)
        ctx.is_rectified, ctx.is_whole = is_rectified, is_rectified and is_whole and has_kernels(x)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.mark_non_differentiable(mean, var)
        if ctx.is_whole:
            from hotlap.parts.pixel_kernels import normed

            return as_images(normed(as_rows(x), mean, scale, shift), x), mean, var
        out = (x.to(mean.dtype) - wide(mean)) * wide(scale) + wide(shift)
        return (out.relu() if is_rectified else out).to(x.dtype), mean, var

    @staticmethod
    @once_differentiable  # what is kept of the way there has no way back of its own
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        scale, shift = affine_of(weight, bias, inverse)
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
                sums = _plain_sums(passed, apart)
                along, level = shares_of(*sums, x, inverse)
            for_x = ((passed - apart * wide(along) - wide(level)) * wide(scale)).to(x.dtype)
        return for_x, *for_affine(sums[1], sums[0], weight, bias, inverse), None, None, None


def statistics_of(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and the factor that makes that one."""
    if has_kernels(x):
        from hotlap.parts.norm_kernels import statistics

        return statistics(as_rows(x), eps)
    start = x[0, :, 0, 0].to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    apart = x.to(start.dtype) - wide(start)
    mean, squares = _plain_sums(apart, apart) / (x.numel() // x.shape[1])
    var = (squares - mean * mean).clamp_min(0.0)
    return mean + start, var, torch.rsqrt(var + eps)


def _plain_sums(one: Tensor, apart: Tensor) -> Tensor:
    return torch.stack([one.sum(_OVER), (one * apart).sum(_OVER)])


def affine_of(weight: Tensor | None, bias: Tensor | None, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """What deviations are multiplied by, and what is added then."""
    shift = torch.zeros_like(inverse) if bias is None else bias.to(inverse.dtype).contiguous()
    return inverse if weight is None else inverse * weight, shift


def shares_of(of_bias: Tensor, of_weight: Tensor, x: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """What of a gradient goes along with deviations, and what all pixels of a channel share, by its sums."""
    count = x.numel() // x.shape[1]
    return of_weight * inverse * inverse / count, of_bias / count


def for_affine(
    of_weight: Tensor, of_bias: Tensor, weight: Tensor | None, bias: Tensor | None, inverse: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    for_weight = None if weight is None else (of_weight * inverse).to(weight.dtype)
    return for_weight, None if bias is None else of_bias.to(bias.dtype)


def has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype is not torch.float64 and find_spec("triton") is not None


def as_rows(x: Tensor) -> Tensor:
    """Of channels, one a pixel: as they lie in channels_last, unless it is a part of something larger."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def as_images(rows: Tensor, like: Tensor) -> Tensor:
    return rows.view(*like.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)
