"""What a data set bears: the things it holds that worker processes would share, copy or never get."""

from __future__ import annotations

import ast
import io
import linecache
import pickle
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

from hotlap.observe.facts import has_private_generator, holds_device_memory

# Handles of these packages hold a place in a file, a lock or a connection that a fork would share.
_HANDLES = ("h5py", "netCDF4", "tables", "lmdb", "sqlite3", "rasterio", "socket")
_IN_MEMORY = (io.BytesIO, io.StringIO)
_DEPTH, _ITEMS = 3, 32
_PICKLED_AT_MOST = 256 * 2**20  # bytes, once for every worker


def why_no_workers(dataset: Any, method: str, carried: tuple[Any, ...] = (), has_workers: bool = False) -> str:
    """Why the number of its workers cannot be chosen freely, or "". `carried` goes to each worker along with it.
    Nothing is read; only what `method` starts by pickling is pickled."""
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return "its data set is iterable: each worker would deliver all of it, or a share of its own"
    if has_private_generator(dataset):
        return "its data set owns a random generator, which all workers would copy"
    if holds_device_memory(dataset):
        return "its data set holds tensors on the device, which workers cannot touch"
    handle = open_handle(dataset)
    if handle:
        return f"its data set holds an open file ({handle}), whose place all workers would share: open it when reading"
    if method == "fork":
        return ""
    if not has_workers and not is_guarded():
        return f"workers would be started by {method}, which fails without `if __name__ == '__main__':`"
    return _why_not_pickled((dataset, *carried), method)


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


def is_guarded() -> bool:
    """Whether the script came here through its `if __name__ == "__main__":`, so that a process that imports it does
    not come here again."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (frame.f_code.co_name, frame.f_globals.get("__name__")) != ("<module>", "__main__"):
        frame = frame.f_back
    if frame is None:
        return False
    try:
        body = ast.parse("".join(linecache.getlines(frame.f_code.co_filename))).body
    except (SyntaxError, ValueError):
        return False
    guards = [one for one in body if isinstance(one, ast.If) and "__name__" in ast.unparse(one.test)]
    return any(one.lineno <= frame.f_lineno <= (one.end_lineno or 0) for one in guards)


class _TooLarge(Exception):
    pass


class _Scale:
    """A file that only counts."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.bytes += size
        if self.bytes > _PICKLED_AT_MOST:
            raise _TooLarge
        return size


def _why_not_pickled(things: tuple[Any, ...], method: str) -> str:
    try:
        pickle.Pickler(_Scale(), protocol=5).dump(things)
    except _TooLarge:
        return f"{method} would copy its data set, more than {_PICKLED_AT_MOST >> 20} MiB, into every worker"
    except Exception as error:  # whatever a class of the script's own raises here
        return f"{method} cannot send it to a worker ({type(error).__name__}: {error})"
    return ""
