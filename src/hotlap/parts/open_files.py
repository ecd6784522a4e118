"""Open files that a data set holds: their place in the file, lock or connection would be shared by a fork."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_HANDLES = ("h5py", "netCDF4", "tables", "lmdb", "sqlite3", "rasterio", "socket")  # packages whose objects are such
_IN_MEMORY = (io.BytesIO, io.StringIO)
_DEPTH, _ITEMS = 3, 32


def open_handle(dataset: Any, depth: int = _DEPTH) -> str:
    """Where among the attributes of a data set an open file is, as `self.file` or `self.inner.file`, or ""."""
    for name, value in _attributes(dataset):
        if _is_handle(value):
            return f"self.{name}"
        if depth and hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
            below = open_handle(value, depth - 1)
            if below:
                return f"self.{name}{below.removeprefix('self')}"
    return ""


def _attributes(dataset: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        yield name, value
        if isinstance(value, (list, tuple, dict)) and len(value) <= _ITEMS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{name}[{key!r}]", item) for key, item in items)


def _is_handle(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not isinstance(value, _IN_MEMORY) and not value.closed
    package = type(value).__module__.partition(".")[0]
    if package not in _HANDLES:
        return False
    return bool(value) if package == "h5py" else True  # a closed one of h5py is false
