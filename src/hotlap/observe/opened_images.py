"""Image files as they are opened, by the script or its forked workers: how many, and the folder they lie in."""

from __future__ import annotations

import mmap
import os
import struct
from typing import Any

_LOOKED_AT = 64  # opened files, in each process
_ROOM = 4096
_SLOTS = 64  # of the count, by process


class OpenedImages:
    """Takes part wherever an image is opened."""

    def __init__(self) -> None:
        self.folder = DataFolder()
        self._counts = mmap.mmap(-1, 8 * _SLOTS)  # shared with forked workers

    @property
    def count(self) -> int:
        return sum(struct.unpack(f"{_SLOTS}Q", self._counts))

    def opened(self, proceed: Any, *args: Any, **kwargs: Any) -> Any:
        slot = os.getpid() % _SLOTS * 8
        struct.pack_into("Q", self._counts, slot, struct.unpack_from("Q", self._counts, slot)[0] + 1)
        if args:
            self.folder.opened(args[0])
        return proceed(*args, **kwargs)


class DataFolder:
    """What the first files opened have in common, told by whoever opens them: the script or its forked workers."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _ROOM)
        self._seen = 0

    @property
    def path(self) -> str:
        return os.fsdecode(self._shared[:].rstrip(b"\0"))

    def opened(self, file: Any) -> None:
        """Cheap after the first few. Two processes at once may each forget the other's word: the next file mends it."""
        if self._seen >= _LOOKED_AT:
            return
        self._seen += 1
        name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", None)
        if not isinstance(name, (str, os.PathLike)):
            return
        folder = os.path.dirname(os.path.abspath(os.fsdecode(name)))
        known = self.path
        common = os.fsencode(os.path.commonpath([known, folder]) if known else folder)
        if len(common) <= _ROOM:
            self._shared[:] = common.ljust(_ROOM, b"\0")
