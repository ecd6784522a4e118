"""A pool of bytes in memory shared by a process and its forked workers: one copy for all, bounded, never moved."""

from __future__ import annotations

import hashlib
import mmap
import multiprocessing
import struct

_HEADER = struct.Struct("QQQ")  # bytes used, hits, misses
_ENTRY = struct.Struct("16sQQ")  # key, offset, length
_EMPTY = bytes(16)
_PATIENCE = 1.0  # seconds: a worker killed with the lock in its hands must not stop the others


class SharedPool:
    """`get` and `put` by key. Once full it keeps what it has: under the cyclic reads of training epochs that beats any
    rule that throws the oldest out. Make it before workers are forked; memory is taken only as it fills."""

    def __init__(self, limit_bytes: int, expected_entry_bytes: int = 64 * 1024) -> None:
        self.limit_bytes = limit_bytes
        slots = 1024
        while slots * expected_entry_bytes < 2 * limit_bytes:
            slots *= 2
        self._slots = slots
        self._data_start = _HEADER.size + slots * _ENTRY.size
        self._memory = mmap.mmap(-1, self._data_start + limit_bytes)
        self._view = memoryview(self._memory).toreadonly()
        self._lock = multiprocessing.get_context("fork").Lock()
        self._is_lost = False  # in this process: whoever held the lock is gone

    @property
    def used_bytes(self) -> int:
        return int(_HEADER.unpack_from(self._memory)[0])

    @property
    def hits(self) -> int:
        return int(_HEADER.unpack_from(self._memory)[1])

    @property
    def misses(self) -> int:
        return int(_HEADER.unpack_from(self._memory)[2])

    def get(self, key: bytes) -> memoryview | None:
        """A view into the pool: nothing is copied, and entries never move."""
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if not self._acquired():
            return None
        try:
            slot = self._find(digest)
            used, hits, misses = _HEADER.unpack_from(self._memory)
            if slot is None:
                _HEADER.pack_into(self._memory, 0, used, hits, misses + 1)
                return None
            found, offset, length = _ENTRY.unpack_from(self._memory, slot)
            hit = found == digest
            _HEADER.pack_into(self._memory, 0, used, hits + hit, misses + (not hit))
        finally:
            self._lock.release()
        return self._view[offset : offset + length] if hit else None

    def put(self, key: bytes, *pieces: bytes) -> bool:
        """Keep a value given in pieces; False when there is no room left or the key is already there."""
        size = sum(map(len, pieces))
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if not self._acquired():
            return False
        try:
            slot = self._find(digest)
            used, hits, misses = _HEADER.unpack_from(self._memory)
            if slot is None or used + size > self.limit_bytes:
                return False
            if _ENTRY.unpack_from(self._memory, slot)[0] == digest:
                return False
            offset = end = self._data_start + used
            for piece in pieces:
                self._memory[end : end + len(piece)] = piece
                end += len(piece)
            _ENTRY.pack_into(self._memory, slot, digest, offset, size)
            _HEADER.pack_into(self._memory, 0, used + size, hits, misses)
            return True
        finally:
            self._lock.release()

    def _acquired(self) -> bool:
        """Waits in vain only once: after that the pool is as good as empty."""
        self._is_lost = self._is_lost or not self._lock.acquire(timeout=_PATIENCE)
        return not self._is_lost

    def _find(self, digest: bytes) -> int | None:
        """Offset of the key's slot, or of the free slot where it belongs; None when the table is full round there."""
        first = int.from_bytes(digest[:8], "little") % self._slots
        for step in range(64):
            slot = _HEADER.size + (first + step) % self._slots * _ENTRY.size
            found = self._memory[slot : slot + 16]
            if found in (digest, _EMPTY):
                return slot
        return None
