"""Torch's own update of an optimizer as compiled code, held against the plain one before it is trusted.

What is compiled is the function behind `step` (`torch.optim.adadelta.adadelta` and its like), given lists of tensors.
They may be others in the next update, as after a checkpoint was loaded: nothing is compiled anew for them. Learning
rates are tensors for the same reason. The optimizer itself stays as it is."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch

from hotlap.parts.captured_calls import Alone
from hotlap.parts.compilable import graphs_made, is_interpreted
from hotlap.parts.interruptions import pass_on
from hotlap.parts.replay_proof import Proof
from hotlap.parts.update_grounds import kind_of, state_of, unfit, weights_of

KINDS = ("NAdam", "Adamax", "RMSprop", "ASGD", "Rprop", "Adadelta")  # without a fused kernel
LIMIT = 1e-3  # how far the first update may be from the plain one, in proportion to what that changes
_COUNTING = ("NAdam", "Adamax", "ASGD")  # compiled, they work with counts in float32
_VARIANTS = 4  # of one update, for other settings or other parameters without gradients
_ROUNDINGS = 2  # of a number, which are no difference


class NotCompiled(Exception):
    """There is no code for this update. Nothing has been done."""


class CompiledForm:
    """The update of one optimizer, compiled. `refused` says why it is not; `graphs` counts what was made."""

    def __init__(self, optimizer: Any, proof: Proof | None = None, compile: Callable[..., Any] | None = None) -> None:
        self.refused, self.graphs, self.is_proven = unfit(optimizer), 0, False
        self._proof, self._may_compile = proof or Alone(), False
        self._calls: list[tuple[Any, dict[str, Any]]] = []
        self._rates: Sequence[torch.Tensor] = ()
        kind = kind_of(optimizer)
        if self.refused or kind not in KINDS:
            self.refused = self.refused or f"{kind} has a fused kernel, which is as good"
            return
        if kind in _COUNTING and any(p.dtype is torch.float64 for p in weights_of(optimizer)):
            self.refused = f"{kind} counts in float32 then, which is too coarse for weights in float64"
            return
        owner, name = getattr(torch.optim, kind), kind.lower()
        self._function = getattr(sys.modules[owner.__module__], name)
        step = inspect.unwrap(owner.step)  # under torch's decorators, which break a graph
        self._gather = FunctionType(step.__code__, {**step.__globals__, name: self._note}, name, step.__defaults__)
        own = FunctionType(_run.__code__.replace(), _run.__globals__)  # dynamo keeps what it compiles with the code
        compile = compile or inspect.unwrap(torch.compile)  # as it is: the script does not compile this
        self._run: Any = compile(own, fullgraph=True, dynamic=False)
        self._run_again: Any = None  # where there is code for it; in this thread alone, and compiling nothing

    def __call__(self, optimizer: Any, rates: Sequence[torch.Tensor] = ()) -> None:
        """`rates`: one for each group, where the groups have plain numbers."""
        self._rates = rates
        try:
            with torch.no_grad():
                self._gather(optimizer)
                (self._run if self._may_compile else self._run_again)(self._function, self._calls)
        finally:
            self._calls = []

    @torch.no_grad()
    def proven(self, optimizer: Any, ours: Callable[[], object], plain: Callable[[], object]) -> bool:
        """Whether ours is as good as the plain update, from the same state. The plain one has been done once then, and
        what it made is kept: all that either of them writes to is put back before."""
        if self.is_watched():
            plain()
            return False
        places = [p for p in weights_of(optimizer) if p.grad is not None]
        places += [value for value in state_of(optimizer) if isinstance(value, torch.Tensor)]
        try:
            before, made = ([one.detach().clone() for one in places] for _ in range(2))
        except RuntimeError:
            return self._done(plain, "there is no memory to hold a compiled update against the plain one")
        try:
            self._compiled(ours)
            torch._foreach_copy_(made, places)
            torch._foreach_copy_(places, before)
            plain()
            apart = _apart(made, places, before)
        except Exception as error:  # of the compiler, or for want of memory; the plain update's own comes once more
            torch._foreach_copy_(places, before)
            del before, made
            pass_on(error)
            return self._done(plain, f"the update cannot be compiled: {type(error).__name__}: {error}".splitlines()[0])
        if math.isnan(apart):  # what overflows tells nothing, and what was compiled for it is there
            self.is_proven = False
            return False
        self._proof.add(apart)
        if self._proof.failed:
            self.refused = f"compiled it is not the same update: off by {apart:.3g}"
        elif self.graphs > _VARIANTS:
            self.refused = f"it is compiled again and again, into {self.graphs} graphs by now"
        self.is_proven = not self.refused
        return self.is_proven

    @staticmethod
    def is_watched() -> bool:
        """Whether somebody wants to see what is not compiled, or every operation."""
        return is_interpreted() or torch._C._len_torch_dispatch_stack() > 0

    def _compiled(self, ours: Callable[[], object]) -> None:
        made, self._may_compile = graphs_made(), True
        try:
            ours()
        finally:
            self._may_compile = False
        self._run_again = self._run_again or sys.modules["torch._dynamo"].run(self._run)
        self.graphs += graphs_made() - made

    def _done(self, plain: Callable[[], object], reason: str) -> bool:
        self.refused = reason
        plain()
        return False

    def _note(self, weights: list[torch.Tensor], *lists: Any, **numbers: Any) -> None:
        """In the place of torch's function, to see what it would be given. Compiled, its form for batches of tensors
        with all numbers in tensors serves on the CPU as well. Parameters themselves would be marked by the compiler,
        and the mark would go into whatever the script pickles."""
        given: dict[str, Any] = {"foreach": True, "capturable": True}
        if self._rates and "lr" in numbers:
            given["lr"] = self._rates[len(self._calls)]
        self._calls.append((([one.detach() for one in weights], *lists), {**numbers, **given}))


def _run(function: Any, calls: Any) -> None:
    if not torch.compiler.is_compiling():  # the compiler takes this out: it is reached where no code fits
        raise NotCompiled("torch compiles nothing now")
    for lists, numbers in calls:
        function(*lists, **numbers)


def _apart(made: list[torch.Tensor], plain: list[torch.Tensor], before: list[torch.Tensor]) -> float:
    """The largest difference, relative to what the plain update changed. Not a number where that overflowed."""
    found = [0.0]
    for ours, theirs, old in zip(made, plain, before, strict=True):
        one, two, three = (tensor.detach().double() for tensor in (ours, theirs, old))
        apart, changed, size = (float(torch.linalg.vector_norm(t)) for t in (one - two, two - three, two))
        if not math.isfinite(changed):
            return math.nan
        if not apart <= (rounding := _ROUNDINGS * torch.finfo(theirs.dtype).eps * size):
            found.append((apart - rounding) / changed if changed else math.inf)
    return max(found) if all(map(math.isfinite, found)) else math.inf
