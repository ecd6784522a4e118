"""Weights of many layers in a lower precision, and their gradients back in their own: all in one go, where autocast and
a compiler start a kernel for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def lowered(kind: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
    """Each in that type, where it lies as it does."""
    made: tuple[Tensor, ...] = _Lowered.apply(kind, *weights)
    return made


class _Lowered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kind: torch.dtype, *weights: Tensor) -> Any:
        ctx.kind = weights[0].dtype
        return tuple(_cast(list(weights), kind))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *_cast(list(grads), ctx.kind)


@torch.library.custom_op("hotlap::cast_together", mutates_args=(), tags=(torch.Tag.flexible_layout,))
def _cast(tensors: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    made = [torch.empty_like(one, dtype=kind) for one in tensors]
    torch._foreach_copy_(made, list(tensors))
    return made


@_cast.register_fake
def _(tensors: Sequence[Tensor], kind: torch.dtype) -> list[Tensor]:
    return [torch.empty_like(one, dtype=kind) for one in tensors]
