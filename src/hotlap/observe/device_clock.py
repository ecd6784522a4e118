"""The device's own clock: events put into its queue as the host passes by, and read much later. Nothing waits."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from typing import Any

from hotlap.observe.ledger import Ledger, in_forked_child

_PENDING = 4096  # marks on their way; more mean a device that stands still, and are then dropped
_SETTLED_TOGETHER = 64


class Mark:
    """A point in the device's queue, and when the device got there, once that is known."""

    __slots__ = ("event", "number", "time", "which")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.time: float | None = None
        self.number = -1  # the event of the ledger it belongs to, and whether it is its start or its end
        self.which = 0


class DeviceClock:
    """`mark()` gives a mark for `put`; `settle()` writes into the ledger what the device has reached by now."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._cuda: Any = None
        self._pending: deque[Mark] = deque()  # in the order of the device's queue
        self._spare: list[Any] = []
        self._last: Any = None  # the latest event that was read, and when that was
        self._time = 0.0
        self._is_off = False  # in a forked child, which must not touch the device, and after an error
        in_forked_child(self._leave)

    def _leave(self) -> None:
        """In a forked child. Nothing may be let go of there: an event that is destroyed would reach for the device."""
        self._is_off = True
        for event in (self._last, *self._spare, *(mark.event for mark in self._pending)):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))

    def mark(self) -> Mark | None:
        """A mark in the device's queue at this point; None where there is no device at work, or a graph is captured."""
        if self._is_off:
            return None
        try:
            if self._cuda is None:
                torch = sys.modules["torch"]
                if not torch.cuda.is_initialized():
                    return None
                self._cuda = torch.cuda
            if self._cuda.is_current_stream_capturing():
                return None
            event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
            event.record()
        except RuntimeError:  # never the script's trouble
            self._is_off = True
            return None
        mark = Mark(event)
        self._pending.append(mark)
        if len(self._pending) >= _SETTLED_TOGETHER:
            self.settle()
        return mark

    def put(self, number: int, start: Mark | None, end: Mark | None = None) -> None:
        """These marks are the start and the end of that event of the ledger."""
        for which, mark in enumerate((start, end)):
            if mark is None:
                continue
            if mark.time is not None:
                self._ledger.marked(number, which, mark.time)
            else:
                mark.number, mark.which = number, which

    def settle(self, wait: bool = False) -> None:
        """Read the marks the device has passed. Each is timed from the one before: long spans are coarse."""
        if self._is_off:
            return
        pending = self._pending
        try:
            if wait and pending:
                pending[-1].event.synchronize()
            while pending:
                ready = min(len(pending), _SETTLED_TOGETHER // 2)
                if not pending[ready - 1].event.query():
                    break
                for _ in range(ready):
                    self._read(pending.popleft())
        except RuntimeError:  # the device is lost, and the script will be told so by torch itself
            self._is_off = True
        while len(pending) > _PENDING:
            pending.popleft()

    def _read(self, mark: Mark) -> None:
        try:
            if self._last is not None:
                self._time += self._last.elapsed_time(mark.event) / 1e3
                self._spare.append(self._last)
        except (RuntimeError, ValueError):  # put on another stream, and not there yet
            return
        self._last, mark.time = mark.event, self._time
        if mark.number >= 0:
            self._ledger.marked(mark.number, mark.which, mark.time)
