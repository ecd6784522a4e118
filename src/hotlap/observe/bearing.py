"""What a data set bears: the things it holds that worker processes would share, copy or never get."""

from __future__ import annotations

import ast
import linecache
import multiprocessing
import pickle
import sys
from types import FrameType
from typing import Any

from hotlap.observe.facts import holds_device_memory
from hotlap.parts.forked import minds_children
from hotlap.parts.generators import has_private_generator
from hotlap.parts.open_files import open_handle

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
    if not has_workers and multiprocessing.current_process().daemon:
        return "it is built in a daemon, a process that may have no children"
    if not has_workers and minds_children():
        return "the script minds its child processes itself, and would be told when workers end"
    handle = open_handle(dataset)
    if handle:
        return f"its data set holds an open file ({handle}), whose place all workers would share: open it when reading"
    if method == "fork":
        return ""
    if not has_workers and not is_guarded():
        return f"workers would be started by {method}, which fails without `if __name__ == '__main__':`"
    return _why_not_pickled((dataset, *carried), method)


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
