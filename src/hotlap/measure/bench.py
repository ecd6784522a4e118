"""Timing plans by trials: a plan in, a level (seconds a step) out, with every raw series kept for the report."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hotlap.measure.order import Order
from hotlap.measure.order import Role as ParityRole
from hotlap.measure.pace import pace
from hotlap.measure.parity import SEED
from hotlap.measure.stats import level
from hotlap.measure.trial import Trial, Trials
from hotlap.observe.run import Run
from hotlap.report.findings import TrialTimes
from hotlap.technique import Choice

Role = Literal["baseline", "screen", "confirm", "ablation"]
_DISTURBED = 0.05  # run-queue delay as a share of wall clock times threads
_MOST_HOSTS = 50
_PATIENCE = 2.0  # a candidate that trains so many times longer than the script did is stopped where it is
_EPOCH_ALLOWANCE = 4.0  # a trial may be so many times longer to see past the end of an epoch


class Listener(Protocol):
    """Hears what happens, for a live display."""

    def started(self, label: str, role: str) -> None: ...
    def stepped(self, steps: int) -> None: ...
    def ended(self, label: str, role: str, verdict: str) -> None: ...
    def said(self, sentence: str) -> None: ...
    def stopped(self) -> None: ...


@dataclass(frozen=True)
class Timed:
    """One timed process."""

    level: float  # seconds a step
    run: Run
    ending: str
    seconds: float
    settled: bool


@dataclass(frozen=True)
class Untimed:
    """One process that gave no figure, and why."""

    ending: str
    run: Run | None
    log: str


class Bench:
    """Runs timing trials of one script and keeps what they showed."""

    def __init__(self, trials: Trials, order: Order, trial_seconds: float, listener: Listener) -> None:
        self._trials, self._order, self._listener = trials, order, listener
        self._seconds, self._steps_at_least = trial_seconds, 24
        self._crowded: set[str] = set()
        self.epoch_steps = 0  # of the shortest training epoch, where trials can see past it
        self._trained_seconds = 0.0  # what the script itself needed in its latest trial
        self.times: list[TrialTimes] = []
        self.hosts: list[str] = []  # that any trial tried to reach
        self.started = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def disturbed_share(self) -> float:
        return sum(t.disturbed for t in self.times) / len(self.times) if self.times else 0.0

    def see_past_an_epoch(self, run: Run) -> bool:
        """Lengthen trials so that caches fill and the last, smaller batch shows up, where that is affordable."""
        steps = [-(-ld.length // ld.batch_size) for ld in run.loaders if ld.trains and ld.length and ld.batch_size]
        if not steps or not run.step_seconds:
            return False
        wanted = min(steps) + 24
        if wanted * level(run.step_seconds) > _EPOCH_ALLOWANCE * self._seconds:
            return False
        self._steps_at_least, self.epoch_steps = max(self._steps_at_least, wanted), min(steps)
        return True

    def time(self, plan: Sequence[Choice], label: str, role: Role) -> Timed | Untimed:
        """One trial; a disturbed one is repeated once, whichever arm it belongs to. A plan that is disturbed twice in
        a row crowds the machine by itself: that is its true speed, and it is not repeated again."""
        timing = self._once(plan, label, role)
        name = str([str(choice) for choice in plan])
        if not isinstance(timing, Timed) or not self.times[-1].disturbed or name in self._crowded:
            return timing
        again = self._once(plan, label, role)
        if not isinstance(again, Timed):
            return timing
        if self.times[-1].disturbed:
            self._crowded.add(name)
        if role == "screen" and timing.level < again.level:
            return timing  # disturbances only ever slow down; a screening claims nothing, so the better one counts
        return again

    def parity(
        self, plan: Sequence[Choice], label: str, role: ParityRole, folder: str, steps: int, seed: int = SEED
    ) -> Trial:
        self._listener.started(label, "parity")
        order = dataclasses.replace(
            self._order,
            choices=[choice.to_json() for choice in plan],
            steps=steps,
            parity=role,
            parity_folder=folder,
            seed=seed,
        )
        trial = self._run(order)
        self._listener.ended(label, "parity", trial.ending)
        return trial

    def _run(self, order: Order) -> Trial:
        trial = self._trials.run(order, self._listener.stepped)
        self.hosts = list(dict.fromkeys([*self.hosts, *trial.hosts]))[:_MOST_HOSTS]
        return trial

    def _once(self, plan: Sequence[Choice], label: str, role: Role) -> Timed | Untimed:
        self._listener.started(label, role)
        order = dataclasses.replace(
            self._order,
            choices=[choice.to_json() for choice in plan],
            seconds=self._seconds,
            steps_at_least=self._steps_at_least,
            seconds_at_most=_PATIENCE * self._trained_seconds if plan else 0.0,
        )
        trial = self._run(order)
        timing = _timing(trial)
        run = trial.run
        if isinstance(timing, Timed) and not plan:
            self._trained_seconds = sum(timing.run.step_seconds)
        if run is not None:
            warm = pace(run).warmup_steps if run.step_seconds else 0
            times = run.step_seconds, warm, run.startup_seconds
            self.times.append(TrialTimes(label, role, trial.ending, *times, is_disturbed(run)))
        self._listener.ended(
            label, role, f"{1e3 * timing.level:.1f} ms" if isinstance(timing, Timed) else timing.ending
        )
        return timing


def is_disturbed(run: Run) -> bool:
    """Whether its threads stood runnable but without a core for too long: other work was there too."""
    return run.queue_seconds > _DISTURBED * run.wall_seconds * run.threads


def _timing(trial: Trial) -> Timed | Untimed:
    run = trial.run
    if run is None or not trial.good:
        return Untimed(trial.ending, run, trial.log)
    if run.withdrawn:
        return Untimed(f"could not be applied: {run.withdrawn[0]}", run, trial.log)
    if not all(map(math.isfinite, run.losses)):
        return Untimed("the loss became non-finite", run, trial.log)
    if len(run.step_seconds) < 3:
        return Untimed(f"only {len(run.step_seconds)} training steps were seen", run, trial.log)
    found = pace(run)
    return Timed(found.level, run, trial.ending, trial.seconds, found.settled)
