"""`with no_fork:` work during which this process must not be forked: a child must not inherit torch's and the driver's
locks. Several threads may be at it at once. A fork waits until none is but the one that forks, and lets none begin."""

from __future__ import annotations

import os
import threading
from typing import Any


class NoFork:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._own = threading.local()
        self._inside = 0  # threads

    def __enter__(self) -> None:
        if not self._depth:
            with self._changed:
                self._inside += 1
        self._own.depth = self._depth + 1

    def __exit__(self, *error: Any) -> None:
        self._own.depth -= 1
        if not self._depth:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @property
    def _depth(self) -> int:
        return int(getattr(self._own, "depth", 0))

    def before_fork(self) -> None:
        self._changed.acquire()
        while self._inside > bool(self._depth):
            self._changed.wait()

    def after_fork(self) -> None:
        self._changed.release()


no_fork = NoFork()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=no_fork.before_fork, after_in_parent=no_fork.after_fork, after_in_child=no_fork.after_fork
    )
