"""Timing plans by trials: a plan in, a level (seconds a step) out, with every raw series kept for the report."""

from __future__ import annotations

import dataclasses
import math
import signal
import time
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from hotlap.measure.known import Known, Recalled
from hotlap.measure.order import Order
from hotlap.measure.order import Role as ParityRole
from hotlap.measure.pace import SHORT_EPOCH, pace
from hotlap.measure.parity import SEED
from hotlap.measure.stats import level
from hotlap.measure.timed import Timed, Untimed, a_step, timed, whole_epoch
from hotlap.measure.trial import Trial, Trials
from hotlap.measure.warmup import recompiles
from hotlap.observe.run import Run
from hotlap.records import from_json, to_json
from hotlap.report import figures
from hotlap.report.findings import TrialTimes
from hotlap.technique import Choice

Role = Literal["baseline", "screen", "confirm", "ablation", "epochs"]
_DISTURBED = 0.05  # run-queue delay as a share of wall clock times threads
_MOST_HOSTS = 50
_PATIENCE = 2.0  # a candidate that trains so many times longer than the script did is stopped where it is
_STEPS_AT_LEAST = 24
_SECONDS_AT_LEAST = 1.5  # of timed steps, however long the script takes to start
_EPOCH_ALLOWANCE = 4.0  # a trial may be so many times longer to see past the end of an epoch
_KILLED = "died of signal"
_ILLEGAL = f"{_KILLED} {int(signal.SIGILL)} "  # what the processor cannot do today it cannot do tomorrow
_BY_CHANCE = ("hang", _KILLED, "could not be set up")  # endings that another attempt may not have


class Listener(Protocol):
    """Hears what happens, for a live display."""

    def started(self, label: str, role: str) -> None: ...
    def stepped(self, steps: int) -> None: ...
    def ended(self, label: str, role: str, verdict: str) -> None: ...
    def said(self, sentence: str) -> None: ...
    def stopped(self) -> None: ...


class Bench:
    """Runs timing trials of one script and keeps what they showed."""

    def __init__(
        self, trials: Trials, order: Order, trial_seconds: float, listener: Listener, known: Known | None = None
    ) -> None:
        self._trials, self._order, self._listener = trials, order, listener
        self.known = known or Known()
        self._sources: dict[str, str] = {}  # as the latest trial saw them
        self.measured = self._kept = 0  # trials run, and how many of them are on record
        self._seconds, self._steps_at_least = trial_seconds, _STEPS_AT_LEAST
        self._crowded: set[str] = set()  # plans
        self._deaths: dict[frozenset[str], str] = {}  # members of plans that killed their process, and how
        self._disturbances: list[tuple[str, bool]] = []  # plans, and whether their trials were disturbed
        self.epoch_allowance = _EPOCH_ALLOWANCE * trial_seconds  # of training, that a trial may take to see past one
        self.epoch_steps = 0  # of the shortest training epoch, where trials can see past it
        self._epoch_length = 0  # steps
        self.epoch_limit = math.inf  # seconds that a trial of whole epochs may take
        self._trained_seconds = 0.0  # what the script itself needed in its latest trial
        self.storm = ""  # where the script by itself compiles again and again, which no plan is blamed for
        self.times: list[TrialTimes] = []
        self.hosts: list[str] = []  # that any trial tried to reach
        self.started = time.monotonic()

    @property
    def spent(self) -> float:
        return time.monotonic() - self.started

    @property
    def disturbed_share(self) -> float:
        """Of the trials that can tell of other work: a plan that crowds the machine by itself cannot."""
        telling = [found for name, found in self._disturbances if name == _name([]) or name not in self._crowded]
        return sum(telling) / len(telling) if telling else 0.0

    def say(self, sentence: str) -> None:
        self._listener.said(sentence)

    def longest(self, trials: int) -> str:
        """What so many trials of the script may take, as far as that can be said before the first."""
        each, limit = self._seconds, self._order.limit_seconds
        return f"{trials} trials of {each:.1f} s beside its start-up, none longer than {limit:.0f} s"

    def shorten(self, seconds: float) -> None:
        """Where starting takes most of a trial, time fewer steps: identical processes differ by more than that adds.
        By halves, so that another tuning of this script finds trials of the same length on record."""
        while self._seconds > seconds and self._seconds >= 2 * _SECONDS_AT_LEAST:
            self._seconds /= 2

    def see_past_an_epoch(self, run: Run) -> bool:
        """Lengthen trials so that caches fill and the last, smaller batch shows up, where that is affordable."""
        epoch = run.epoch_length
        if not epoch or not run.step_seconds:
            return False
        step_seconds = level(run.step_seconds)
        wanted = epoch + _STEPS_AT_LEAST
        whole = epoch * (1 + max(2, -(-_STEPS_AT_LEAST // epoch))) + 1  # the first, two more, and the start of another
        if epoch <= SHORT_EPOCH and whole * step_seconds <= self.epoch_allowance:
            wanted = max(wanted, whole)
        if wanted * step_seconds > self.epoch_allowance:
            return False
        self._steps_at_least, self.epoch_steps = max(self._steps_at_least, wanted), epoch
        return True

    def stay_within_an_epoch(self) -> None:
        """What comes at its end, tests and checkpoints, takes too long for trials."""
        self._steps_at_least, self.epoch_steps, self.epoch_allowance = _STEPS_AT_LEAST, 0, 0.0

    def begin(self, run: Run, baselines: Sequence[float]) -> None:
        """The baseline is known: what follows is kept, and what is on record can be held against it."""
        self._epoch_length = run.epoch_length
        self.known.begin(run, baselines)
        self.keep("baseline", [], None)

    def recall(self, kind: str, plan: Sequence[Choice], is_timed: bool = True) -> Recalled | None:
        return self.known.recall(kind, plan, (self._seconds, self._steps_at_least) if is_timed else ())

    def keep(self, kind: str, plan: Sequence[Choice], found: Any) -> None:
        """On record, together with what it took: every trial since the last that was kept."""
        trials, self._kept = self.measured - self._kept, self.measured
        length = (self._seconds, self._steps_at_least)
        self.known.keep(kind, plan, found, self.spent, trials, length, self._sources)

    def knows(self, plan: Sequence[Choice], kind: str = "time") -> bool:
        """Whether a single trial of it would cost nothing."""
        return bool(self._doom(plan)) or self._recalled(plan, kind) is not None

    def time(self, plan: Sequence[Choice], label: str, role: Role, again: int = 0) -> Timed | Untimed:
        """One trial. Where a single one is enough, one on record will do: baselines and pairs are always run. `again`
        asks for another opinion, each of which is on record by itself. Trials of whole epochs, tests and all, go from
        the first to the start of the third."""
        if role in ("baseline", "confirm"):
            return self._measured(plan, label, role)
        doom = self._doom(plan)
        if doom:
            return Untimed(doom, None, "")
        kind = "epochs" if role == "epochs" else f"time again {again}" if again else "time"
        known = self._recalled(plan, kind)
        if known is not None:
            timing, recalled = known
            self._note_death(plan, timing)
            self._listener.started(label, role)
            day = self.known.use(recalled)
            if timing.run is not None and day:
                self.times.append(_times(label, role, timing.ending, timing.run, day))
            self._listener.ended(label, role, f"{_verdict(timing, role)}, known{' from ' + day if day else ''}")
            return timing
        timing = self._measured(plan, label, role)
        self._note_death(plan, timing)
        if isinstance(timing, Timed):
            self.keep(kind, plan, to_json(timing))
        elif timing.ending.startswith(_ILLEGAL) or not timing.ending.startswith(_BY_CHANCE):
            run = timing.run if timing.level else None
            self.keep(kind, plan, to_json(Untimed(timing.ending, run, "", timing.level)))
        return timing

    def _note_death(self, plan: Sequence[Choice], timing: Timed | Untimed) -> None:
        if isinstance(timing, Untimed) and timing.ending.startswith(_KILLED):
            self._deaths[frozenset(map(str, plan))] = timing.ending

    def _doom(self, plan: Sequence[Choice]) -> str:
        """How a plan ended that killed its process and is part of this one: company does not save it."""
        members = set(map(str, plan))
        return next((ending for killers, ending in self._deaths.items() if killers <= members), "")

    def _recalled(self, plan: Sequence[Choice], kind: str = "time") -> tuple[Timed | Untimed, Recalled] | None:
        recalled = self.recall(kind, plan)
        if recalled is None:
            return None
        timing: Timed | Untimed
        timing = from_json(Timed, recalled.found) if "settled" in recalled.found else from_json(Untimed, recalled.found)
        if timing.level is None:
            return timing, recalled
        if recalled.scale is None:
            return None
        return dataclasses.replace(timing, level=recalled.scale * timing.level), recalled

    def _measured(self, plan: Sequence[Choice], label: str, role: Role) -> Timed | Untimed:
        """A disturbed trial is repeated once, whichever arm it belongs to. A plan that is disturbed twice in a row
        crowds the machine by itself: that is its true speed, and it is not repeated again."""
        timing = self._once(plan, label, role)
        name = _name(plan)
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
        self.measured += 1
        self._sources = trial.sources or self._sources
        self.hosts = list(dict.fromkeys([*self.hosts, *trial.hosts]))[:_MOST_HOSTS]
        return trial

    def _length(self, plan: Sequence[Choice], role: Role) -> dict[str, Any]:
        """Of a trial, as an order says it."""
        if role == "epochs":
            limit = min(self.epoch_limit, self._order.limit_seconds)
            return {"steps": 2 * self._epoch_length + 2, "limit_seconds": limit}
        patience = _PATIENCE * self._trained_seconds if plan else 0.0
        return {"seconds": self._seconds, "steps_at_least": self._steps_at_least, "seconds_at_most": patience}

    def _once(self, plan: Sequence[Choice], label: str, role: Role) -> Timed | Untimed:
        self._listener.started(label, role)
        choices = [choice.to_json() for choice in plan]
        trial = self._run(dataclasses.replace(self._order, choices=choices, **self._length(plan, role)))
        timing = timed(trial, whole_epoch if role == "epochs" else a_step)
        run = trial.run
        storm = recompiles(run) if run is not None else ""
        if not plan:
            self.storm = storm
        elif storm and not self.storm and isinstance(timing, Timed):
            timing = Untimed(storm, run, trial.log)
        if isinstance(timing, Timed) and not plan:
            self._trained_seconds = sum(timing.run.step_seconds)
        if run is not None:
            self.times.append(_times(label, role, trial.ending, run))
            self._disturbances.append((_name(plan), self.times[-1].disturbed))
        self._listener.ended(label, role, _verdict(timing, role))
        return timing


def _name(plan: Sequence[Choice]) -> str:
    return str(sorted(map(str, plan)))


def is_disturbed(run: Run) -> bool:
    """Whether its threads stood runnable but without a core for too long: other work was there too."""
    return run.queue_seconds > _DISTURBED * run.wall_seconds * run.threads


def _verdict(timing: Timed | Untimed, role: Role = "screen") -> str:
    if not isinstance(timing, Timed):
        return timing.ending
    return f"{timing.level:.2f} s an epoch" if role == "epochs" else figures.seconds(timing.level)


def _times(label: str, role: Role, ending: str, run: Run, reused: str = "") -> TrialTimes:
    warm = pace(run).warmup_steps if run.step_seconds else 0
    return TrialTimes(label, role, ending, run.step_seconds, warm, run.startup_seconds, is_disturbed(run), reused)
