"""What a check, a tuning or a verification found, as frozen data that goes to JSON and back. Renderers read nothing
else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Fix = Literal["safe", "unsafe"] | None


@dataclass(frozen=True)
class Finding:
    """A speed or memory mistake in source. Lines and columns count from 1."""

    technique: str
    path: str
    line: int
    column: int
    message: str
    fix: Fix
    excerpt: str = ""  # the source line, for the text format only
    severity: str = "speed"  # or "memory", or "correctness" where the training itself suffers
    doubtful: bool = False
    cell: int | None = None  # of a notebook, counted from 1; lines then count from its beginning

    @property
    def place(self) -> str:
        if self.cell is not None:
            return f"{self.path}:cell {self.cell}:line {self.line}"
        return f"{self.path}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Facts:
    """The six facts that make a figure checkable, and who took it."""

    hardware: str
    driver: str
    torch: str
    command: str
    trials: int
    date: str
    hotlap: str


@dataclass(frozen=True)
class Interval:
    """A ratio (before / after: 2.0 = twice as fast) with its bounds."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Kept:
    technique: str
    setting: dict[str, Any]
    ratio: float | None  # screened: what it added when it was taken in; None where it came in with others
    parity: str


@dataclass(frozen=True)
class EpochTimes:
    """Seconds of a whole epoch, tests and all, by single trials: with what makes steps faster, and with what saves
    between them as well."""

    steps: int
    techniques: list[str]  # what saves there
    before_seconds: float
    after_seconds: float


@dataclass(frozen=True)
class Rejected:
    technique: str
    setting: dict[str, Any]
    reason: str  # with the figure in it


@dataclass(frozen=True)
class NotTried:
    technique: str
    reason: str


@dataclass(frozen=True)
class Ablation:
    """One technique alone and left out of the plan, as speed-up over the baseline; None where not measured."""

    technique: str
    alone: float | None
    left_out: float | None


@dataclass(frozen=True)
class ParityCheck:
    """One figure of the parity test with the limit it was held against."""

    what: str
    figure: float
    limit: str  # readable: "<= 5e-04", "0.98 .. 1.02"
    passed: bool


@dataclass(frozen=True)
class TrialTimes:
    label: str  # "baseline", "plan", or the candidate's name
    role: Literal["baseline", "screen", "confirm", "ablation", "epochs"]
    ending: str
    step_seconds: list[float]  # every step, raw, warm-up included
    warmup_steps: int
    startup_seconds: float
    disturbed: bool = False
    reused: str = ""  # the day it was measured, where that was an earlier tuning


@dataclass(frozen=True)
class TuneReport:
    script: str
    arguments: list[str]
    before_seconds: float
    after_seconds: float
    batch_samples: int | None  # samples in one step, for samples a second
    speedup: Interval | None  # None: nothing kept, or the budget did not allow proof
    confirmed: bool
    kept: list[Kept]
    rejected: list[Rejected]
    not_tried: list[NotTried]
    ablation: list[Ablation]
    ablation_label: str  # "screened" or "proven"
    parity: list[ParityCheck]
    a_against_a: Interval | None
    smallest_gain: float  # ratio: the least this machine can show
    cost_seconds: float  # of this tuning
    payback_steps: int | None  # for this tuning and the earlier ones it goes on from
    shares_before: dict[str, float]
    shares_after: dict[str, float]
    peak_bytes_before: float
    peak_bytes_after: float
    losses_before: list[float]
    losses_after: list[float]
    trials: list[TrialTimes]
    caveats: list[str]
    facts: Facts
    cut_short: bool = False  # stopped, or out of budget: "nothing kept" then says nothing
    hosts: list[str] = field(default_factory=list)  # beyond this machine, that the script tried to reach in trials
    losses_spread: list[list[float]] = field(default_factory=list)  # lowest and highest of each step, over seeds
    one_off_seconds: float = 0.0  # by which a run with the plan starts later: compiling, caches being filled
    reused_trials: int = 0  # known from earlier tunings
    earlier_seconds: float = 0.0  # what tunings under the same conditions cost before this one
    compiled: str = ""  # what torch.compile made of the script with its plan, in half a line
    epoch: EpochTimes | None = None  # where something was kept that saves between steps


@dataclass(frozen=True)
class Rechecked:
    """One figure of the parity test, today's beside that on record."""

    what: str
    then: float | None  # None: it was not part of the test that is on record
    now: float
    limit: str
    passed: bool


@dataclass(frozen=True)
class VerifyReport:
    script: str
    plan: list[str]
    checks: list[Rechecked]
    changed: list[str]  # since the proof on record
    speedup_then: Interval
    speedup: Interval | None  # None: not measured again
    date_then: str
    facts: Facts
    caveats: list[str]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)
