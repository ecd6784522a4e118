"""Tunings whose trials are real, and what they took is made up: no machine is too slow or too busy for them. Also in a
process of its own, to be killed: `python tuning.py FOLDER SCRIPT`, which prints what a listener hears."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from hotlap.measure import tune as tuning
from hotlap.measure.bench import Bench
from hotlap.measure.order import Order
from hotlap.measure.trial import Trial, Trials
from hotlap.observe.launch import Target
from hotlap.report.folder import render
from hotlap.technique import Choice


class Spoken:
    """Takes down what a listener hears; `starts` hears of it when a trial begins."""

    def __init__(self, starts: Callable[[list[str]], None] = lambda said: None) -> None:
        self.lines: list[str] = []
        self._starts = starts

    def started(self, label: str, role: str) -> None:
        self._starts(self.lines)

    def stepped(self, steps: int) -> None: ...

    def ended(self, label: str, role: str, verdict: str) -> None:
        self.said(f"{role}: {label}: {verdict}")

    def said(self, sentence: str) -> None:
        self.lines.append(sentence)

    def stopped(self) -> None: ...


_numbers = itertools.count()


class MadeUpTimes:
    """Steps of 40 ms that differ by a thousandth from trial to trial, faster by the factors of the techniques in them.
    The server is the caller's, who may use it for the next tuning too."""

    def __init__(self, trials: Trials, factors: dict[str, float]) -> None:
        self._trials, self._factors, self._count, self._number = trials, factors, 0, next(_numbers)

    def __enter__(self) -> MadeUpTimes:
        return self

    def __exit__(self, *_: object) -> None: ...

    def exchange(self, name: str) -> str:
        return self._trials.exchange(f"{name}-{self._number}")

    def run(self, order: Order, on_progress: Any = None) -> Trial:
        short = dataclasses.replace(order, seconds=order.seconds / 100, seconds_at_most=0.0)
        trial = self._trials.run(short, on_progress)
        self._count += 1
        if trial.run is None:
            return trial
        level = 0.04 * (1 + self._count % 3 / 1000)
        for choice in order.choices:
            level /= self._factors.get(Choice.from_json(choice).technique.id, 1.0)
        steps = len(trial.run.step_seconds)
        parts = [[0.9 * level, 0.0, 0.1 * level, 0.0, 0.0, 0.0, 0.0]] * steps  # mostly waits
        made_up = {"step_seconds": [level] * steps, "step_parts": parts, "startup_seconds": 0.5, "queue_seconds": 0.0}
        return dataclasses.replace(trial, run=dataclasses.replace(trial.run, **made_up), seconds=0.5 + level * steps)


@contextlib.contextmanager
def made_up(trials: Trials, **factors: float) -> Iterator[None]:
    """Every tuning in here has them, and two seconds go by with each trial."""
    known = {name.replace("_", "-"): factor for name, factor in factors.items()}
    with (
        mock.patch.object(tuning, "Trials", lambda: MadeUpTimes(trials, known)),
        mock.patch.object(Bench, "spent", property(lambda bench: 2.0 * bench.measured)),
    ):
        yield


def tune(trials: Trials, folder: str, script: Sequence[str], listener: Spoken, fresh: bool = False) -> dict[str, Any]:
    """The report, as JSON has it."""
    import planted  # now: which file that is may be what is tested

    techniques = [planted.SleepsLess(), planted.SleepsLittleLess(), planted.Breaks()]
    wishes = tuning.Wishes(120.0, folder=folder, fresh=fresh, accept_writes=True)
    with made_up(trials, sleeps_less=20.0, sleeps_little_less=1.0001):
        report, _, _ = tuning.tune(Target(script[0], tuple(script[1:])), techniques, [], wishes, listener)
    found: dict[str, Any] = json.loads(render(report, "json"))
    return found


class Aloud(Spoken):
    def said(self, sentence: str) -> None:
        print(sentence, flush=True)


if __name__ == "__main__":
    with Trials() as server:
        tune(server, sys.argv[1], sys.argv[2:], Aloud())
