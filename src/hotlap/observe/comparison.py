"""Proof before trust: the first things a swap makes are also made the script's own way, and the two are compared."""

from __future__ import annotations

import math
import mmap
import os
import struct

from hotlap.observe.run import Compared

_SLOTS = 64
_SLOT = struct.Struct("Qd")  # how many one process compared, and the largest difference it saw


class Comparison:
    """The largest difference so far, in memory shared with forked workers: what one of them finds counts for all.

        if comparison.failed:
            return the_scripts_own_way()
        if comparison.is_open:
            comparison.add(difference(swapped, own))

    A difference beyond the limit fails the swap for good, in every process, and is told as a withdrawal."""

    def __init__(self, what: str, limit: float, first: int) -> None:
        self.what, self.limit, self._first = what, limit, first
        self._shared = mmap.mmap(-1, 1 + _SLOTS * _SLOT.size)  # the first byte: whether one of them was beyond it

    @property
    def failed(self) -> bool:
        return bool(self._shared[0])

    @property
    def is_open(self) -> bool:
        """Whether more is to be compared."""
        return not self.failed and self.facts.count < self._first

    @property
    def facts(self) -> Compared:
        counts, differences = zip(*_SLOT.iter_unpack(self._shared[1:]), strict=True)
        return Compared(self.what, sum(counts), max(differences), self.limit)

    def add(self, difference: float) -> None:
        difference = math.inf if math.isnan(difference) else difference
        slot = 1 + os.getpid() % _SLOTS * _SLOT.size
        count, largest = _SLOT.unpack_from(self._shared, slot)
        _SLOT.pack_into(self._shared, slot, count + 1, max(largest, difference))
        if difference > self.limit:
            self._shared[0] = 1

    def __str__(self) -> str:
        found = self.facts
        return f"{self.what}, of the first {found.count}: {found.difference:.3g}, allowed {self.limit:g}"
