"""Copies to a GPU on a stream of their own, and how far ahead of it a host may run with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from hotlap.parts.current_queue import Queue, current_queue, stream_of

_ROOM_SHARE = 1 / 16  # of the device's memory
_QUEUED, _QUEUED_SMALL, _SMALL_BYTES = 4, 64, 64 << 20  # batches taken that the device has not come to yet


def are_too_many(sizes: Sequence[int]) -> bool:
    """Batches of so many bytes that a host far ahead of its device has taken: it would fill the device with them. Small
    ones do no harm, and a host that is held up here would seem to wait for data."""
    return len(sizes) > _QUEUED_SMALL or (len(sizes) > _QUEUED and sum(sizes) > _SMALL_BYTES)


class _Flight:
    """The copies of one batch, which are over when its event is."""

    __slots__ = ("awaited_by", "bytes", "event", "is_over", "is_taken")

    def __init__(self, event: Any) -> None:
        self.event, self.is_taken, self.is_over, self.bytes = event, False, False, 0
        self.awaited_by: Any = None  # the stream that waits for it already


class _Made(NamedTuple):
    copy: torch.Tensor
    flight: _Flight
    reads_original: bool  # which must then not be written to before the copy is over


class CudaCopier:
    """Copies on a stream of its own, from pinned memory. The caching allocator is told of both streams that use a copy,
    so that its memory is not given away too early."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.room_bytes = int(_ROOM_SHARE * torch.cuda.get_device_properties(device).total_memory)
        self._stream = torch.cuda.Stream(device, priority=-1)  # its little work goes before the training's
        self._taken: deque[tuple[Any, int]] = deque()  # when the device has come to a batch, and its bytes
        self._idle: deque[Any] = deque()  # events that may be recorded again
        self._users: dict[Queue, Any] = {}  # the streams that copies are handed to

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[_Made]:
        with self._flown() as flight:
            return self._weighed([self._copied(tensor, flight) for tensor in tensors])

    def make(self, work: Callable[[], Sequence[torch.Tensor]]) -> list[_Made]:
        """As copies, what is made on the device: `work` runs on the stream of the copies."""
        with self._flown() as flight:
            return self._weighed([_Made(made, flight, False) for made in work()])

    @staticmethod
    def _weighed(made: list[_Made]) -> list[_Made]:
        for one in made:
            one.flight.bytes += one.copy.nbytes
        return made

    @contextmanager
    def _flown(self) -> Iterator[_Flight]:
        while are_too_many([size for _, size in self._taken.copy()]):
            over, _ = self._taken.popleft()
            over.synchronize()
            self._idle.append(over)
        with torch.cuda.stream(self._stream):
            flight = _Flight(torch.cuda.Event())
            yield flight
            flight.event.record(self._stream)

    def _copied(self, tensor: torch.Tensor, flight: _Flight) -> _Made:
        is_pinned = tensor.is_pinned()
        source = tensor if is_pinned else pinned(tensor)
        return _Made(source.to(self.device, non_blocking=source is not tensor or is_pinned), flight, is_pinned)

    def hand_over(self, made: _Made, blocking: bool) -> torch.Tensor:
        """Every call of the device's takes longer than all of Python here, so that none is made twice for a batch."""
        flight, stream = made.flight, self._user()
        if flight.awaited_by is not stream:
            stream.wait_event(flight.event)
            flight.awaited_by = stream
        made.copy.record_stream(stream)
        if blocking and made.reads_original and not flight.is_over:
            if not flight.event.query():
                flight.event.synchronize()
            flight.is_over = True
        if not flight.is_taken:
            flight.is_taken = True
            taken = self._idle.popleft() if self._idle else torch.cuda.Event()
            taken.record(stream)
            self._taken.append((taken, flight.bytes))
        return made.copy

    def _user(self) -> Any:
        """The current stream."""
        queue = current_queue(self.device)
        if queue not in self._users:
            self._users[queue] = stream_of(queue)
        return self._users[queue]


def pinned(tensor: torch.Tensor, pin: bool = True) -> torch.Tensor:
    """The same values and strides in pinned memory, or the tensor itself where its memory has gaps. NumPy moves the
    bytes: torch's own threads would take cores from the training for so little."""
    room = torch.empty_like(tensor, pin_memory=pin)
    if room.stride() != tensor.stride():
        return tensor
    _bytes(room)[:] = _bytes(tensor)
    return room


def _bytes(dense: torch.Tensor) -> Any:
    return dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
