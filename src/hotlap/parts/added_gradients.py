"""Gradients that a pass adds to, or sets to zero, where they lie: of the pass before it that makes the same update, of
another network's pass in the same step, or of an optimizer that does not drop them. A recording adds at the addresses
it was made with, so it is good for those very gradients."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from hotlap.parts.tensor_places import Places

_IN_VAIN = 8  # recordings that add to gradients which will not be there again
_recorded: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()  # by identity


def note_recorded(grads: Iterable[torch.Tensor]) -> None:
    """A recording makes them: they come back where they are."""
    _recorded.update((id(grad), grad) for grad in grads)


class Added:
    """Of these weights, by one recording."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        self._weights = weights
        grads = self.grads()
        self.known = list(map(weakref.ref, grads))
        self._places = Places(grads) if grads else None

    def grads(self) -> list[Any]:
        return [weight.grad for weight in self._weights]

    @property
    def are_there(self) -> bool:
        if self._places is None:
            return True
        grads = self.grads()
        return all(map(operator.is_, grads, [one() for one in self.known])) and self._places.hold(grads)

    @property
    def are_lost(self) -> bool:
        return any(one() is None for one in self.known)


class Lasting:
    """Which gradients a recording may add to: those that come from recordings, or have been there for some passes."""

    def __init__(self) -> None:
        self._lost: set[Any] = set()  # kinds of passes that added to gradients which went away
        self._seen: dict[Any, list[Any]] = {}  # those that were there when a kind was watched, weakly
        self._passing: list[Any] = []  # likewise: those that a recording would have added to in vain
        self._in_vain = 0

    def watched(self, kind: Any, grads: Iterable[torch.Tensor]) -> None:
        self._seen[kind] = list(map(weakref.ref, grads))

    def lost(self, kind: Any) -> None:
        self._lost.add(kind)

    @property
    def are_passing(self) -> bool:
        """Whether those that nobody will see again are still added to: the first of the next ones is yet to come."""
        return any(one() is not None for one in self._passing)

    def accept(self, kind: Any, added: Added) -> bool:
        seen = [one() for one in self._seen.get(kind, ())] if kind not in self._lost else []
        if all(_recorded.get(id(grad)) is grad or any(grad is one for one in seen) for grad in added.grads()):
            return True
        self._passing, self._in_vain = list(added.known), self._in_vain + 1
        return False

    @property
    def are_hopeless(self) -> bool:
        return self._in_vain > _IN_VAIN
