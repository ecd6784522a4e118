"""The record of one observed run: what the script's loaders, optimizers and models really were, and where its
steps went. Plain data: it crosses process borders as JSON, and techniques judge by nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from hotlap.observe.scrutiny_facts import FeedFacts, LookFacts, MemoryFacts, UnusedFacts

SHARES = ("wait", "copy", "forward", "backward", "update", "sync", "other")


@dataclass(frozen=True)
class LoaderFacts:
    dataset: str  # class name
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    iterable: bool
    in_memory: bool  # a TensorDataset, possibly under Subset or ConcatDataset
    length: int | None
    private_generator: bool  # the data set owns a random generator that torch does not reseed in workers
    start_method: str  # "fork", "spawn", "forkserver"
    draws: int = 0
    trains: bool = False  # its batches were followed by a backward
    draws_random: bool | None = None  # fetching moved a global generator, or transforms surely do; None = not known
    dataset_id: int = 0  # tells data sets of one run apart
    kept: bool = False  # its batches came out of a store of finished samples
    changes: bool = False  # its data set changed while it was being read
    no_workers: str = ""  # why the number of its workers cannot be chosen freely
    worker_init: bool = False  # it prepares its workers by a function of its own
    batch_bytes: int = 0  # of the first batch drawn; 0 = not known
    copied_early: bool = False  # its batches were on their way to the device before they were drawn
    own_collate: bool = False  # it makes batches of samples by a function of the script's
    not_batched: str = ""  # why its images cannot be transformed a batch at a time


@dataclass(frozen=True)
class Compared:
    """The first things a swap made, held against what the script would have made."""

    what: str
    count: int
    difference: float  # the largest
    limit: float


@dataclass(frozen=True)
class OptimizerFacts:
    kind: str  # qualified class name
    fused: bool
    foreach: bool | None
    differentiable: bool
    capturable: bool
    parameters: int  # tensors
    elements: int
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    sparse: bool
    updates: int = 0
    closure: bool = False
    captured: bool = False  # its updates are replayed from a recording


@dataclass(frozen=True)
class SizeFacts:
    """A size of a layer that matrix units cannot take in whole pieces."""

    layer: str  # dotted path inside the root
    kind: str
    side: str  # "in" or "out"
    size: int
    elements: int  # of its weight


@dataclass(frozen=True)
class BreakFacts:
    """Where torch.compile had to end a graph and go back to Python."""

    why: str
    file: str  # its name alone; "" = not known
    line: int
    count: int

    def __str__(self) -> str:
        return f"{self.why} at {self.file}:{self.line}" if self.file else self.why


@dataclass(frozen=True)
class CompiledFacts:
    """What dynamo made of a run, for a compiler or to run as it is."""

    graphs: int = 0
    breaks: list[BreakFacts] = field(default_factory=list)  # the most frequent first
    again: int = 0  # how often something was compiled once more for other shapes or settings, of the latest 64 times

    def __str__(self) -> str:
        if not self.graphs:
            return ""
        count = sum(one.count for one in self.breaks)
        graphs = "1 graph" if self.graphs == 1 else f"{self.graphs} graphs"
        breaks = f", {count} {'break' if count == 1 else 'breaks'}: {self.breaks[0]}" if count else ""
        return f"traced as {graphs}{breaks}"


@dataclass(frozen=True)
class RootFacts:
    """A module the script calls itself, with trainable parameters and gradients on."""

    kind: str
    elements: int
    layers: dict[str, int]  # how many of each leaf class
    channels_last: bool  # every 4-D weight whose layout can be told is NHWC
    input_channels_last: bool
    input_dims: tuple[int, ...]  # dimensions of its tensor inputs
    parameter_dtypes: tuple[str, ...]
    autocast: str | None  # the dtype autocast had when it, or a module inside it, was called
    compiled: bool
    stands_aside: str | None  # why its calls cannot be wrapped
    devices: int = 0  # over how many a wrapper spreads each of its calls; 0 = no such wrapper
    captured: bool = False  # its calls are replayed from recordings
    calls: int = 0
    biases_before_norm: int = 0  # layers with a bias, right before a batch norm of their width in the order of modules
    odd_sizes: list[SizeFacts] = field(default_factory=list)  # the largest layers first
    without_gradient: list[UnusedFacts] = field(default_factory=list)  # in the first updates
    not_compiled: str = ""  # why torch.compile had better leave it alone
    wide_linears: int = 0  # plain linear layers inside it that are large enough for 8-bit products
    attends: bool = False  # it may hold attention that is written by hand
    blocks: int = 0  # parts of one class, some of them built alike, that make up most of it


@dataclass(frozen=True)
class SyncFacts:
    """A line of the script where the host waits for the device, in the training steps that were kept."""

    path: str
    line: int
    kind: str  # "item", "nonzero", "pageable copy", "synchronize", ...
    count: int
    steps: int  # in how many of the steps it happened at all
    seconds: float
    evaluation_count: int = 0  # how often in evaluation, which is not blamed


@dataclass(frozen=True)
class Run:
    torch: str
    device: str  # where the parameters live: "cpu", "cuda"
    loaders: list[LoaderFacts] = field(default_factory=list)
    optimizers: list[OptimizerFacts] = field(default_factory=list)
    roots: list[RootFacts] = field(default_factory=list)
    syncs: list[SyncFacts] = field(default_factory=list)
    feed: FeedFacts = field(default_factory=FeedFacts)
    memory: MemoryFacts = field(default_factory=MemoryFacts)
    look: LookFacts = field(default_factory=LookFacts)
    step_seconds: list[float] = field(default_factory=list)  # every step kept, in order
    step_parts: list[list[float]] = field(default_factory=list)  # seconds per step, in the order of SHARES
    device_parts: list[list[float]] = field(default_factory=list)  # the same on the device's clock, where marked
    epoch_starts: list[int] = field(default_factory=list)  # which of the steps kept begin an epoch
    epoch_seconds: list[float] = field(default_factory=list)  # of each whole one, with its tests
    steps: int = 0  # counted, also those no longer kept
    warmup_steps: int = -1  # left out of the shares; -1 = a tenth of the steps
    trouble: str = ""  # the first error of hotlap's own, which cost a part of the record
    evaluation_seconds: float = 0.0
    evaluation_passes: int = 0
    evaluation_parts: list[float] = field(default_factory=list)  # seconds in all, in the order of SHARES
    losses: list[float] = field(default_factory=list)
    images_opened: int = 0  # by the script's process and its forked workers
    image_cache_hits: int = 0
    data_folder: str = ""  # what the image files opened first have in common
    peak_bytes: int = 0
    parameter_bytes: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    queue_seconds: float = 0.0  # runnable but waiting for a core
    startup_seconds: float = 0.0  # from launch to the first step
    cores: int = 1
    threads: int = 1
    instructions: tuple[str, ...] = ()  # that the processor is known to have; none = not known
    free_bytes: int = 0  # of main memory; 0 = not known
    shm_free_bytes: int = 0  # of /dev/shm, where batches of loader workers wait
    device_capability: tuple[int, ...] = ()
    withdrawn: list[str] = field(default_factory=list)  # techniques that raised when applied, with the reason
    compared: list[Compared] = field(default_factory=list)  # what techniques showed of themselves on the way
    script_compiles: bool = False
    matmul_precision: str = "highest"  # what float32 matrix products may use: "highest", "high" (TF32), "medium"
    searches_kernels: bool = False  # torch.backends.cudnn.benchmark
    deterministic: bool = False  # asked of torch, or of cuDNN
    compiled: CompiledFacts = field(default_factory=CompiledFacts)
    compiled_at: list[int] = field(default_factory=list)  # steps in which torch.compile was at work
    anomaly_mode: bool = False  # a backward of the training ran in autograd's anomaly mode

    def share(self, *names: str) -> float:
        """The part of a step spent in the named shares, after warm-up."""
        return sum(self.shares[name] for name in names)

    @property
    def computing(self) -> float:
        """The part of a step that forward and backward may take. A device is only told of them: it may work on them
        while the host reads, or does something of its own, and a replay is over for the host before it began. Waits
        for batches are left to those, though a device that makes its batches itself may be at work in them, too."""
        return self.share("forward", "backward", *(() if self.device == "cpu" else ("sync", "other")))

    @property
    def shares(self) -> dict[str, float]:
        first = self.warmup_steps if self.warmup_steps >= 0 else len(self.step_parts) // 10
        return shares(self.step_parts[first:])

    @property
    def epoch_length(self) -> int:
        """Steps of the shortest training epoch; 0 = not known."""
        training = [one for one in self.loaders if one.trains and one.length and one.batch_size]
        return min((-(-(one.length or 0) // (one.batch_size or 1)) for one in training), default=0)

    @property
    def epoch_start_share(self) -> float:
        """The part of the steps' time that the first step of each later epoch takes beyond the usual."""
        later = [self.step_seconds[number] for number in self.epoch_starts[1:]]
        if not later:
            return 0.0
        usual = statistics.median(self.step_seconds)
        settled = sum(self.step_seconds[self.epoch_starts[1] :])
        return sum(max(0.0, seconds - usual) for seconds in later) / (settled or 1.0)


def shares(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Seconds by share, one row a step, as parts of one."""
    totals = [sum(column) for column in zip(*rows, strict=True)] or [0.0] * len(SHARES)
    return {name: total / (sum(totals) or 1.0) for name, total in zip(SHARES, totals, strict=True)}
