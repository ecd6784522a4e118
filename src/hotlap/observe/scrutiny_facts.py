"""What only a profile looks at, as parts of a run's record: how batches are made, memory, layers and inputs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Making:
    """One thing that making batches consists of, from samples of the stacks of the processes that make them."""

    what: str  # "read", "decode", "collate", a transform's class, or the data set's own code
    seconds: float  # in all makers together
    path: str  # the line of the script's own code it belongs to, or ""
    line: int


@dataclass(frozen=True)
class Maker:
    """A process that makes batches: the script's own (worker -1), or one of its loader workers."""

    worker: int
    batches: int
    samples: int
    seconds: float  # spent making them
    read_bytes: int  # from storage, not from the system's cache
    asked_bytes: int  # read by any means
    resident_bytes: int
    waited_seconds: float  # runnable, but without a core


@dataclass(frozen=True)
class FeedFacts:
    """How the training batches are made."""

    makers: list[Maker] = field(default_factory=list)
    makings: list[Making] = field(default_factory=list)
    batch_bytes: int = 0
    batch_samples: int = 0
    draws: int = 0  # of loaders with workers, for the queue's sake
    draws_from_empty: int = 0  # when no batch was ready
    mean_depth: float = 0.0  # batches ready when one was asked for
    capacity: int = 0  # workers times prefetch_factor
    shm_bytes: int = 0
    shm_free_bytes: int = 0
    unwatched: str = ""  # why workers could not be looked into


@dataclass(frozen=True)
class LayerFacts:
    """One leaf module in one step, forward and backward together unless said otherwise."""

    root: str  # class of the root it belongs to
    name: str  # dotted path inside the root; "" is the root itself
    kind: str
    calls: int
    forward_seconds: float  # on the device where there is one, else on the processor
    backward_seconds: float
    flops: float
    moved_bytes: float  # read and written
    saved_bytes: float  # kept for backward
    parameters: int
    dtype: str  # of its matrix products, else of its output
    notes: list[str] = field(default_factory=list)  # misaligned sizes, depthwise, ... each a short remark


@dataclass(frozen=True)
class UnusedFacts:
    """What was initialised and never used."""

    name: str  # a parameter that got no gradient, or a module that was never called
    kind: str  # "parameter" or the module's class
    elements: int


@dataclass(frozen=True)
class InputFacts:
    """One tensor a root is fed."""

    root: str
    name: str  # the parameter's position or keyword
    shapes: list[list[int]]  # distinct ones, in the order first seen
    shapes_seen: int  # how many distinct ones, also those not listed
    dtype: str
    mean: list[float] = field(default_factory=list)  # per channel
    spread: list[float] = field(default_factory=list)  # standard deviation per channel
    finite: bool = True


@dataclass(frozen=True)
class GrowthFacts:
    """Memory that a line of the script keeps alive from step to step."""

    path: str
    line: int
    holder: str  # the name that keeps it: "losses", "self.history", "total"
    tensors: int  # held now
    bytes_a_step: float
    why: str  # "every loss is kept with its graph", ...


@dataclass(frozen=True)
class MemoryFacts:
    """Bytes on the device, or resident in the process where there is none."""

    peak: int = 0
    weights: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer_state: int = 0
    activations: int = 0  # kept for backward at the end of forward
    reserved: int = 0  # by torch's allocator; 0 where there is none
    total: int = 0  # what the device has, or the machine
    free: int = 0
    levels: list[list[float]] = field(default_factory=list)  # (step, bytes in use) now and then
    growth: list[GrowthFacts] = field(default_factory=list)


@dataclass(frozen=True)
class LookFacts:
    """A closer look, in a few extra steps after those that were timed."""

    steps: int = 0
    layers: list[LayerFacts] = field(default_factory=list)
    unused: list[UnusedFacts] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # on the shape of the model: branches, element-wise work
    inputs: list[InputFacts] = field(default_factory=list)
    device_seconds: dict[str, float] = field(default_factory=dict)  # kernels and copies by share, a step
    idle_seconds: dict[str, float] = field(default_factory=dict)  # device idle while the host was in that share
    kernels: int = 0  # a step
    peak_flops: dict[str, float] = field(default_factory=dict)  # by dtype, as measured here
    peak_bandwidth: float = 0.0  # bytes a second, as measured here
    activations: int = 0  # bytes kept for backward at the end of forward
    skipped: str = ""  # why there was no closer look
