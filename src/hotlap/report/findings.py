"""What hotlap found, as frozen data that goes to JSON and back. Renderers read nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hotlap.records import from_json, to_json

__all__ = ["SHARES", "Ablation", "Facts", "Finding", "Fix", "Interval", "Kept", "NotTried", "ParityCheck"]
__all__ += ["ProfileReport", "Rejected", "Sync", "TrialTimes", "TuneReport", "Verdict", "from_json", "to_json"]

SHARES = ("wait", "copy", "forward", "backward", "update", "sync", "other")
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
class Sync:
    path: str
    line: int
    count: int
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """What a profile says of one technique."""

    technique: str
    state: Literal["could help", "in use", "cannot help"]
    most: float  # largest share of the step it could save
    why: str


@dataclass(frozen=True)
class ProfileReport:
    script: str
    steps: int
    step_seconds: float  # median
    shares: dict[str, float]  # SHARES, adding up to 1
    cpu_busy: float  # cores kept busy, averaged
    device_busy: float | None
    syncs: list[Sync]
    memory: dict[str, float]  # bytes by name: peak, parameters, ...
    layers: list[dict[str, Any]]
    device: str
    torch: str
    evaluation_seconds: float
    verdicts: list[Verdict]
    facts: Facts
    ending: str
    caveats: list[str] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)  # every step, in order, warm-up included


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
    ratio: float  # screened: what it added when it was taken in
    parity: str


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
    role: Literal["baseline", "screen", "confirm", "ablation"]
    ending: str
    step_seconds: list[float]  # every step, raw, warm-up included
    warmup_steps: int
    startup_seconds: float
    disturbed: bool = False


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
    cost_seconds: float
    payback_steps: int | None
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
