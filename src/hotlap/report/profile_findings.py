"""What a profile found, as frozen data that goes to JSON and back. Renderers read nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hotlap.report.findings import Facts

SHARES = ("wait", "copy", "forward", "backward", "update", "sync", "other")
By = Literal["data", "launch", "compute", "memory", "sync", "copy", "python", "unknown"]


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
    shm_bytes: float  # of shared memory, in all
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
