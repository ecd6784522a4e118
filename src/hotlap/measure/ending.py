"""Ending a trial that has no pid namespace of its own: every process it started, wherever that hid, and the shared
memory they left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SHM, _NOTES = "/dev/shm", "shm.txt"
_LOOK_SECONDS, _POLL_SECONDS = 0.1, 0.01
_KILL_SECONDS = 5.0  # a process stuck in the kernel is not waited for any longer


class Family:
    """A trial's processes, seen from the supervisor, to which orphans come. Its parent's death, or a SIGTERM, ends
    them too. Shared memory that appeared meanwhile is removed only if it is theirs: by the process number in the name,
    by what Python noted on making it, or because one of them holds it."""

    def __init__(self, folder: str) -> None:
        parent = os.getppid()
        signal.signal(signal.SIGTERM, lambda *_: self._leave())
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
        prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
        self._folder, self._seen = folder, set[int]()
        self._shm_before = set(_names())
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    def wait_for(self, trial: int) -> int:
        """The trial's status; then nothing of it is left."""
        looked = 0.0
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if pid == trial:
                self.end()
                return os.waitstatus_to_exitcode(code)
            if pid == 0:
                time.sleep(_POLL_SECONDS)
            if time.monotonic() - looked > _LOOK_SECONDS:
                looked = time.monotonic()
                self._seen.update(_descendants(os.getpid()))
            self._seen.add(trial)

    def end(self) -> None:
        """Kill and bury until nobody is left: who is killed may have forked meanwhile, and its children come here."""
        self._seen.update(_descendants(os.getpid()))
        theirs = {name for name in _names() if name not in self._shm_before and self._is_theirs(name)}
        deadline = time.monotonic() + _KILL_SECONDS
        while (children := list(_children(os.getpid()))) and time.monotonic() < deadline:
            for pid in [*_descendants(os.getpid())]:
                self._seen.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.001)
        theirs |= {name for name in _names() if name not in self._shm_before and self._is_theirs(name)}
        for name in theirs:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(_SHM, name))

    def _leave(self) -> None:
        self.end()
        os._exit(128 + signal.SIGTERM)

    def _is_theirs(self, name: str) -> bool:
        numbered = re.match(r"torch_(\d+)_", name)
        if numbered and int(numbered[1]) in self._seen:
            return True
        return name in _noted(self._folder) or any(_holds(pid, os.path.join(_SHM, name)) for pid in self._seen)


def note_shared_memory(folder: str) -> None:
    """In the trial: what Python makes there, it registers with its tracker; the tracker dies with the trial."""
    from multiprocessing import resource_tracker

    notes = os.open(os.path.join(folder, _NOTES), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    register = resource_tracker.register

    def noting(name: Any, rtype: str) -> None:
        os.write(notes, f"{name.lstrip('/')}\n{'sem.' + name.lstrip('/') if rtype == 'semaphore' else ''}\n".encode())
        register(name, rtype)

    resource_tracker.register = noting


def _noted(folder: str) -> set[str]:
    try:
        with open(os.path.join(folder, _NOTES)) as file:
            return set(file.read().split("\n")) - {""}
    except OSError:
        return set()


def _names() -> list[str]:
    return os.listdir(_SHM) if sys.platform.startswith("linux") and os.path.isdir(_SHM) else []


def _holds(pid: int, path: str) -> bool:
    try:
        with open(f"/proc/{pid}/maps", errors="replace") as file:
            if path in file.read():
                return True
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == path for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                yield from map(int, file.read().split())


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)
