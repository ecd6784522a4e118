"""What hotlap found, as frozen data that goes to JSON and back. Renderers read nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hotlap.records import from_json, to_json

__all__ = [
    "SHARES",
    "Ablation",
    "Bound",
    "By",
    "Facts",
    "Feeding",
    "Finding",
    "Fix",
    "Growth",
    "Input",
    "Interval",
    "Kept",
]
__all__ += ["Layer", "Making", "NotTried", "ParityCheck", "ProfileReport", "Rejected", "Sync", "TrialTimes"]
__all__ += ["Rechecked", "TuneReport", "Unused", "Verdict", "VerifyReport", "Worker", "from_json", "to_json"]

SHARES = ("wait", "copy", "forward", "backward", "update", "sync", "other")
Fix = Literal["safe", "unsafe"] | None
By = Literal["data", "launch", "compute", "memory", "sync", "copy", "python", "unknown"]


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
class Sync:
    """A line where the host waits for the device."""

    path: str
    line: int
    count: int  # in the training steps that were timed
    seconds: float  # in all of them together
    kind: str = ""  # "item", "nonzero", "pageable copy", ...
    steps: int = 0  # in how many of the steps it happened at all
    evaluation_count: int = 0  # how often during evaluation, which is not blamed


@dataclass(frozen=True)
class Bound:
    """What the steps are bound by, and what shows it."""

    by: By
    evidence: list[str]  # sentences with figures, the strongest first


@dataclass(frozen=True)
class Making:
    """One thing that making a batch consists of."""

    what: str  # "read", "decode", "collate", a transform's class, "own code"
    seconds: float  # a batch
    path: str = ""  # the script's line it belongs to
    line: int = 0


@dataclass(frozen=True)
class Worker:
    """A process that makes batches; number -1 is the training process itself."""

    number: int
    batches: int
    busy: float  # share of the time it was making batches


@dataclass(frozen=True)
class Feeding:
    """What goes on while the loop waits for data."""

    batch_seconds: float  # to make one batch, in one process
    batch_bytes: float
    batch_samples: int
    makings: list[Making]  # adding up to batch_seconds
    workers: list[Worker]
    queue_depth: float | None  # batches ready when one was asked for; None without workers
    queue_capacity: int
    queue_empty: float | None  # share of draws that found none ready
    read_rate: float  # bytes a second from storage
    shm_bytes: float
    shm_free_bytes: float
    advice: list[str]  # why more workers would or would not help


@dataclass(frozen=True)
class Layer:
    """One leaf module in one step, forward and backward together unless said otherwise."""

    root: str
    name: str
    kind: str
    calls: int
    forward_seconds: float
    backward_seconds: float
    share: float  # of the time of all layers
    flops: float
    moved_bytes: float
    intensity: float  # flops a byte moved
    bound: Literal["compute", "memory", ""]  # by the roofline measured here
    of_roof: float | None  # which part of what the chip could do at this intensity is reached
    saved_bytes: float
    parameters: int
    dtype: str
    notes: list[str]


@dataclass(frozen=True)
class Unused:
    name: str
    kind: str  # "parameter", or the class of a module that was never called
    elements: int


@dataclass(frozen=True)
class Input:
    """One tensor the model is fed."""

    root: str
    name: str
    shapes: list[list[int]]  # distinct ones
    shapes_seen: int
    dtype: str
    mean: list[float]
    spread: list[float]
    remarks: list[str]  # what is wrong with it, in sentences


@dataclass(frozen=True)
class Growth:
    """Memory that grows from step to step; path is "" where the line is not known."""

    bytes_a_step: float
    path: str
    line: int
    holder: str
    why: str


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
    arguments: list[str]
    steps: int
    step_seconds: float  # after warm-up, with what each epoch's start costs spread over its steps
    warmup_steps: int
    shares: dict[str, float]  # SHARES, adding up to 1
    device_shares: dict[str, float] | None  # the same by the device's clock, where there is one
    cpu_busy: float  # cores kept busy, averaged
    device_busy: float | None  # as nvidia-smi would say
    device_idle: float | None  # share of a step in which no kernel ran, from the closer look
    bound: Bound
    syncs: list[Sync]
    feeding: Feeding | None
    memory: dict[str, float]  # bytes by name: peak, weights, gradients, optimizer_state, activations, ...
    growth: list[Growth]
    batch_that_fits: int | None
    layers: list[Layer]
    unused: list[Unused]
    remarks: list[str]  # on the shape of the model: branches, element-wise work
    inputs: list[Input]
    peak_flops: dict[str, float]  # by dtype, as measured here
    peak_bandwidth: float
    look: str  # what the closer look covered, or why there was none
    device: str
    torch: str
    evaluation_seconds: float
    verdicts: list[Verdict]
    facts: Facts
    ending: str
    caveats: list[str] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)  # every step, in order, warm-up included
    step_parts: list[list[float]] = field(default_factory=list)  # the same split into SHARES
    evaluation_passes: int = 0
    evaluation_shares: dict[str, float] = field(default_factory=dict)  # of evaluation_seconds


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
