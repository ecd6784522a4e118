"""An optimizer's whole update, compiled: for optimizers without a fused kernel, whose plain update starts an operation
of its own for every tensor and every step of its arithmetic.

    from hotlap.parts.compiled_update import CompiledUpdate

    compiled = CompiledUpdate(optimizer)
    compiled.step(optimizer.step)  # in place of the update; plain until it has come the same way three times

The first compiled update is held against the plain one. The optimizer itself, its numbers and its checkpoints stay as
they are. This is for parameters in main memory; on a GPU `CapturedUpdate(optimizer, form=CompiledForm(optimizer))`
records compiled updates as a CUDA graph."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from hotlap.parts.captured_update import serving
from hotlap.parts.compiled_form import CompiledForm, NotCompiled
from hotlap.parts.update_grounds import manner_of, no_number

_STEADY = 3  # updates of one manner before it is compiled
_PATIENCE = 32  # updates in a row without compiled code, after which no more is tried


class CompiledUpdate:
    """The updates of one optimizer. `refused` says why it has given up; `replays` how often compiled code did the
    work."""

    def __init__(self, optimizer: torch.optim.Optimizer, form: CompiledForm | None = None) -> None:
        self._optimizer, self._form = weakref.ref(optimizer), form or CompiledForm(optimizer)
        self.replays, self.refused = 0, self._form.refused
        self._rates: list[torch.Tensor] = []
        self._manner: Any = None
        self._sightings = self._misses = 0
        serving[optimizer] = self

    def step(
        self, plain: Callable[[], Any], has_closure: bool = False, prepare: Callable[[], object] = lambda: None
    ) -> Any:
        """`prepare` is called first."""
        prepare()
        optimizer = self._optimizer()
        if optimizer is None or self.refused or self._form.is_watched():
            return plain()
        why = "each update calls the model itself (a closure)" if has_closure else _hindrance(optimizer)
        if not why and self._ran(optimizer):
            self.replays, self._misses = self.replays + 1, 0
            return None
        self._misses += 1
        out = plain() if why else self._slowly(optimizer, plain)
        if self._misses >= _PATIENCE:
            self.refused = self.refused or why or "updates never come the same way three times"
        return out

    def undo(self) -> None:
        optimizer = self._optimizer()
        if optimizer is not None:
            serving.pop(optimizer, None)
        self.refused = self.refused or "undone"

    def _ran(self, optimizer: Any) -> bool:
        if not self._form.is_proven:
            return False
        try:
            self._form(optimizer, self._filled(optimizer))
        except NotCompiled:
            return False
        return True

    def _slowly(self, optimizer: Any, plain: Callable[[], Any]) -> Any:
        """An update that no code is there for; it may be the one to compile."""
        manner = manner_of(optimizer)
        self._sightings = self._sightings + 1 if manner is not None and manner == self._manner else 1
        self._manner = manner
        if self._sightings < _STEADY:
            return plain()
        self._form.proven(optimizer, functools.partial(self._form, optimizer, self._filled(optimizer)), plain)
        self.refused = self._form.refused
        return None

    def _filled(self, optimizer: Any) -> list[torch.Tensor]:
        """The learning rates of this update, as exact as the numbers are."""
        groups = optimizer.param_groups
        while len(self._rates) < len(groups):
            self._rates.append(torch.zeros((), dtype=torch.float64, device="cpu"))
        for rate, group in zip(self._rates, groups, strict=False):
            rate.fill_(group["lr"])
        return self._rates


def _hindrance(optimizer: Any) -> str:
    """Why this update is left as it is; "" where nothing is in the way."""
    for group in optimizer.param_groups:
        if why := no_number(group["lr"]):
            return why
        for p in group["params"]:
            if p.grad is None:
                continue
            if not p.is_cpu:
                return "the parameters are not all in main memory"
            if p.grad.layout is not torch.strided or p.is_complex():
                return "gradients are sparse or complex"
    return ""
