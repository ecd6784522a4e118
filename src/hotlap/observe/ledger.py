"""The events of a run, the last so many of them, in memory that outlives the process: whoever reads the file finds them
even after a kill. Its size is fixed, however long the script runs."""

from __future__ import annotations

import math
import mmap
import os
import struct
import weakref
from collections.abc import Callable

from hotlap.observe.events import Event

_CAPACITY = 100_000
_HEAD = struct.Struct("<qq")  # how many were ever written, how many there is room for
_EVENT = struct.Struct("<qqdddd")
_DOUBLE = struct.Struct("<d")
_END, _MARKS = 24, (32, 40)  # where an event's end and its two device times lie
_NONE = math.nan


class Ledger:
    def __init__(self, path: str = "", capacity: int = _CAPACITY) -> None:
        size = _HEAD.size + capacity * _EVENT.size
        if path:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.ftruncate(handle, size)
            self._bytes = mmap.mmap(handle, size)
            os.close(handle)
        else:
            self._bytes = mmap.mmap(-1, size)
        self._capacity, self.count = capacity, 0
        self._open(0)
        in_forked_child(self._leave)

    def _leave(self) -> None:
        """A loader worker must not write between the lines of the process it came from."""
        self._bytes = mmap.mmap(-1, len(self._bytes))
        self._open(self.count)

    def _open(self, count: int) -> None:
        _HEAD.pack_into(self._bytes, 0, count, self._capacity)
        self._head = memoryview(self._bytes)[: _HEAD.size].cast("q")  # the quickest way to write one number

    def note(self, kind: int, key: int, start: float, end: float) -> int:
        """Write one down; its number serves to complete it later."""
        number = self.count
        place = _HEAD.size + number % self._capacity * _EVENT.size
        _EVENT.pack_into(self._bytes, place, kind, key, start, end, _NONE, _NONE)
        self.count = self._head[0] = number + 1
        return number

    def ended(self, number: int, end: float) -> None:
        if number >= self.count - self._capacity:
            _DOUBLE.pack_into(self._bytes, self._place(number) + _END, end)

    def marked(self, number: int, which: int, device_time: float) -> None:
        """When the device got to an event's start (0) or end (1)."""
        if number >= self.count - self._capacity:
            _DOUBLE.pack_into(self._bytes, self._place(number) + _MARKS[which], device_time)

    def events(self) -> list[Event]:
        return _read(self._bytes)

    def _place(self, number: int) -> int:
        return _HEAD.size + number % self._capacity * _EVENT.size


def in_forked_child(method: Callable[[], None]) -> None:
    """Have a bound method called in every process that is forked from this one, for as long as its object lives."""
    weak = weakref.WeakMethod(method)

    def call() -> None:
        found = weak()
        if found is not None:
            found()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)


def read_events(path: str) -> list[Event]:
    """What a process left behind, alive or not; nothing where it never began."""
    try:
        with open(path, "rb") as file:
            return _read(file.read())
    except (OSError, struct.error):
        return []


def _read(data: bytes | mmap.mmap) -> list[Event]:
    count, capacity = _HEAD.unpack_from(data, 0)
    found = []
    for number in range(max(0, count - capacity), count):
        *event, first, second = _EVENT.unpack_from(data, _HEAD.size + number % capacity * _EVENT.size)
        found.append(Event(*event, _known(first), _known(second)))
    return found


def _known(time: float) -> float | None:
    return None if math.isnan(time) else time
