"""Work during which nobody may fork: several threads at once, and forks that wait for all of them."""

from __future__ import annotations

import os
import threading

import pytest

from hotlap.parts.no_fork import no_fork

PATIENCE_SECONDS = 20.0

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def fork() -> int:
    """The child's exit code, which is 0 if it can go inside as well."""
    child = os.fork()
    if not child:
        with no_fork:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Inside(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with no_fork, no_fork:
            self.begun.set()
            self.go_on.wait(PATIENCE_SECONDS)


def test_threads_are_inside_at_once_and_a_fork_waits_for_all_of_them() -> None:
    threads = [Inside(), Inside()]
    assert all(thread.begun.wait(PATIENCE_SECONDS) for thread in threads)
    codes: list[int] = []
    forking = threading.Thread(target=lambda: codes.append(fork()))
    forking.start()
    for thread in threads:
        forking.join(0.1)
        assert not codes
        thread.go_on.set()
        thread.join()
    forking.join(PATIENCE_SECONDS)
    assert codes == [0]


def test_who_is_inside_may_fork() -> None:
    with no_fork:
        assert fork() == 0
    assert fork() == 0
