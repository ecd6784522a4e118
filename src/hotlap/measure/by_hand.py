"""Weights that a script updates by hand, as in `p.data.add_(p.grad, alpha=-lr)`: nothing of torch tells when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotlap.observe.trips import BY_HAND_AFTER


class ByHand:
    """Looks like an optimizer of all that trains. Its update goes from a backward to the next sign of the loop: a
    draw, or a call of a model."""

    def __init__(self, roots: Sequence[Any]) -> None:
        trained = {id(p): p for root in roots for p in root.parameters() if p.requires_grad}
        self.param_groups = [{"params": list(trained.values())}]
        self.is_at_work = False

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What the script keeps beside its weights, such as a momentum, is not known."""


class HandFinder:
    """After some backwards without an optimizer it is clear that there is none."""

    def __init__(self) -> None:
        self.found: ByHand | None = None
        self._backwards = 0

    def look(self, optimizers: list[Any], roots: Sequence[Any]) -> None:
        """After each backward; what is found stands among the optimizers from then on."""
        self._backwards += 1
        if self.found is not None or optimizers or self._backwards <= BY_HAND_AFTER:
            return
        hand = ByHand(roots)
        if hand.param_groups[0]["params"]:
            self.found = hand
            optimizers.append(hand)

    def give_way(self, optimizers: list[Any]) -> None:
        """An optimizer is built after all: what went back before was no training, such as a search for a rate."""
        if self.found is not None:
            optimizers.remove(self.found)
            self.found = None
