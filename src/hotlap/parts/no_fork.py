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
        self._inside = self._forking = 0  # threads

    def __enter__(self) -> None:
        if not self._depth:
            with self._changed:
                while self._forking:  # one that goes in and out all the time would never let it
                    self._changed.wait()
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
        """Who forks does nothing else meanwhile and counts as outside: else two inside would wait for each other. What
        its thread is made to do all the same, by a signal or another hook, has not to wait for its own fork."""
        self._changed.acquire()
        self._inside -= bool(self._depth)
        self._own.depth = self._depth + 1
        self._forking += 1
        while self._inside:
            self._changed.wait()

    def after_fork(self) -> None:
        self._changed.notify_all()  # first: raises where a signal kept the above from beginning
        self._forking -= 1
        self._own.depth -= 1
        self._inside += bool(self._depth)
        self._changed.release()

    def after_fork_in_child(self) -> None:
        """No other thread has come along, whatever it was at."""
        self._inside, self._forking = 0, 1
        self.after_fork()


no_fork = NoFork()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=no_fork.before_fork,
        after_in_parent=no_fork.after_fork,
        after_in_child=no_fork.after_fork_in_child,
    )
