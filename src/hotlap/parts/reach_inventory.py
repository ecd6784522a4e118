"""What was found by looking through code and what it can reach, held against what is there now."""

from __future__ import annotations

import operator
from itertools import chain
from typing import Any

import torch

from hotlap.parts.held import PLAIN, Contents, Gone
from hotlap.parts.tensor_places import Places

_Columns = tuple[list[Any], ...]

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")

hooks_on = operator.attrgetter(*_HOOKS)
_backward_hooks, _late_hooks = map(operator.attrgetter, _HOOKS)


class Inventory:
    """Filled first, then `closed`; from then on `is_as_it_was()` says whether everything is, and `why` what is not."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.hooks: list[Any] = []  # dictionaries of hooks, all empty
        self.why = ""
        self._values: _Columns = ([], [], [])  # where, by what key, what was there
        self._objects: _Columns = ([], [], [])  # likewise, and in the end their identities
        self._absent: _Columns = ([], [])  # where, and what key was not there
        self._lengths: _Columns = ([], [])
        self.contents = Contents()

    def value(self, where: Any, key: Any, value: Any) -> None:
        _add(self._values, where, key, value)

    def object(self, where: Any, key: Any, value: Any) -> None:
        _add(self._objects, where, key, value)

    def absent(self, where: Any, key: Any) -> None:
        _add(self._absent, where, key)

    def length(self, value: Any) -> None:
        _add(self._lengths, value, len(value))

    def closed(self) -> Gone:
        """Tells when something of it dies."""
        self._gone = Gone()
        self._kept = [self._gone.held(one) for one in self._objects[2]]
        self._objects[2][:] = map(id, self._objects[2])
        self._types = list(map(type, self._values[2]))
        self._distinct = list(dict.fromkeys(self.tensors))
        self._places, self._looks = Places(self._distinct), list(map(_look, self._distinct))
        return self._gone

    def is_as_it_was(self) -> bool:
        """Runs in every step, so that it is no more than look-ups and comparisons, hardly any in Python itself."""
        try:
            values = list(map(operator.getitem, *self._values[:2]))
            is_good = (
                not self._gone.has_happened
                and list(map(id, map(operator.getitem, *self._objects[:2]))) == self._objects[2]
                and list(map(type, values)) == self._types  # first: tensors are not to be compared
                and values == self._values[2]
                and not any(map(operator.contains, *self._absent))
                and (self._places.hold(self._distinct) or list(map(_look, self._distinct)) == self._looks)
                and list(map(len, self._lengths[0])) == self._lengths[1]
                and self.contents.are_as_they_were()
                and not any(self.hooks)
                and not any(map(_backward_hooks, self._distinct))
                and not any(map(_late_hooks, self._distinct))
            )
        except (KeyError, IndexError):
            is_good = False
        if not is_good:
            self.why = self._fault()
        return is_good

    def _fault(self) -> str:
        for where, key, value in zip(*self._values, strict=True):
            if not _is_same(_get(where, key, self), value):
                return f"{key} changes"
        for where, key, identity in zip(*self._objects, strict=True):
            if id(_get(where, key, self)) != identity:
                return f"{key} is another"
        for where, key in zip(*self._absent, strict=True):
            if key in where:
                return f"{key} is set"
        if any(self.hooks) or any(chain.from_iterable(map(hooks_on, self.tensors))):
            return "modules or weights have hooks of the script's"
        if list(map(len, self._lengths[0])) != self._lengths[1]:
            return "a list or dict that it can reach grows"
        if not self.contents.are_as_they_were():
            return "a collection that it can reach changes"
        return "a part of it is gone" if self._gone.has_happened else "a weight lies elsewhere, or is trained no more"


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where it lies and how: `data` may be set to a transpose or a part of what was there."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.requires_grad


def _add(columns: _Columns, *row: Any) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)


def _get(where: Any, key: Any, missing: Any) -> Any:
    try:
        return where[key]
    except (KeyError, IndexError):
        return missing


def _is_same(new: Any, old: Any) -> bool:
    return new is old or (isinstance(old, PLAIN) and type(new) is type(old) and bool(new == old))
