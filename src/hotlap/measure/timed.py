"""What one timed process came to: a figure, or why there is none."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from hotlap.measure.pace import pace
from hotlap.measure.trial import Trial
from hotlap.observe.run import Run

_FIRST_STEPS = 8
_ONCE = 0.75  # of what they take beyond others


@dataclass(frozen=True)
class Timed:
    """One timed process."""

    level: float  # seconds a step, or an epoch where whole ones were asked for
    run: Run
    ending: str
    seconds: float
    settled: bool

    @property
    def seconds_again(self) -> float:
        """What another process with the same plan is likely to take: most of what makes the first steps slow is
        compiled or loaded by the driver, once and for all of them."""
        late = sum(max(0.0, seconds - self.level) for seconds in self.run.step_seconds[:_FIRST_STEPS])
        return self.seconds - _ONCE * late


@dataclass(frozen=True)
class Untimed:
    """One process that gave no figure, and why."""

    ending: str
    run: Run | None
    log: str
    level: float | None = None  # where only something of ours stood aside: as fast as the rest is


def whole_epoch(run: Run) -> tuple[float, bool] | None:
    """Seconds, after the first, in which caches fill and workers start; None where no other ended."""
    return (statistics.median(run.epoch_seconds[1:]), True) if len(run.epoch_seconds) > 1 else None


def a_step(run: Run) -> tuple[float, bool] | None:
    found = pace(run)
    return found.level, found.settled


def timed(trial: Trial, figure: Callable[[Run], tuple[float, bool] | None] = a_step) -> Timed | Untimed:
    run = trial.run
    if run is None or not trial.good:
        return Untimed(trial.ending, run, trial.log)
    if not all(map(math.isfinite, run.losses)):
        return Untimed("the loss became non-finite", run, trial.log)
    if len(run.step_seconds) < 3:
        seen = len(run.step_seconds)
        return Untimed(f"only {seen} training step{'' if seen == 1 else 's'} seen in its own process", run, trial.log)
    found = figure(run)
    if found is None:
        return Untimed("it ended before its second epoch did", run, trial.log)
    if run.withdrawn:
        return Untimed(f"could not be applied: {run.withdrawn[0]}", run, trial.log, found[0])
    return Timed(found[0], run, trial.ending, trial.seconds, found[1])
