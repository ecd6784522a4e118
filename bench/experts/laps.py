"""What every expert's loop shares: its arguments, the count and time of its laps, and a log that waits for nothing."""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch


def parser(words: str | None, warmup: int) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--steps", type=int, default=1000, help="steps to measure; 0: go on until ended from outside")
    made.add_argument("--warmup", type=int, default=warmup, help="steps before them")
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--capture", choices=("step", "model"), default="step", help="see captured.py")
    return made


def from_public(folder: str | None, what: str) -> None:
    """Make a public repository importable, or say that it is needed."""
    if folder is None or not Path(folder).is_dir():
        sys.exit(f"this takes its network from {what}: give the folder with --public")
    sys.path.insert(0, folder)


def course(name: str) -> Any:
    """The script in bench/courses, as a module."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    return importlib.import_module(f"courses.{name}")


class Laps:
    """Counts steps. On a GPU the device's clock is read, once, at the end: the host runs far ahead of it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.warmup, self.wanted = options.warmup, options.steps
        self.is_on_gpu = torch.device(options.device).type == "cuda"
        self.count = 0
        self.marks: list[Any] = []
        self.losses: list[torch.Tensor] = []
        self.began, self.warm = time.perf_counter(), 0.0

    def done(self, loss: torch.Tensor) -> bool:
        """After each step; True when it was the last one."""
        self.count += 1
        if self.count in (1, self.warmup + self.wanted):
            self.losses.append(loss.detach().clone())  # a captured step writes its loss into one place
        if not self.wanted or self.count < self.warmup:
            return False
        if self.count == self.warmup:
            self._wait()
            self.warm = time.perf_counter()
        self.marks.append(self._mark())
        return self.count == self.warmup + self.wanted

    def report(self, name: str, **more: Any) -> None:
        self._wait()
        between = (lambda a, b: a.elapsed_time(b)) if self.is_on_gpu else (lambda a, b: 1e3 * (b - a))
        times = [between(a, b) for a, b in pairwise(self.marks)]
        figures = {
            "expert": name,
            "median_ms": round(statistics.median(times), 4),
            "mean_ms": round(statistics.fmean(times), 4),
            "steps": len(times),
            "warmup_seconds": round(self.warm - self.began, 2),
            "loss_first": round(float(self.losses[0]), 4),
            "loss_last": round(float(self.losses[-1]), 4),
        }
        print(json.dumps(figures | more))

    def _mark(self) -> Any:
        if not self.is_on_gpu:
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        return mark

    def _wait(self) -> None:
        if self.is_on_gpu:
            torch.cuda.synchronize()


class LateLog:
    """Prints every loss that was asked for, one request late, when it has long arrived."""

    def __init__(self, device: str) -> None:
        self.is_on_gpu = torch.device(device).type == "cuda"
        self.waiting: tuple[str, torch.Tensor, Any] | None = None

    def write(self, words: str, loss: torch.Tensor) -> None:
        self.flush()
        here = torch.empty((), pin_memory=self.is_on_gpu)
        here.copy_(loss.detach(), non_blocking=True)
        arrived = torch.cuda.current_stream().record_event() if self.is_on_gpu else None
        self.waiting = (words, here, arrived)

    def flush(self) -> None:
        if self.waiting is not None:
            words, here, arrived = self.waiting
            if arrived is not None:
                arrived.synchronize()
            print(f"{words} loss {here.item():.6f}")
            self.waiting = None
