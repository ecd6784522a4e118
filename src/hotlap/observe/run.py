"""The record of one observed run: what the script's loaders, optimizers and models really were, and where its
steps went. Plain data: it crosses process borders as JSON, and techniques judge by nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
    draws: int
    trains: bool  # its batches were followed by a backward
    draws_random: bool | None  # fetching moved a global random generator; None = not watched
    private_generator: bool  # the data set owns a random generator that torch does not reseed in workers
    start_method: str  # "fork", "spawn", "forkserver"
    changes: bool = False  # its data set changed while it was being read


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
    updates: int
    closure: bool


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
    calls: int
    stands_aside: str | None  # why its calls cannot be wrapped


@dataclass(frozen=True)
class SyncFacts:
    path: str
    line: int
    count: int
    seconds: float


@dataclass(frozen=True)
class Run:
    torch: str
    device: str  # where the parameters live: "cpu", "cuda"
    loaders: list[LoaderFacts] = field(default_factory=list)
    optimizers: list[OptimizerFacts] = field(default_factory=list)
    roots: list[RootFacts] = field(default_factory=list)
    syncs: list[SyncFacts] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)  # every step kept, in order
    step_parts: list[list[float]] = field(default_factory=list)  # seconds per step, in the order of SHARES
    epoch_starts: list[int] = field(default_factory=list)  # which of the steps kept begin an epoch
    steps: int = 0  # counted, also those no longer kept
    evaluation_seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    images_opened: int = 0  # by the script's process and its forked workers
    image_cache_hits: int = 0
    peak_bytes: int = 0
    parameter_bytes: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    queue_seconds: float = 0.0  # runnable but waiting for a core
    startup_seconds: float = 0.0  # from launch to the first step
    cores: int = 1
    threads: int = 1
    device_capability: tuple[int, ...] = ()
    withdrawn: list[str] = field(default_factory=list)  # techniques that raised when applied, with the reason
    script_compiles: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def share(self, *names: str) -> float:
        """The part of a step spent in the named shares, after the first tenth of the steps."""
        rows = self.step_parts[len(self.step_parts) // 10 :]
        total = sum(map(sum, rows))
        return sum(row[SHARES.index(name)] for row in rows for name in names) / total if total else 0.0

    @property
    def shares(self) -> dict[str, float]:
        return {name: self.share(name) for name in SHARES}
