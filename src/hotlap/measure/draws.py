"""Several draws at one state: the last steps of a parity run, each from the same weights and batch with another seed.

A technique may draw other random numbers of the same distribution, as dropout does in another memory layout. In one
draw that looks like dropout left out; over several draws the losses of both spread alike, or they do not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from hotlap.measure import states

DRAWS = 24  # with 16, a test that heavy tails do not mislead saw a doubled spread less often than one that they do


class Draws:
    """The reference's state, its batches and what came of them. The reference keeps it for its candidates."""

    def __init__(self, folder: str, is_reference: bool) -> None:
        self._path, self._is_reference = os.path.join(folder, "draws.pt"), is_reference
        self._known: dict[str, Any] = {}
        self._batches: list[Any] = []
        self._handed = 0
        self._input = self._first_input = ""  # fingerprints, where no loader hands out batches
        self._gradient: list[Any] = []
        self._direction: list[Any] = []  # the sum of the reference's gradients over the first half of its draws
        self.losses: list[list[float]] = []  # a list for each draw: one for each backward in the step
        self.along: list[float] = []  # over the second half: how far the gradient goes into that direction

    @property
    def number(self) -> int:
        return len(self.losses)

    def start(self, optimizers: Sequence[Any], roots: Sequence[Any]) -> bool:
        """Whether there is a state to draw at: the reference takes its own, a candidate gets the reference's."""
        import torch

        if self._is_reference:
            self._known = {"state": states.take(optimizers, roots)}
        elif os.path.exists(self._path):
            self._known = torch.load(self._path, weights_only=False)
            self._direction = self._known["direction"]
        return bool(self._known)

    def next(self, optimizers: Sequence[Any], roots: Sequence[Any]) -> bool:
        """Back to the state for one more draw, unless there were enough."""
        self._settle()
        if self.number == DRAWS:
            return False
        states.put_back(self._known["state"], optimizers, roots)
        for parameter in (p for optimizer in optimizers for p in states.parameters(optimizer)):
            if parameter.grad is not None:
                parameter.grad.zero_()  # where the script accumulates, draws must not
        self.losses.append([])
        self._handed, self._gradient, self._input = 0, [], ""
        if self.number == 1:
            self._batches, self._first_input = [], ""
        return True

    def batch(self, drawn: Any) -> Any:
        """What the script gets: in the first draw its own batch, then copies of that."""
        if self.number == 1:
            self._batches.append(_copy(drawn))
        self._handed += 1
        return _copy(self._batches[self._handed - 1]) if self._handed <= len(self._batches) else drawn

    def fed(self, fingerprint: str) -> bool:
        """Without a loader: what the root is called with first in this draw. Tells whether this is that call."""
        is_first_call = not self._input
        self._input = self._input or fingerprint
        if self.number == 1:
            self._first_input = self._input
        return is_first_call

    def went_back(self, loss: Sequence[float], gradient: list[Any]) -> None:
        self._gradient = self._gradient or _copy(gradient)
        self.losses[-1] += loss

    def _settle(self) -> None:
        """The draw at hand counts if it trained on the same as the first."""
        is_fed_alike = self._handed == len(self._batches) and self._input == self._first_input
        if self.losses and not (is_fed_alike and self._gradient):
            self.losses.pop()
        elif self.number > DRAWS // 2:
            self.along.append(states.dot([g.cpu() for g in self._gradient], self._direction))
        elif self.losses and self._is_reference:
            old = self._direction or [0.0] * len(self._gradient)
            self._direction = [a + b.cpu() for a, b in zip(old, self._gradient, strict=True)]

    def close(self) -> None:
        """All draws are made: the reference writes down what its candidates need."""
        import torch

        if self._is_reference and self.along:
            torch.save({"state": self._known["state"], "direction": self._direction}, self._path)


def _copy(batch: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    return tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, batch)
