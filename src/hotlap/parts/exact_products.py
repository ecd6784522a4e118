"""Batched products that are as exact as they claim, on every device and whatever precision the script has allowed."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT_BITS = 22  # of Pillow's weights for eight-bit images
_UPPER = 4096  # what an upper half counts: weights reach 1.125 at an edge, and half precision holds no more than 2048


def half_type(device: torch.device) -> torch.dtype | None:
    """What weights are kept in where they are kept in halves, None where float64 is exact anyway."""
    if device.type == "cpu":
        return None
    return torch.half if device.type == "cuda" and torch.version.hip is None else torch.float32


def in_halves(weights: Tensor) -> Tensor:
    """Weights of 22 bits (N, out, K) as two whole numbers up to 2048, which half precision holds: N, 2 * out, K."""
    upper = torch.floor(weights * (1 / _UPPER) + 0.5)
    return torch.cat([upper, weights - upper * _UPPER], 1)


def levels_times(first: Tensor, second: Tensor, weights: int) -> Tensor:
    """Levels times weights (the first factor or the second), rounded to levels as Pillow rounds, exact to the last bit.

    On the CPU in float64. On a device the weights are in halves: their sums with levels stay within the 24 bits of
    float32 (for images shrunk up to 16 times), so that matrix units, which multiply half precision, give the exact sums
    whatever else they are allowed."""
    if half_type(first.device) is None:
        total = torch.bmm(first.double(), second.double())
        return total.add_(1 << (WEIGHT_BITS - 1)).div_(1 << WEIGHT_BITS).floor_().clamp_(0, 255).to(torch.uint8)
    return joined(halves_times(first, second), weights)


def halves_times(first: Tensor, second: Tensor) -> Tensor:
    if half_type(first.device) is torch.half:
        return torch.bmm(first.half(), second.half(), out_dtype=torch.float32)
    return torch.bmm(first.float(), second.float())


def joined(sums: Tensor, weights: int) -> Tensor:
    coarse, fine = sums.int().chunk(2, weights)
    total = torch.add(fine, coarse, alpha=_UPPER).add_(1 << (WEIGHT_BITS - 1))
    return total.bitwise_right_shift_(WEIGHT_BITS).clamp_(0, 255).to(torch.uint8)


def product(first: Tensor, second: Tensor) -> Tensor:
    """`bmm` in full float32, also where the script lets products be rounded (TF32, bfloat16): there numbers are split
    into parts of eight bits, which every such format holds, and the parts are multiplied."""
    if first.dtype == torch.float64 or _products_are_exact():
        return torch.bmm(first, second)
    left, right = _eight_bits_each(first), _eight_bits_each(second)
    pairs = [(i, j) for i in range(3) for j in range(3) if i + j < 3]
    return torch.bmm(torch.cat([left[i] for i, _ in pairs], 2), torch.cat([right[j] for _, j in pairs], 1))


def _products_are_exact() -> bool:
    backends = (torch.backends.cuda, torch.backends.mkldnn)
    try:
        kinds = {getattr(getattr(backend, "matmul", None), "fp32_precision", "none") for backend in backends}
        return kinds <= {"none", "ieee"} and torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # a script that mixes the old and the new way to say it
        return False


def _eight_bits_each(numbers: Tensor) -> list[Tensor]:
    parts = []
    for _ in range(3):
        parts.append(numbers.bfloat16().to(numbers.dtype))
        numbers = numbers - parts[-1]
    return parts
