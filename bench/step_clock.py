"""The one clock for every variant: copied as `sitecustomize.py` into a folder on PYTHONPATH, so that it is there before
the script is, and imports neither hotlap nor torch of its own accord.

A step is one update of the first optimizer that updates anything, or of the next one when that is gone. After the
warm-up a window is opened; it closes after a whole number of periods (an epoch, or whatever else comes round) and at
least so many seconds. The device is waited for where the window opens and where it closes, nowhere else; in between a
GPU is marked by events, since the host may run hundreds of steps ahead of it. Then the figures are written and the
script is told to end."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
import time
import weakref
from itertools import pairwise
from typing import Any

ORDER = "HOTLAP_STEP_CLOCK"  # path, warmup_steps, warmup_seconds, window_seconds, period; as JSON


class Clock:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.born = time.perf_counter()
        self.steps = 0
        self.first = self.opened = 0.0
        self.marks: list[Any] = []
        self.optimizer: Any = lambda: None  # a weak reference
        self.is_on_gpu = False

    def updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """torch calls this after every update of every optimizer."""
        if self.optimizer() is None:
            self.optimizer = weakref.ref(optimizer)
        if optimizer is self.optimizer():
            self.step_taken()

    def step_taken(self) -> None:
        """Also called by loops that replay a captured update, in which torch calls nobody."""
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized() and cuda.is_current_stream_capturing():
            return  # being recorded, not done
        self.steps += 1
        now = time.perf_counter()
        self.first = self.first or now
        if self.opened:
            self._mark(cuda)
            taken = len(self.marks) - 1
            if taken % self.order["period"] == 0 and now - self.opened >= self.order["window_seconds"]:
                self._close(cuda, taken)
        elif self.steps >= self.order["warmup_steps"] and now - self.first >= self.order["warmup_seconds"]:
            self.is_on_gpu = cuda.is_initialized()
            if self.is_on_gpu:
                cuda.synchronize()
            self._mark(cuda)
            self.opened = time.perf_counter()

    def _mark(self, cuda: Any) -> None:
        if self.is_on_gpu:
            mark = cuda.Event(enable_timing=True)
            mark.record()
        else:
            mark = time.perf_counter()
        self.marks.append(mark)

    def _close(self, cuda: Any, taken: int) -> None:
        if self.is_on_gpu:
            cuda.synchronize()
        seconds = time.perf_counter() - self.opened
        between = (lambda a, b: a.elapsed_time(b) / 1e3) if self.is_on_gpu else (lambda a, b: b - a)
        optimizer = self.optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        figures = {
            "mean_seconds": seconds / taken,
            "step_seconds": [between(a, b) for a, b in pairwise(self.marks)],
            "start_seconds": self.first - self.born,
            "warmup_seconds": self.opened - self.first,
            "warmup_steps": self.steps - taken,
            "optimizer": type(optimizer).__name__,
            "weights": sum(weight.numel() for group in groups for weight in group["params"]),
        }
        with open(self.order["path"] + ".part", "w") as file:
            json.dump(figures, file)
        os.replace(self.order["path"] + ".part", self.order["path"])
        self.order["window_seconds"] = float("inf")  # whoever catches what follows is ended from outside
        raise SystemExit(0)


class _AfterOptimizers:
    """Finds one module by the others' help and puts the clock behind its loading."""

    name = "torch.optim.optimizer"

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                module.register_optimizer_step_post_hook(self.clock.updated)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_the_next() -> None:
    """The sitecustomize that ours stands in front of."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    _run_the_next()
    if ORDER in os.environ:
        CLOCK = Clock(json.loads(os.environ[ORDER]))
        sys.meta_path.insert(0, _AfterOptimizers(CLOCK))
