"""What the system counts of a process: bytes read, cores waited for, memory."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

_SHM = "/dev/shm"


class Reading:
    __slots__ = ("asked_bytes", "cost_bytes", "read_bytes", "waited_seconds")

    def __init__(self, io: bytes, schedule: bytes, own_bytes: int) -> None:
        fields = io.split()
        self.asked_bytes, self.read_bytes = int(fields[1]) - own_bytes, int(fields[9])
        self.waited_seconds = int(schedule.split()[1]) / 1e9 if schedule else 0.0
        self.cost_bytes = len(io) + len(schedule)  # to read the counter is counted, too

    def since(self, before: Reading) -> tuple[int, int, float]:
        return (
            self.read_bytes - before.read_bytes,
            max(0, self.asked_bytes - before.asked_bytes - before.cost_bytes),
            max(0.0, self.waited_seconds - before.waited_seconds),
        )


class Meter:
    """Bytes read by this process, and how long a thread stood runnable without a core."""

    def __init__(self) -> None:
        self._io = _open("/proc/self/io")
        self._threads: dict[int, Any] = {}

    def read(self, thread: int, own_bytes: int) -> Reading | None:
        if self._io is None:
            return None
        if thread not in self._threads:
            self._threads[thread] = _open("/proc/thread-self/schedstat")
        schedule = self._threads[thread]
        try:
            waits = b"" if schedule is None else os.pread(schedule.fileno(), 128, 0)
            return Reading(os.pread(self._io.fileno(), 512, 0), waits, own_bytes)
        except ProcessLookupError:  # an older thread by the same number
            self._threads.pop(thread).close()
            return None
        except (OSError, ValueError, IndexError):  # closed, or written in another way
            return None

    def close(self) -> None:
        for file in (self._io, *self._threads.values()):
            if file is not None:
                file.close()


def _open(path: str) -> Any:
    try:
        return open(path, "rb", buffering=0)
    except OSError:
        return None


def thread_asked_bytes() -> int:
    """By this thread."""
    try:
        return int(Path("/proc/thread-self/io").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import psutil

        return int(psutil.Process().memory_info().rss)


def peak_resident_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def queue_seconds() -> float:
    """How long threads of this process stood runnable but without a core: the sign of a disturbed trial."""
    total = 0
    try:
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/schedstat") as file:
                total += int(file.read().split()[1])
    except (OSError, IndexError):
        return 0.0
    return total / 1e9


def shm_room() -> tuple[int, int]:
    try:
        found = os.statvfs(_SHM)
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
