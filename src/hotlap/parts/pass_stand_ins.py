"""Inputs of a pass that were made with gradients on, as what a generator has made for the judge that is to be fooled.
The pass works with stand-ins that have no past, and what they owe goes back through what made the inputs afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Variable

_MARK = "_stands_in"


def has_a_past(one: Any) -> bool:
    return type(one) is torch.Tensor and one.grad_fn is not None


def stand_in(one: torch.Tensor) -> torch.Tensor:
    own = one.detach().requires_grad_()
    vars(own)[_MARK] = True
    return own


def stands_in(one: torch.Tensor) -> bool:
    return one.requires_grad and _MARK in getattr(one, "__dict__", ())


def taken(one: Any) -> Any:
    """A stand-in as the pass is given it: no leaf, which must not be changed in place."""
    return one.clone() if isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf else one


def go_back(given: Sequence[Any], stand_ins: Sequence[Any]) -> None:
    """Not by `torch.autograd.backward`, which others watch: this is no loss of the script's."""
    pairs = [(one, own.grad) for one, own in zip(given, stand_ins, strict=True) if own is not one]
    owing = [(one, grad) for one, grad in pairs if grad is not None]
    if owing:
        ends, grads = zip(*owing, strict=True)
        engine: Any = Variable._execution_engine  # type: ignore[attr-defined]
        engine.run_backward(ends, grads, False, False, (), allow_unreachable=True, accumulate_grad=True)
