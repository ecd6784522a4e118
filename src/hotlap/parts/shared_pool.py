"""A pool of bytes in memory that a process shares with its workers: one copy for all, bounded, and it evicts.

    from hotlap.parts.shared_pool import SharedPool

    pool = SharedPool(4 << 30)
    content = pool.get(key)
    if content is None:
        pool.put(key, made(key))

Keys and values are bytes. Make it before the workers are forked, or hand it to those that are spawned."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import multiprocessing.context
import os
import struct
import tempfile
import threading
import weakref
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any

from hotlap.parts.shared_blocks import SharedBlocks

_HEADER = 16  # numbers of eight bytes, by these names:
_BUSY, _CLOCK, _HITS, _MISSES, _GENERATION, _TRACKED, _LONGEST, _EARLIER, _TURN, _HAND = range(10)
_OF_BLOCKS = 10  # the numbers from here on
_ENTRY = struct.Struct("16sQQQQ")  # key, when last asked for, generation, length, first block + 1 (0: nothing is kept)
_WAYS = 32  # slots a key may lie in, side by side
_BUCKET = _WAYS * _ENTRY.size
_NOBODY = bytes(16)
_SWEPT = 4  # buckets looked through for room, each time there is none


class SharedPool:
    """`get` and `put` by key. Values may take `limit_bytes`, in whole blocks; the table of keys comes on top, about a
    four-hundredth of that. Memory is taken only as it fills.

    **What goes, what stays.** In training every key is asked for once an epoch, so the one used last is the one needed
    latest: a pool that throws the oldest out keeps nothing of use. A value therefore stays until it is stale: not asked
    for during twice the longest time that lately passed between two requests for any one key. That longest time is
    close to two epochs of a shuffled data set, and counted in requests. Keys without room are remembered as well, so
    that it is known also while nothing is ever found. What is stale belongs to a data set, or to a state of a file,
    that is no longer read; it goes as soon as room is wanted. Where nothing is stale, newcomers are turned away.

    **Nobody sees half a value.** `get` copies without the lock and then looks, with it, whether the generation of the
    slot is still the same. The kernel takes the lock from a process that dies; if it died at work, all starts over.

    Workers may be forked, or started with the pool among their arguments: it lies in a file without a name, so nothing
    is left behind and the size of /dev/shm does not matter."""

    def __init__(self, limit_bytes: int, expected_entry_bytes: int = 64 * 1024) -> None:
        slots = 1024
        while slots * expected_entry_bytes < 2 * limit_bytes:
            slots *= 2
        self._open(None, limit_bytes, slots)

    def _open(self, file: int | None, limit_bytes: int, slots: int) -> None:
        self.limit_bytes, self._buckets = limit_bytes, slots // _WAYS
        block_bytes = 4096 if limit_bytes >= 1 << 20 else 64
        blocks = limit_bytes // block_bytes
        links_start = 8 * _HEADER + slots * _ENTRY.size
        links_end = links_start + 4 * blocks
        start = -(-links_end // mmap.PAGESIZE) * mmap.PAGESIZE
        size = start + blocks * block_bytes
        self._file = _nameless_file(size) if file is None else file
        self._memory = mmap.mmap(self._file, size)
        view = memoryview(self._memory)
        self._head = view[: 8 * _HEADER].cast("Q")
        self._table = view[8 * _HEADER : links_start]
        links = view[links_start:links_end].cast("I")
        self._blocks = SharedBlocks(self._head[_OF_BLOCKS:], links, view[start:], block_bytes)
        self._threads = threading.Lock()
        self._own = os.fstat(self._file)
        weakref.finalize(self, _close, self._file, self._own).atexit = False
        _pools.add(self)

    def __reduce__(self) -> Any:
        if multiprocessing.context.get_spawning_popen() is None:
            raise TypeError("a shared pool can be passed only to a process that is being started")
        slots = self._buckets * _WAYS
        return _opened, (reduction.DupFd(self._file), self.limit_bytes, slots)  # type: ignore[no-untyped-call]

    @property
    def used_bytes(self) -> int:
        return self._blocks.in_use * self._blocks.block_bytes

    @property
    def hits(self) -> int:
        return self._head[_HITS]

    @property
    def misses(self) -> int:
        return self._head[_MISSES]

    def get(self, key: bytes, scratch: bytearray | None = None) -> memoryview | None:
        """A copy of the value, the caller's own. A reader that is done with one value before it asks for the next can
        give the same `scratch` each time: fresh memory for every value costs more than the copy."""
        with contextlib.suppress(OSError):  # a script that closes all files closes ours
            return self._got(key, scratch)
        return None

    def put(self, key: bytes, *pieces: bytes | memoryview) -> bool:
        """Keep a value given in pieces; False when there is no room for it or the key is already there."""
        with contextlib.suppress(OSError):
            return self._kept(key, memoryview(b"".join(pieces)))
        return False

    def _got(self, key: bytes, scratch: bytearray | None) -> memoryview | None:
        digest, head = _digest(key), self._head
        with self._alone():
            head[_CLOCK] += 1
            slot = self._slot(digest)
            _, _, generation, length, first = self._asked(digest, slot)
            if slot is None or not first:
                head[_MISSES] += 1
                return None
            runs = self._blocks.runs(first)
        copied = bytearray().join(runs) if scratch is None else _copied(runs, scratch)
        with self._alone():
            is_whole = self._slot(digest) == slot and _ENTRY.unpack_from(self._table, slot)[2] == generation
            head[_HITS if is_whole else _MISSES] += 1
        return memoryview(copied)[:length] if is_whole else None

    def _kept(self, key: bytes, value: memoryview) -> bool:
        digest, head = _digest(key), self._head
        needed = self._blocks.needed(len(value))
        with self._alone():
            slot = self._slot(digest)
            if slot is None:
                slot = self._vacant(digest, or_remembered=True)
            if slot is None or _ENTRY.unpack_from(self._table, slot)[4] or not self._has_room(needed):
                return False
            first = self._blocks.take(value)
            head[_GENERATION] += 1
            self._set(slot, digest, head[_CLOCK], head[_GENERATION], len(value), first)
            return True

    # one at a time ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with self._threads:  # the kernel's lock knows processes only
            if not os.path.samestat(os.fstat(self._file), self._own):
                raise OSError("closed, and the number is another file's")
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                if self._head[_BUSY]:
                    self._start_over()
                self._head[_BUSY] = 1
                yield
                self._head[_BUSY] = 0
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _start_over(self) -> None:
        """Whoever was at work was ended halfway. Generations go on, so that no reader takes new bytes for old."""
        self._table[:] = bytes(len(self._table))
        self._blocks.clear()
        self._head[_TRACKED] = self._head[_HAND] = 0

    # keys ------------------------------------------------------------------------------------------------------

    def _bucket(self, digest: bytes) -> int:
        return int.from_bytes(digest[:8], "little") % self._buckets * _BUCKET

    def _slot(self, digest: bytes) -> int | None:
        """Where in the table a key lies."""
        bucket = self._bucket(digest)
        at = bytes(self._table[bucket : bucket + _BUCKET]).find(digest)
        return None if at % _ENTRY.size else bucket + at  # -1 is no multiple either

    def _entries(self, bucket: int) -> Iterator[tuple[int, bytes, int, int]]:
        """Slot, key, when last asked for, first block."""
        entries = _ENTRY.iter_unpack(bytes(self._table[bucket : bucket + _BUCKET]))
        for number, (digest, asked, _, _, first) in enumerate(entries):
            yield bucket + number * _ENTRY.size, digest, asked, first

    def _vacant(self, digest: bytes, or_remembered: bool = False) -> int | None:
        """A slot for a new key: a free one, a stale one, or, for a value, that of a key which is only remembered."""
        remembered = None
        for slot, owner, asked, first in self._entries(self._bucket(digest)):
            if owner == _NOBODY:
                return slot
            if self._is_stale(asked):
                self._evict(slot)
                return slot
            remembered = remembered if first else slot
        if remembered is None or not or_remembered:
            return None
        self._evict(remembered)
        return remembered

    def _asked(self, digest: bytes, slot: int | None) -> tuple[Any, ...]:
        """Takes down that a key was asked for, and after how long."""
        now = self._head[_CLOCK]
        if slot is None:
            slot = self._vacant(digest)
            if slot is not None:
                self._set(slot, digest, now, 0, 0, 0)
            return _ENTRY.unpack(bytes(_ENTRY.size))
        entry = _ENTRY.unpack_from(self._table, slot)
        self._head[_LONGEST] = max(self._head[_LONGEST], now - entry[1])
        if now >= self._head[_TURN]:
            self._head[_EARLIER], self._head[_LONGEST] = self._head[_LONGEST], 0
            self._head[_TURN] = now + 4 * max(self._head[_EARLIER], self._head[_TRACKED])
        _ENTRY.pack_into(self._table, slot, entry[0], now, *entry[2:])
        return entry

    def _set(self, slot: int, digest: bytes, *rest: int) -> None:
        is_new = bytes(self._table[slot : slot + 16]) == _NOBODY
        self._head[_TRACKED] += is_new
        _ENTRY.pack_into(self._table, slot, digest, *rest)

    # room ------------------------------------------------------------------------------------------------------

    def _is_stale(self, asked: int) -> bool:
        head = self._head
        return head[_CLOCK] - asked > 2 * max(head[_LONGEST], head[_EARLIER], head[_TRACKED])

    def _has_room(self, needed: int) -> bool:
        """Also where something stale must go for it. Each call looks through the next few buckets only."""
        for _ in range(_SWEPT):
            if self._blocks.left >= needed:
                return True
            for slot, owner, asked, _first in self._entries(self._head[_HAND] * _BUCKET):
                if owner != _NOBODY and self._is_stale(asked):
                    self._evict(slot)
            self._head[_HAND] = (self._head[_HAND] + 1) % self._buckets
        return self._blocks.left >= needed

    def _evict(self, slot: int) -> None:
        first = _ENTRY.unpack_from(self._table, slot)[4]
        self._table[slot : slot + _ENTRY.size] = bytes(_ENTRY.size)
        self._head[_TRACKED] -= 1
        if first:
            self._blocks.give_back(first)


def _digest(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()


def _copied(runs: list[memoryview], scratch: bytearray) -> bytearray:
    missing = sum(map(len, runs)) - len(scratch)
    if missing > 0:
        try:
            scratch.extend(bytes(missing))
        except BufferError:  # somebody still looks at an earlier value
            return bytearray().join(runs)
    at = 0
    for run in runs:
        memoryview(scratch)[at : at + len(run)] = run
        at += len(run)
    return scratch


def _nameless_file(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("hotlap-pool")
    else:
        with tempfile.TemporaryFile() as temporary:
            file = os.dup(temporary.fileno())
    os.truncate(file, size)
    return file


def _close(file: int, own: os.stat_result) -> None:
    with contextlib.suppress(OSError):  # a script that closes all files closed this one, and may have the number now
        if os.path.samestat(os.fstat(file), own):
            os.close(file)


def _opened(file: Any, limit_bytes: int, slots: int) -> SharedPool:
    pool = SharedPool.__new__(SharedPool)
    pool._open(file.detach(), limit_bytes, slots)
    return pool


_pools: weakref.WeakSet[SharedPool] = weakref.WeakSet()


def _after_fork() -> None:
    """Another thread may have held the lock, and that thread is not here."""
    for pool in _pools:
        pool._threads = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
