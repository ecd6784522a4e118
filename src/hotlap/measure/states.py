"""The state of a training, taken and put back: weights, buffers and optimizer states; and its gradients as a list."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any


def take(optimizers: Sequence[Any], roots: Sequence[Any]) -> dict[str, Any]:
    """Copies in main memory."""
    return {
        "weights": [[p.detach().cpu().clone() for p in parameters(o)] for o in optimizers],
        "buffers": [[b.detach().cpu().clone() for b in r.buffers()] for r in roots],
        "optimizers": [copied(o.state_dict()) for o in optimizers],
    }


def put_back(state: dict[str, Any], optimizers: Sequence[Any], roots: Sequence[Any]) -> None:
    import torch

    with torch.no_grad():
        for optimizer, weights in zip(optimizers, state["weights"], strict=True):
            for p, value in zip(parameters(optimizer), weights, strict=True):
                p.copy_(value)
        for root, buffers in zip(roots, state["buffers"], strict=False):
            for b, value in zip(root.buffers(), buffers, strict=False):
                b.copy_(value)
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(copied(saved))  # it would keep the very tensors, and step into them


def shake(optimizers: Sequence[Any], by: float, seed: int) -> None:
    """Every weight moved by chance, by so much of itself at most: about what rounding does to it."""
    import torch

    with torch.no_grad():
        for p in (p for optimizer in optimizers for p in parameters(optimizer)):
            generator = torch.Generator(p.device).manual_seed(seed)
            p.mul_(1 + by * (2 * torch.rand(p.shape, generator=generator, device=p.device) - 1).to(p.dtype))


def parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients(parameters: Sequence[Any]) -> list[Any]:
    import torch

    return [torch.zeros_like(p) if p.grad is None else p.grad.detach() for p in parameters]


def copied(state: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.detach().cpu().clone() if isinstance(v, torch.Tensor) else v, state)


def dot(ones: Sequence[Any], others: Sequence[Any]) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(ones, others, strict=True))


def length_ratio(ones: Sequence[Any], others: Sequence[Any]) -> float:
    """How long the others are, tensor by tensor: the median."""
    lengths = [(norm([a]), norm([b])) for a, b in zip(ones, others, strict=True)]
    return statistics.median([b / a for a, b in lengths if a > 0] or [1.0])


def norm(tensors: Sequence[Any]) -> float:
    return math.sqrt(sum(float(t.double().pow(2).sum()) for t in tensors))
