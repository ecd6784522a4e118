"""Work on the device, recorded as a CUDA graph, behind an interface small enough to be played without a device."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch


class Recorder(Protocol):
    """What records an update and replays it."""

    device: str  # the kind of device that parameters must be on
    flags: dict[str, Any]  # options under which an update can be recorded

    @property
    def is_busy(self) -> bool:
        """Whether somebody else is recording."""

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        """A number of ours that a recording reads anew in each replay."""

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        """What repeats the update from then on; the update is not carried out by recording it."""


class GraphRecorder:
    device = "cuda"

    def __init__(self) -> None:
        self.flags: dict[str, Any] = {"capturable": True}
        self._pool: Any = None
        self._graphs: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def is_busy(self) -> bool:
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        given = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float32)
        return given.to(device, copy=True)

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        """Not by `torch.cuda.graph`, which empties the allocator's cache: gradients would move, and with them the
        reason to record. Other threads, such as one that pins batches, may go on meanwhile."""
        with torch.cuda.device(device):
            if not self._graphs:  # a pool whose last graph is gone cannot be used again
                self._pool = torch.cuda.graph_pool_handle()
            graph, stream, current = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream), _uncollected():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    update()
                except BaseException:
                    with suppress(RuntimeError):  # the capture is broken; the first error tells why
                        graph.capture_end()
                    raise
                graph.capture_end()
            current.wait_stream(stream)
        self._graphs.add(graph)
        return graph.replay


@contextmanager
def _uncollected() -> Iterator[None]:
    """What garbage collection frees on the device would break a recording."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
