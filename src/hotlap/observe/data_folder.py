"""The folder that the data set's files lie in, as far as they are seen to be opened."""

from __future__ import annotations

import mmap
import os
from typing import Any

_LOOKED_AT = 64  # opened files, in each process
_ROOM = 4096


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
