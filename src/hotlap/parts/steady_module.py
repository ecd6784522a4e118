"""Whether a module is still what it was when it was recorded: its parts, attributes, hooks, parameters and buffers, and
what its code reads elsewhere. A graph repeats what Python decided once, so this is asked before every replay, and told
in microseconds."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn

from hotlap.parts.compilable import HOOKS
from hotlap.parts.reach import TORCHS, Reach
from hotlap.parts.tensor_places import Places

_CONTENT = ("_parameters", "_buffers", "_modules")
_TORCHS = frozenset(vars(nn.Module())) - {*HOOKS, *_CONTENT}
_PLAIN = (int, float, bool, str, type(None))
_ASKED = (torch.Tensor.data_ptr, torch.Tensor.stride, operator.attrgetter("nbytes"))
_SPREAD = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


class SteadyModule:
    """Compares by identity, and only what is plain by value: no tensor is read."""

    def __init__(self, root: nn.Module) -> None:
        self._views: list[Any] = []  # live ones, of everything that a module holds
        self._empty: list[Any] = []
        for module in root.modules():
            self._keep(vars(module))
            for name, value in vars(module).items():
                if name not in _TORCHS and isinstance(value, (list, dict)):
                    self._keep(value)
        self._sizes = list(map(len, self._views))
        self._held = list(chain.from_iterable(self._views))
        self.parameters, self.buffers = list(root.parameters()), list(root.buffers())
        self._tensors = [*self.parameters, *self.buffers]
        self._known, self._places = Places(self._tensors), _places(self._tensors)
        self.device = self._tensors[0].device
        self._elsewhere = _Elsewhere(root)

    @property
    def own(self) -> list[torch.Tensor]:
        """The tensors that it holds: parameters, buffers, and those in attributes."""
        return [*self._tensors, *(one for one in self._held if isinstance(one, torch.Tensor))]

    def _keep(self, held: Any) -> None:
        if held:
            self._views.append(held.values() if isinstance(held, dict) else held)
        else:
            self._empty.append(held)

    def holds(self) -> bool:
        """One pass without a loop in Python, since large models have thousands of attributes."""
        if any(self._empty) or list(map(len, self._views)) != self._sizes:
            return False
        if not self._holds(operator.is_) and not self._holds(_is_same):
            return False
        is_in_place = self._known.hold(self._tensors) or _places(self._tensors) == self._places
        return is_in_place and self._elsewhere.is_as_it_was()

    def _holds(self, is_same: Callable[[Any, Any], bool]) -> bool:
        return all(map(is_same, chain.from_iterable(self._views), self._held))


class _Elsewhere(Reach):
    """What the code of a module reads beside what the module holds: globals, settings in objects and in classes. It
    does not hold the module itself."""

    refuses_words = False  # calls are watched

    def __init__(self, root: nn.Module) -> None:
        self._parts = {id(module) for module in root.modules()}
        super().__init__(lambda: self._walk(root))

    def _walk(self, root: nn.Module) -> None:
        for module in root.modules():
            own, names = vars(module), self._reached(type(module), frozenset({"forward"}), 1)
            known = {*TORCHS, *(key for key, one in own.items() if isinstance(one, _PLAIN))}
            self._visit_all(own, sorted(own.keys() - known), names, 1)

    def _visit(self, where: Any, key: Any, names: frozenset[str], depth: int) -> None:
        if id(where[key]) not in self._parts:
            super()._visit(where, key, names, depth)


def _places(tensors: list[torch.Tensor]) -> list[Any]:
    """Where they lie and how: `data` may be set to a part or a transpose of what was there."""
    return [list(map(ask, tensors)) for ask in _ASKED]


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and isinstance(one, _PLAIN) and one == other)


def why_not_recorded(root: nn.Module, device: str) -> str:
    """Why calls of a module cannot be recorded whatever it is given; "" where nothing is in the way."""
    for module in root.modules():
        reason = _why_not(module)
        if reason:
            return reason
    parameters = list(root.parameters())
    places = {tensor.device for tensor in (*parameters, *root.buffers())}
    if len(places) != 1 or next(iter(places)).type != device:
        return f"its parameters and buffers are not all on one {device} device"
    if any(type(p) is not nn.Parameter or p.layout is not torch.strided or p.is_complex() for p in parameters):
        return "its parameters are not plain tensors"
    if any(b.layout is not torch.strided for b in root.buffers()):
        return "one of its buffers is sparse"
    if any(b.requires_grad for b in root.buffers()):
        return "one of its buffers needs gradients"
    return ""


def _why_not(module: nn.Module) -> str:
    kind = type(module).__name__
    if kind in _SPREAD and not _is_direct(module):
        return f"{kind} spreads its calls over devices or processes"
    if any(getattr(module, name, None) for name in HOOKS):
        return f"a hook hangs on its {kind}"
    if isinstance(module, torch.jit.ScriptModule):
        return f"its {kind} is scripted"
    slot = vars(module).get("_compiled_call_impl")
    if kind == "OptimizedModule" or getattr(slot, "old", slot) is not None:  # one of ours stands before the plain call
        return f"its {kind} is compiled"
    if getattr(module, "sparse", False) is True:
        return f"its {kind} has sparse gradients"
    return ""


def _is_direct(module: Any) -> bool:
    """A wrapper over one device, whose call goes straight to the module inside."""
    return len(getattr(module, "device_ids", None) or ()) == 1 and getattr(type(module).forward, "__hotlap__", False)
