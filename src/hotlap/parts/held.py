"""How things are held that a recording rests on: weakly where they may die, and by value where they change in place."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)


class Gone:
    """Holds weakly what can be held so: the script's model is not ours to keep. `tell` is called when one dies."""

    def __init__(self) -> None:
        self.has_happened = False
        self.tell: Callable[[], object] = lambda: None

    def held(self, thing: Any) -> Any:
        """To be kept: else another thing could get its identity unheard."""
        try:
            return weakref.ref(thing, self._heard)
        except TypeError:
            return thing

    def _heard(self, reference: Any) -> None:
        self.has_happened = True
        self.tell()


class Parts:
    """Attributes of something that is not kept, by name."""

    def __init__(self, thing: Any) -> None:
        self._thing = weakref.ref(thing)

    def __getitem__(self, name: str) -> Any:
        thing = self._thing()
        if thing is None:
            raise KeyError(name)
        return getattr(thing, name)


class Slots:
    """Attributes of something that has no dictionary."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self.names = {name for kind in type(thing).__mro__ for name in _listed(getattr(kind, "__slots__", ()))}

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self._thing, name)
        except AttributeError as error:
            raise KeyError(name) from error


def _listed(names: Any) -> Any:
    return (names,) if isinstance(names, str) else names


class Contents:
    """What is in collections that code may change in place, and whose items are not looked at one by one."""

    def __init__(self) -> None:
        self._items: list[tuple[Any, list[Any], bool]] = []
        self._arrays: list[tuple[Any, bytes]] = []

    def add(self, collection: Any) -> None:
        items = collection.values() if isinstance(collection, dict) else collection
        self._items.append((items, list(items), all(isinstance(one, PLAIN) for one in items)))

    def add_array(self, array: Any) -> None:
        self._arrays.append((array, array.tobytes()))

    def are_as_they_were(self) -> bool:
        return all(map(_is_unchanged, self._items)) and all(array.tobytes() == old for array, old in self._arrays)


def _is_unchanged(row: tuple[Any, list[Any], bool]) -> bool:
    items, old, is_plain = row
    return len(items) == len(old) and (all(map(operator.is_, items, old)) or (is_plain and list(items) == old))
