"""A convolution of single pixels that hands on, beside what it makes, the sums that a batch norm after it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d

from hotlap.parts.summed_norm import as_images, as_rows, has_kernels, wide

_ALIGNED = 64  # channels that are multiplied at once
_FEW_INPUTS, _FEW_WEIGHTS = 128, 1 << 16
_SOME_INPUTS, _FEW_OUTPUTS = 256, 64


def is_gain(inputs: int, outputs: int) -> bool:
    """Whether reading and writing takes longer than multiplying does: else torch's own products are faster, by more
    than reading for sums takes. As measured on one H200, for ResNet-50."""
    is_small = inputs <= _FEW_INPUTS and inputs * outputs <= _FEW_WEIGHTS
    is_narrow = inputs <= _SOME_INPUTS and outputs <= _FEW_OUTPUTS
    return inputs % _ALIGNED == 0 and outputs % _ALIGNED == 0 and (is_small or is_narrow)


def is_gain_back(inputs: int, outputs: int) -> bool:
    """The same of what its gradient is added to."""
    return inputs % _ALIGNED == 0 and outputs in (64, 128) and inputs * outputs <= _FEW_WEIGHTS


def summed_convolution(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What `conv2d(x, weight)` gives, for weights of one pixel; and the fields of `Sums`."""
    made: tuple[Tensor, Tensor, Tensor] = _SummedConvolution.apply(x, weight)
    return made


class _SummedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Any:
        y, *told = _summed(x, weight)
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(*told)
        return y, *told

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        return given_back_by_product(grad, *ctx.saved_tensors, ctx.needs_input_grad)


def product(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """With sums where that is a gain."""
    outputs, inputs = weight.shape[:2]
    return _summed(x, weight) if is_gain(inputs, outputs) else (conv2d(x, weight),)


def _summed(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if has_kernels(x):
        from hotlap.parts.product_kernels import summed_product

        out, sums, start = summed_product(as_rows(x), as_columns(weight))
        return as_images(out, x), sums, start
    y = conv2d(x, weight)
    start = y[0, :, 0, 0].to(torch.promote_types(y.dtype, torch.float32))
    apart = y.to(start.dtype) - wide(start)
    return y, torch.stack([apart.sum((0, 2, 3)), (apart * apart).sum((0, 2, 3))])[None], start


def given_back_by_product(grad: Tensor, x: Tensor, weight: Tensor, wanted: Sequence[bool]) -> tuple[Any, Any]:
    """To `x` and to `weight`."""
    made = torch.ops.aten.convolution_backward(
        grad, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [*wanted, False]
    )
    return made[0], made[1]


def as_columns(weight: Tensor) -> Tensor:
    """Of outputs, inputs."""
    return weight.flatten(1).contiguous()
