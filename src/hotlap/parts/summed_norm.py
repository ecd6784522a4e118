"""Batch norm in training by two plain sums, of deviations and of their squares, made nearly as fast as memory is read:
a compiler's own way to variances divides once for every element, which takes longer than reading them. Relu and what is
added before it belong to it, so that no pixel is read more often than needed on the way back.

Deviations are from the first pixel of each channel, which is as far from the mean as any: sums of squares lose nothing
then that a bf16 pixel had."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

_OVER = (0, 2, 3)


class Norm(NamedTuple):
    """By what each channel is normed."""

    running_mean: Tensor | None
    running_var: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    momentum: float
    eps: float


def batch_norm(x: Tensor, *norm: Any, is_rectified: bool = False) -> Tensor:
    """What torch's own gives in training, of N, C, H, W and the fields of `Norm`, with relu after it or without;
    running statistics are moved on where they lie."""
    by = Norm(*norm)
    out, mean, var = _Norm.apply(x, by.weight, by.bias, by.eps, is_rectified)
    _move_on(by, mean, var, x.numel() // x.shape[1])
    return out


def joined_batch_norm(x: Tensor, added: Tensor, *norm: Any) -> tuple[Tensor, Tensor]:
    """The same with something of the same size and type added, and relu after that. Twice the same tensor, for two
    readers: what they give back is then added up in one go with the rest."""
    by = Norm(*norm)
    out, twin, mean, var = _JoinedNorm.apply(x, added, by.weight, by.bias, by.eps)
    _move_on(by, mean, var, x.numel() // x.shape[1])
    return out, twin


def _move_on(by: Norm, mean: Tensor, var: Tensor, count: int) -> None:
    if by.running_mean is not None and by.running_var is not None:
        with torch.no_grad():
            by.running_mean.lerp_(mean.to(by.running_mean.dtype), by.momentum)
            by.running_var.lerp_((var * (count / (count - 1))).to(by.running_var.dtype), by.momentum)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, is_rectified: bool) -> Any:
        mean, var, inverse = _statistics(x, eps)
        ctx.save_for_backward(x, weight, bias, mean, inverse)
        ctx.is_rectified = is_rectified
        ctx.mark_non_differentiable(mean, var)
        out = _normed(x.to(mean.dtype) - _wide(mean), weight, bias, inverse)
        return (out.relu() if is_rectified else out).to(x.dtype), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        x, weight, bias, mean, inverse = ctx.saved_tensors
        passed, apart = grad.to(mean.dtype), x.to(mean.dtype) - _wide(mean)
        if ctx.is_rectified:  # told again from the pixel, which is read anyway
            passed = torch.where(_normed(apart, weight, bias, inverse) <= 0.0, 0.0, passed)
        if _has_kernels(x):
            from hotlap.parts.norm_kernels import grad_sums

            scale = inverse if weight is None else inverse * weight
            shift = torch.zeros_like(mean) if bias is None else bias.to(mean.dtype).contiguous()
            sums = grad_sums(_rows(grad), _rows(x), mean, scale, shift, ctx.is_rectified).sum(0)
        else:
            sums = _plain_sums(passed, apart)
        return *_given_back(passed, apart, sums, x, weight, bias, inverse), None, None


class _JoinedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        mean, var, inverse = _statistics(x, eps)
        out = _normed(x.to(mean.dtype) - _wide(mean), weight, bias, inverse)
        out = (out + added.to(mean.dtype)).relu().to(x.dtype)
        ctx.save_for_backward(x, out, weight, bias, mean, inverse)
        ctx.mark_non_differentiable(mean, var)
        ctx.set_materialize_grads(False)
        return out, out.view_as(out), mean, var

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, twins: Tensor | None, *_: Any) -> Any:
        x, out, weight, bias, mean, inverse = ctx.saved_tensors
        if grad is None:
            grad, twins = twins, None
        if grad is None:
            return (None,) * 5
        apart = x.to(mean.dtype) - _wide(mean)
        if _has_kernels(x):
            from hotlap.parts.norm_kernels import joined_sums

            other = None if twins is None else _rows(twins)
            rows, sums = joined_sums(_rows(grad), other, _rows(out), _rows(x), mean)
            joined, sums = rows.view(*x.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2), sums.sum(0)
            passed = joined.to(mean.dtype)
        else:
            joined = torch.where(out <= 0.0, 0.0, grad if twins is None else grad + twins)
            passed = joined.to(mean.dtype)
            sums = _plain_sums(passed, apart)
        for_x, for_weight, for_bias = _given_back(passed, apart, sums, x, weight, bias, inverse)
        return for_x, joined, for_weight, for_bias, None


def _statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and the factor that makes that one."""
    start = x[0, :, 0, 0].to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    if _has_kernels(x):
        from hotlap.parts.norm_kernels import sums

        totals = sums(_rows(x), start).sum(0)
    else:
        apart = x.to(start.dtype) - _wide(start)
        totals = _plain_sums(apart, apart)
    mean, squares = totals / (x.numel() // x.shape[1])
    var = (squares - mean * mean).clamp_min(0.0)
    return mean + start, var, torch.rsqrt(var + eps)


def _plain_sums(one: Tensor, apart: Tensor) -> Tensor:
    return torch.stack([one.sum(_OVER), (one * apart).sum(_OVER)])


def _given_back(
    passed: Tensor, apart: Tensor, sums: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, inverse: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """For pixels, weights and biases: `sums` are of `passed`, and of `passed` times `apart`, by channel."""
    of_bias, of_weight = sums
    count = x.numel() // x.shape[1]
    along = of_weight * inverse * inverse / count
    scale = inverse if weight is None else inverse * weight
    for_x = (passed - apart * _wide(along) - _wide(of_bias / count)) * _wide(scale)
    for_weight = None if weight is None else (of_weight * inverse).to(weight.dtype)
    return for_x.to(x.dtype), for_weight, None if bias is None else of_bias.to(bias.dtype)


def _normed(apart: Tensor, weight: Tensor | None, bias: Tensor | None, inverse: Tensor) -> Tensor:
    out = apart * _wide(inverse if weight is None else inverse * weight)
    return out if bias is None else out + _wide(bias)


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and x.dtype is not torch.float64 and find_spec("triton") is not None


def _rows(x: Tensor) -> Tensor:
    """Of channels, one a pixel: as they lie in channels_last, unless it is a part of something larger."""
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


def _wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)
