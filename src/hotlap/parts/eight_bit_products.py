"""Linear layers whose products run in 8 bits while they train, with plain torch.

    from hotlap.parts.eight_bit_products import convert, suitable

    for layer in suitable(model):
        convert(layer)  # and `restore(layer)` to have it as it was

Each tensor is scaled by its own largest value, e4m3 forward and e5m2 for gradients. Weights, checkpoints and copies
stay those of `nn.Linear`: only the class of the layer is another, so that compilers see the products, too."""

from __future__ import annotations

import copyreg
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.parameter import is_lazy

PIECE = 16  # what the products take at once: rows, inputs and outputs must be multiples of it
WIDE = 2048  # inputs and outputs: scaling fewer costs about what the product saves
CAPABILITY = (8, 9)  # of the first chips with 8-bit products: Ada; Hopper has (9, 0)
_TINY = 1e-30  # a tensor of zeros still has a scale


class EightBitLinear(nn.Linear):
    """A linear layer as it is called in training; otherwise plain."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.numel() // self.in_features
        if not self.training or not torch.is_grad_enabled() or not rows or rows % PIECE or input.dtype == torch.float64:
            return super().forward(input)
        device = input.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else input.dtype
        out: torch.Tensor = _Product.apply(input.reshape(rows, self.in_features), self.weight, dtype)  # type: ignore[no-untyped-call]
        if self.bias is not None:
            out = out + self.bias.to(dtype)
        return out.view(*input.shape[:-1], self.out_features)

    def _get_name(self) -> str:
        return nn.Linear.__name__

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are plain layers, which load anywhere."""
        return copyreg._reconstructor, (nn.Linear, object, None), self.__getstate__()  # type: ignore[attr-defined,no-untyped-call]


class _Product(torch.autograd.Function):
    """x (rows, inputs) times weight (outputs, inputs) transposed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        x8, x_scale = scaled(x, torch.float8_e4m3fn)
        weight8, weight_scale = scaled(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_scale, weight8, weight_scale)
        ctx.dtypes = x.dtype, weight.dtype
        return product(x8, weight8.t(), x_scale, weight_scale, dtype, fast=True)

    @staticmethod
    @once_differentiable  # else gradients of gradients would be wrong in silence: 8-bit copies have none
    def backward(ctx: Any, *grads: Any) -> Any:
        x8, x_scale, weight8, weight_scale = ctx.saved_tensors
        x_dtype, weight_dtype = ctx.dtypes
        grad, grad_scale = scaled(grads[0], torch.float8_e5m2)
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = product(grad, _by_columns(weight8), grad_scale, weight_scale, x_dtype)
        if ctx.needs_input_grad[1]:
            grad_weight = product(grad.t().contiguous(), _by_columns(x8), grad_scale, x_scale, weight_dtype)
        return grad_x, grad_weight, None


def scaled(tensor: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in 8 bits, and what it must be multiplied by to be itself again."""
    most, wide = torch.finfo(dtype).max, torch.float32 if tensor.dtype == torch.float16 else tensor.dtype
    largest = torch.linalg.vector_norm(tensor, float("inf"), dtype=torch.float32)
    factor = (most / largest.clamp(min=_TINY)).to(wide)  # rounded as it is used, so that its inverse is exact
    return (tensor.to(wide) * factor).clamp(-most, most).to(dtype).contiguous(), factor.float().reciprocal()


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    dtype: torch.dtype,
    fast: bool = False,
) -> torch.Tensor:
    """`a` lies by rows, `b` by columns, as the matrix units want them. Elsewhere the same 8-bit numbers are multiplied
    by plain arithmetic, for tests: not every processor has such products, and none gains by them."""
    if not a.is_cuda:
        return ((a.float() @ b.float()) * a_scale * b_scale).to(dtype)
    return torch._scaled_mm(a, b, scale_a=a_scale, scale_b=b_scale, out_dtype=dtype, use_fast_accum=fast)


def _by_columns(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.t().contiguous().t()


def suitable(root: nn.Module, smallest: int = WIDE) -> list[nn.Linear]:
    """Plain linear layers of sizes the products take. The first and the last layer of a network are left out, since
    they bear rounding worst, and so are weights that several modules share."""
    layers: list[Any] = [module for module in root.modules() if _has_matrix(module)]
    shared = Counter(id(m.weight) for m in layers)
    return [
        layer
        for layer in layers[1:-1]
        if type(layer) is nn.Linear
        and type(layer.weight) is nn.Parameter
        and shared[id(layer.weight)] == 1
        and layer.weight.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and not layer.in_features % PIECE
        and not layer.out_features % PIECE
        and min(layer.in_features, layer.out_features) >= smallest
    ]


def _has_matrix(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, nn.Parameter) and not is_lazy(weight) and weight.dim() > 1


def convert(layer: nn.Linear) -> None:
    layer.__class__ = EightBitLinear


def restore(layer: nn.Linear) -> None:
    layer.__class__ = nn.Linear
