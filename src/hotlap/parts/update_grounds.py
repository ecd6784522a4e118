"""What a recorded update rests on, taken down so that asking for it again takes microseconds. Gradients are known by
place and form alone: whoever counts their holders must not find one here."""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any

import numpy
import torch

from hotlap.parts.tensor_places import Places

# From a tensor. Not RAdam, which takes differences of nearly equal numbers: in float32, as on a device, it goes wrong.
READS_LR = ("Adam", "AdamW", "NAdam", "Adamax", "RMSprop", "ASGD", "Rprop", "Adadelta")
KINDS = ("SGD", *READS_LR)


class UpdateGrounds:
    """`told`: for each group of parameters the settings that the graph reads anew."""

    def __init__(self, optimizer: Any, told: list[tuple[str, ...]], flags: tuple[str, ...]) -> None:
        self._flags, self._given = flags, [getattr(optimizer, name, None) is not None for name in flags]
        self._groups = list(optimizer.param_groups)
        self._names = [[n for n in group if n not in names] for group, names in zip(self._groups, told, strict=True)]
        self._lengths = list(map(len, self._groups))
        self._values = self._settings()
        self._parameters = list(chain.from_iterable(group["params"] for group in self._groups))
        self._trained = [p for p in self._parameters if p.grad is not None]
        self._idle = [p for p in self._parameters if p.grad is None]
        grads = [p.grad for p in self._trained]
        self._places = Places((*self._trained, *grads))
        self._state, self._kept = optimizer.state, list(optimizer.state.values())
        is_plain = all(type(grad) is torch.Tensor for grad in grads)
        self._is_usual = is_plain and all(type(one) is dict for one in self._kept)  # else it is looked at the long way
        self._held = list(chain.from_iterable(map(dict.values, self._kept))) if self._is_usual else []
        self._sizes = list(map(len, self._kept)) if self._is_usual else []

    def hold(self, optimizer: Any) -> bool:
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or not all(map(operator.is_, groups, self._groups)):
            return False
        if list(map(len, groups)) != self._lengths or not all(map(operator.is_, self._settings(), self._values)):
            return False
        parameters = list(chain.from_iterable(group["params"] for group in groups))
        if len(parameters) != len(self._parameters) or not all(map(operator.is_, parameters, self._parameters)):
            return False
        if [getattr(optimizer, name, None) is not None for name in self._flags] != self._given:
            return False
        if any(p.grad is not None for p in self._idle) or any(
            isinstance(group["lr"], torch.Tensor) for group in groups
        ):
            return False
        grads = [p.grad for p in self._trained]
        return self._places.hold((*self._trained, *grads)) and self._has_its_state(optimizer)

    def _settings(self) -> list[Any]:
        """To be compared by identity: a number that was set anew is looked at the long way."""
        return [group.get(name) for group, names in zip(self._groups, self._names, strict=True) for name in names]

    def _has_its_state(self, optimizer: Any) -> bool:
        state = optimizer.state
        if not self._is_usual or state is not self._state or len(state) != len(self._kept):
            return False
        if not all(map(operator.is_, state.values(), self._kept)) or list(map(len, self._kept)) != self._sizes:
            return False
        return all(map(operator.is_, chain.from_iterable(map(dict.values, self._kept)), self._held))


def weights_of(optimizer: Any) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def state_of(optimizer: Any) -> list[Any]:
    return [value for p in weights_of(optimizer) for value in optimizer.state.get(p, {}).values()]


def is_same(ones: list[Any], others: list[Any]) -> bool:
    return len(ones) == len(others) and all(map(operator.is_, ones, others))


def state_names(optimizer: Any) -> list[Any]:
    """What the state consists of: an update that would add to it cannot be recorded."""
    return [[(name, v is None) for name, v in optimizer.state.get(p, {}).items()] for p in weights_of(optimizer)]


def manner_of(optimizer: Any) -> Any:
    """What compiled code rests on: everything but learning rates and where things lie. None where settings cannot be
    told apart."""
    chosen = [(n, value) for group in optimizer.param_groups for n, value in group.items() if n not in ("params", "lr")]
    forms = [(p.shape, p.stride(), _form(p.grad)) for p in weights_of(optimizer)]
    manner = (*chosen, *forms, *map(tuple, state_names(optimizer)))
    try:
        hash(manner)
    except TypeError:
        return None
    return manner


def _form(grad: torch.Tensor | None) -> Any:
    return None if grad is None else (grad.stride(), grad.dtype)


def in_main_memory(state: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value.cpu() for name, value in state.items() if name in names}


def device_of(optimizer: Any) -> torch.device:
    return next(p.device for p in weights_of(optimizer) if p.grad is not None)


def no_number(rate: Any) -> str:
    """Why a learning rate is left to torch; "" where it is a plain number."""
    if isinstance(rate, torch.Tensor):
        return "the script keeps its learning rate in a tensor"
    return "" if isinstance(rate, int | float | numpy.floating) else "its learning rate is no plain number"


def unfit(optimizer: Any) -> str:
    """Why the updates of an optimizer cannot be recorded whatever its gradients are; "" where nothing is in the way."""
    kind = kind_of(optimizer)
    if kind not in KINDS:
        return f"{type(optimizer).__name__} decides on the host how each update goes"
    own = getattr(torch.optim, kind)
    if type(optimizer)._init_group is not own._init_group:
        return f"{type(optimizer).__name__} changes how {kind} prepares its update"
    for group in optimizer.param_groups:
        if group.get("differentiable") or group.get("capturable"):
            return "the script sets differentiable or capturable itself"
        if any(isinstance(value, torch.Tensor) for value in (group["lr"], *group.get("betas", ()))):
            return "the script keeps its learning rate or betas in tensors"
    return ""


def kind_of(optimizer: Any) -> str:
    """The class of torch's own that an optimizer is of."""
    return next((k.__name__ for k in type(optimizer).__mro__ if getattr(torch.optim, k.__name__, None) is k), "")
