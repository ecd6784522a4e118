"""The script's own objects, as they are met: loaders, optimizers, roots."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

_KEPT = 256  # of each kind


class Met:
    """Objects by their numbers in the ledger, weakly held, with the latest facts about each."""

    def __init__(self) -> None:
        self._facts: dict[int, Any] = {}
        self._references: dict[int, weakref.ref[Any]] = {}

    def add(self, key: int, thing: Any) -> None:
        known = self._references.get(key)
        if known is None or known() is not thing:
            if len(self._references) >= _KEPT:
                oldest = next(iter(self._references))
                self._references.pop(oldest)
                self._facts.pop(oldest, None)
            self._references[key] = weakref.ref(thing)
            if known is not None:
                self._facts.pop(key, None)  # of one that is gone, whose number came round again

    @property
    def facts(self) -> dict[int, Any]:
        """In the order in which they were met."""
        return {key: self._facts[key] for key in self._references if key in self._facts}

    def alive(self) -> list[tuple[int, Any]]:
        found = [(key, reference()) for key, reference in self._references.items()]
        return [(key, thing) for key, thing in found if thing is not None]

    def refresh(self, describe: Callable[[Any], Any]) -> None:
        for key, thing in self.alive():
            self._facts[key] = describe(thing)

    def describe(self, key: int, thing: Any, describe: Callable[[Any], Any]) -> None:
        """At once, and only the first time: a loader may die while its iterator lives on."""
        self.add(key, thing)
        if key not in self._facts:
            self._facts[key] = describe(thing)
