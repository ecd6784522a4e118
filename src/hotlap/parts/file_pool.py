"""The shared pool in which readers of image files keep what they read: its size, what it holds, and a file's key."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from typing import Any

import psutil

from hotlap.parts.shared_pool import SharedPool

_HOLDS = ("decoded", "encoded", "auto")
_ENOUGH = 64  # images whose sizes are looked at
_BUFFERS = 8
_pool: SharedPool | None = None
_hold = "auto"
_files = 0
_scratch = threading.local()
_seen = [0, 0, 0]  # images, their bytes as files, their bytes as pixels


def set_limit(limit_bytes: int | None = None, hold: str = "auto") -> None:
    """Start over with an empty pool of this size, or a quarter of the free memory, 4 GiB at most. `hold` says what is
    kept: "decoded" pixels, "encoded" files, or "auto", which keeps files where the pixels of all files expected would
    not fit and the files would."""
    global _pool, _hold
    if hold not in _HOLDS:
        raise ValueError(f"hold is one of {', '.join(_HOLDS)}, not {hold!r}")
    limit = default_limit(psutil.virtual_memory().available) if limit_bytes is None else limit_bytes
    _pool, _hold, _seen[:] = SharedPool(limit), hold, [0, 0, 0]


def default_limit(free_bytes: int) -> int:
    return min(4 << 30, free_bytes // 4)


def expect(files: int) -> None:
    """How many files an epoch reads: without that, "auto" keeps pixels."""
    global _files
    _files = max(_files, files)


def clear() -> None:
    """Forget everything and give the memory back; the next `set_limit` starts anew."""
    global _pool, _files
    _pool, _files = None, 0


def is_open() -> bool:
    return _pool is not None


def hits() -> int:
    return _pool.hits if _pool is not None else 0


def used_bytes() -> int:
    return _pool.used_bytes if _pool is not None else 0


def keeps_encoded(key: bytes, pixel_bytes: int) -> bool:
    """What to keep of an image just read, judged by the first ones this process saw."""
    if _hold != "auto":
        return _hold == "encoded"
    if _pool is None or not _files:
        return False
    if _seen[0] < _ENOUGH:
        _seen[:] = _seen[0] + 1, _seen[1] + int(key.split(b"\0")[1]), _seen[2] + pixel_bytes
    count, encoded, decoded = _seen
    return _files * encoded / count <= _pool.limit_bytes < _files * decoded / count


def key(file: Any, about: str = "") -> bytes | None:
    """A file as it is now, read from its start: path, size, times, device and inode. None: no plain file. The second
    time is the system's own, which nobody can set back."""
    try:
        if isinstance(file, (str, os.PathLike)):
            path, stat = os.fspath(file), os.stat(file)
        elif isinstance(file, (io.BufferedReader, io.FileIO)) and isinstance(file.name, str) and file.tell() == 0:
            path, stat = file.name, os.fstat(file.fileno())
        else:
            return None
    except (OSError, AttributeError, ValueError):
        return None
    path = os.path.abspath(os.fsdecode(path))
    seen = (path, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_dev, stat.st_ino, about)
    return "\0".join(map(str, seen)).encode(errors="surrogateescape")


def kept(key: bytes) -> tuple[memoryview, memoryview] | None:
    """Head and body of what a reader kept, the caller's own. Without a head the body is the file itself."""
    found = _pool.get(key, _buffer()) if _pool is not None else None
    if found is None:
        return None
    cut = 4 + int.from_bytes(found[:4], "little")
    return found[4:cut], found[cut:]


def _buffer() -> bytearray:
    """Memory that nobody looks at any more: to get fresh one for every image costs more than to fill it."""
    buffers: list[bytearray] = vars(_scratch).setdefault("buffers", [])
    for number in range(len(buffers)):
        if sys.getrefcount(buffers[number]) == 2:  # the list, and the question itself
            return buffers[number]
    if len(buffers) < _BUFFERS:
        buffers.append(bytearray())
        return buffers[-1]
    return bytearray()


def keep(key: bytes, head: bytes, body: bytes) -> None:
    if _pool is not None:
        _pool.put(key, len(head).to_bytes(4, "little"), head, body)


def keep_file(key_now: bytes, file: Any, about: str = "") -> None:
    """Keep the file itself, if it still is what its key says."""
    path = file if isinstance(file, (str, os.PathLike)) else file.name
    with contextlib.suppress(OSError), open(path, "rb") as fresh:
        if key(fresh, about) == key_now:
            keep(key_now, b"", fresh.read())
