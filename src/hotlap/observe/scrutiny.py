"""What only a profile looks at: how batches are made, memory, what the model is fed, and at the end, in a few extra
steps, the layers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from typing import Any

from hotlap.observe import events as at
from hotlap.observe.anatomy import host_spans
from hotlap.observe.feeding import Feeding
from hotlap.observe.inputs import Inputs
from hotlap.observe.leaks import Leaks
from hotlap.observe.look import Look, why_not
from hotlap.observe.memory import Memory
from hotlap.observe.patch import Patch
from hotlap.observe.run import Run
from hotlap.observe.scrutiny_facts import LookFacts, MemoryFacts
from hotlap.observe.watch import Watch

clock = time.perf_counter

_ALL_SEEN, _SEEN = 64, 4  # the first calls of roots, then one in so many: their inputs are looked at


class Scrutiny:
    """`step` at every boundary; `next` begins the closer look and says whether it wants further steps."""

    def __init__(self, patch: Patch, watch: Watch, folder: str) -> None:
        self._watch = watch
        self._feeding = Feeding(patch, folder)
        self._memory, self._inputs, self._leaks = Memory(), Inputs(), Leaks()
        self._look: Look | None = None
        self._is_looking = False
        self._calls = 0
        self._number = -1  # of the look's own event in the ledger
        self._began = 0.0
        self._found = LookFacts()
        self._levels = MemoryFacts()
        patch.at(patch.joints.root_called, self._root_called, depth=-2)
        patch.at(patch.joints.method_called, self._root_called, depth=-2)

    def step(self, count: int) -> None:
        self._memory.step(count)

    def next(self) -> bool:
        watch = self._watch
        if self._look is None:
            reason = why_not()
            if reason or not (watch.roots or watch.compiles):
                self._found = LookFacts(skipped=reason or "no model was seen at work")
                return False
            watch.refresh()
            self._look = Look(watch.roots, watch.optimizers, watch.device, watch.compiles)
            self._began = clock()
            self._number = watch.ledger.note(at.LOOK, 0, self._began, math.inf)
            self._is_looking = True
        self._leaks.look(watch.steps, watch.roots, watch.optimizers)
        self._read_memory()  # before the look's last word, which takes memory of its own
        if self._look.next():
            return True
        self._end()
        return False

    def added_to(self, run: Run, is_over: bool) -> Run:
        """A run's record with all that is known here by now. The script may be over in the midst of a look."""
        if self._look is None:
            self._read_memory()
        elif self._is_looking and is_over:
            self._end()
        self._feeding.facts()
        memory = dataclasses.replace(self._levels, activations=self._found.activations, growth=self._leaks.facts())
        return dataclasses.replace(run, memory=memory, look=self._found)

    def _read_memory(self) -> None:
        if self._watch.roots or self._watch.optimizers:
            self._levels = self._memory.facts(self._watch.roots, self._watch.optimizers)

    def _end(self) -> None:
        assert self._look is not None
        end = clock()
        self._is_looking = False
        self._look.close()
        self._watch.ledger.ended(self._number, end)
        spans = host_spans(self._watch.ledger.events(), self._began, end)
        self._found = dataclasses.replace(self._look.facts(spans), inputs=self._inputs.facts())

    def _root_called(self, proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
        self._calls += 1
        if self._is_looking or self._calls < _ALL_SEEN or self._calls % _SEEN == 0:
            self._see(root, args, kwargs)
        return proceed(root, args, kwargs)

    def _see(self, root: Any, args: Any, kwargs: Any) -> None:
        if not root.training or sys.modules["torch"]._C._get_tracing_state() is not None:
            return
        with contextlib.suppress(Exception):  # inputs of any kind at all: never the script's trouble
            self._inputs.saw(root, args, kwargs)
            if self._is_looking:
                self._inputs.look(root, args, kwargs)
