"""What a data set holds that a fork would share: places in open files, locks, connections, memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import islice
from types import ModuleType
from typing import Any

_HANDLES = ("h5py", "netCDF4", "tables", "lmdb", "sqlite3", "rasterio", "socket")  # packages whose objects are such
_IN_MEMORY = (io.BytesIO, io.StringIO)
_DEPTH, _ITEMS = 3, 32


def open_handle(dataset: Any) -> str:
    """Where among the attributes of a data set an open file is, as `self.file` or `self.inner.file`, or ""."""
    return _where(_is_handle, dataset, _DEPTH)


def shared_value(dataset: Any) -> str:
    """Where among them something is that other processes see change, such as a `multiprocessing.Value`, or ""."""
    return _where(_is_shared, dataset, _DEPTH)


def _where(is_such: Callable[[Any], bool], dataset: Any, depth: int) -> str:
    for name, value in _attributes(dataset):
        if is_such(value):
            return f"self.{name}"
        if depth and hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
            below = _where(is_such, value, depth - 1)
            if below:
                return f"self.{name}{below.removeprefix('self')}"
    return ""


def _attributes(dataset: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        yield name, value
        if isinstance(value, (list, tuple, dict)):  # a long one holds the same kind throughout
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from ((f"{name}[{key!r}]", item) for key, item in islice(items, _ITEMS))


def _is_handle(value: Any) -> bool:
    if isinstance(value, io.IOBase):
        return not isinstance(value, _IN_MEMORY) and not value.closed
    package = type(value).__module__.partition(".")[0]
    if package not in _HANDLES:
        return False
    return bool(value) if package == "h5py" else True  # a closed one of h5py is false


def _is_shared(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "multiprocessing"
