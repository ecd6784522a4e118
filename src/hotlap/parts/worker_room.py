"""How many loader workers there is room for: in /dev/shm, where their batches wait, and in memory, where they live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hotlap.parts.forked import NoAnswer
from hotlap.parts.without_a_trace import asked_of

DEPTH = 2  # torch's own prefetch_factor
_SHARE = 0.5  # of what is free: the training, and other loaders, want some of it
_MIB = 2**20
# What one worker of an almost empty data set was seen to hold for itself: 11 MiB forked, 147 MiB spawned.
_OWN_BYTES = {"fork": 32 * _MIB, "spawn": 160 * _MIB, "forkserver": 160 * _MIB}
_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True)
class WorkerRoom:
    """Bytes that are free; 0 stands for not known."""

    shm_bytes: int
    memory_bytes: int

    def workers(self, wanted: int, depth: int, batch_bytes: int, method: str = "fork") -> int:
        """As many of those wanted as there is room for. Each has `depth` batches in its queue and one in the making;
        /dev/shm is memory, too."""
        queued = depth * batch_bytes
        fits = [wanted]
        if self.shm_bytes and queued:
            fits.append(int(_SHARE * self.shm_bytes / queued))
        if self.memory_bytes:
            fits.append(int(_SHARE * self.memory_bytes / (_OWN_BYTES.get(method, 0) + queued + batch_bytes)))
        return min(fits)

    def shortage(self, depth: int, batch_bytes: int) -> str:
        """What stands in the way of even one worker, in words."""
        wanted = f"{depth} batches of {batch_bytes / _MIB:.0f} MiB"
        if self.shm_bytes and depth * batch_bytes > _SHARE * self.shm_bytes:
            return (
                f"memory is short: a worker keeps {wanted} in /dev/shm, which has {self.shm_bytes / _MIB:.0f} MiB free"
            )
        return f"memory is short: {self.memory_bytes / _MIB:.0f} MiB are free, and a worker keeps {wanted} ready"


def sample_bytes(dataset: Any, weigh: Callable[[Any], int]) -> int:
    """What one sample weighs, read in a forked process, so that no generator moves and nothing hangs; 0 where that
    cannot be told."""
    try:
        return int(asked_of(dataset, lambda: weigh(dataset[0]), _PATIENCE_SECONDS))
    except NoAnswer:
        return 0
