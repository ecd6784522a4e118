"""Replays held against the module itself: the same call in the same state, made both ways and compared.

A graph runs the kernels that the plain call runs, so mostly nothing differs. Kernels that add in no fixed order differ
in the last bits, in 16 bits by up to about one percent; what is wrong, such as a place that was not filled or another
dropout mask, by tenths and more. Generators must end where the plain call leaves them, to the bit."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from hotlap.parts.recorded_call import Found, PlainCall, RecordedCall, State, Ticket, gradients

LIMIT = 0.05
_SMALL = 0.01  # of all together: what is smaller is held against this, since rounding is all that some gradients are


class Proof(Protocol):
    """Where differences are taken down; one beyond the limit ends the swap."""

    @property
    def failed(self) -> bool: ...

    def add(self, difference: float) -> None: ...


class Reference:
    """The plain call on the same inputs, with gradients that go nowhere else."""

    def __init__(self, plain: PlainCall, tensors: Sequence[torch.Tensor]) -> None:
        inputs = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
        stand_ins = plain.stand_ins()
        self._targets = [*(t for t in inputs if t.requires_grad), *stand_ins]
        self.outputs = plain(inputs, stand_ins).tensors

    def gradients(self, given: Sequence[torch.Tensor | None]) -> Found:
        return gradients(self.outputs, given, self._targets)


def proven(call: RecordedCall, tensors: Sequence[torch.Tensor], proof: Proof) -> list[torch.Tensor] | None:
    """The outputs of a replay that was as it should be. None where it was not: nothing has happened then."""
    before = State(call.plain)
    try:
        reference = Reference(call.plain, tensors)
        theirs = State(call.plain)
    finally:
        before.put_back()
    ticket = Ticket()
    outs = call(tensors, ticket)
    ours = State(call.plain)
    apart = max(distance(outs, reference.outputs), distance(ours.values, theirs.values))
    proof.add(apart if torch.equal(ours.random, theirs.random) else math.inf)
    moved = [not torch.equal(a, b) for a, b in zip(before.values, theirs.values, strict=True)]
    call.is_repeatable &= not any(map(operator.gt, moved, call.plain.is_statistic))
    if proof.failed:
        before.put_back()
        return None
    ticket.judge = _judge(call, reference, proof)
    return outs


def _judge(call: RecordedCall, reference: Reference, proof: Proof) -> Callable[[Found, Sequence[Any]], Found]:
    """Gradients that overflow both ways, as a scaled loss lets them at first, prove nothing."""

    def judge(found: Found, given: Sequence[Any]) -> Found:
        state = State(call.plain)
        theirs = reference.gradients(given)
        state.put_back()  # a checkpoint computes forward again, and batch norms count that
        if _overflow(found) and _overflow(theirs):
            return theirs
        call.proven += 1
        is_alike = [grad is None for grad in found] == [grad is None for grad in theirs]
        ours = [grad for grad in found if grad is not None]
        proof.add(distance(ours, [grad for grad in theirs if grad is not None]) if is_alike else math.inf)
        return theirs if proof.failed else found

    return judge


def _overflow(grads: Found) -> bool:
    return not all(bool(grad.isfinite().all()) for grad in grads if grad is not None)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@torch.no_grad()
def distance(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """The largest difference of two tensors, relative to the second's size. What is not finite must be so in both."""
    rows = []
    for mine, other in zip(ours, theirs, strict=True):
        one, two = _real(mine.detach()).double(), _real(other.detach()).double()
        is_finite = one.isfinite()
        if not torch.equal(is_finite, two.isfinite()):
            return math.inf
        one, two = one.where(is_finite, 0.0), two.where(is_finite, 0.0)
        rows.append(torch.stack([torch.linalg.vector_norm(one - two), torch.linalg.vector_norm(two)]))
    if not rows:
        return 0.0
    sizes: list[list[float]] = torch.stack(rows).tolist()
    floor = _SMALL * math.sqrt(sum(size**2 for _, size in sizes))
    return max(apart / max(size, floor, 1e-30) if apart else 0.0 for apart, size in sizes)
