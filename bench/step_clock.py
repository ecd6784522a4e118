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
from collections.abc import Callable
from itertools import pairwise
from typing import Any

ORDER = "HOTLAP_STEP_CLOCK"  # path, warmup_steps, warmup_seconds, window_seconds, period; as JSON


class Marks:
    """Points in time, on the device where there is one in use: events, read only when all of them are over."""

    def __init__(self) -> None:
        cuda = sys.modules["torch"].cuda if "torch" in sys.modules else None
        self._cuda: Any = cuda if cuda is not None and cuda.is_initialized() else None
        self.taken: list[Any] = []

    def take(self) -> None:
        if self._cuda is None:
            self.taken.append(time.perf_counter())
        else:
            mark = self._cuda.Event(enable_timing=True)
            mark.record()
            self.taken.append(mark)

    def wait(self) -> None:
        if self._cuda is not None:
            self._cuda.synchronize()

    def between(self) -> list[float]:
        """Seconds from each to the next."""
        self.wait()
        if self._cuda is None:
            return [b - a for a, b in pairwise(self.taken)]
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(self.taken)]


class Clock:
    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.born = time.perf_counter()
        self.steps = 0
        self.first = self.opened = 0.0
        self.marks = Marks()
        self.optimizer: Any = lambda: None  # a weak reference

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
            self.marks.take()
            taken = len(self.marks.taken) - 1
            if taken % self.order["period"] == 0 and now - self.opened >= self.order["window_seconds"]:
                self._close(taken)
        elif self.steps >= self.order["warmup_steps"] and now - self.first >= self.order["warmup_seconds"]:
            self.marks = Marks()
            self.marks.wait()
            self.marks.take()
            self.opened = time.perf_counter()

    def _close(self, taken: int) -> None:
        self.marks.wait()
        seconds = time.perf_counter() - self.opened
        optimizer = self.optimizer()
        groups = optimizer.param_groups if optimizer is not None else []
        figures = {
            "mean_seconds": seconds / taken,
            "step_seconds": self.marks.between(),
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


class AfterOptimizers:
    """Finds one module by the others' help and calls somebody behind its loading."""

    name = "torch.optim.optimizer"

    def __init__(self, behind: Callable[[Any], object]) -> None:
        self.behind = behind

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                self.behind(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def run_the_next(own: str) -> None:
    """The sitecustomize that ours stands in front of."""
    here = os.path.dirname(os.path.abspath(own))
    path = [entry for entry in sys.path if os.path.abspath(entry) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    run_the_next(__file__)
    if ORDER in os.environ:
        CLOCK = Clock(json.loads(os.environ[ORDER]))
        sys.meta_path.insert(0, AfterOptimizers(lambda module: module.register_optimizer_step_post_hook(CLOCK.updated)))
