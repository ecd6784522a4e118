"""Work during which nobody may fork: several threads at once, and forks that wait for all of them."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from hotlap.parts.no_fork import NoFork, no_fork

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


class Forking(threading.Thread):
    """What happens round a fork, without one: a test that fails must not keep others from forking."""

    def __init__(self, own: NoFork) -> None:
        super().__init__(daemon=True)
        self.own, self.has_forked = own, False

    def run(self) -> None:
        self.own.before_fork()
        self.has_forked = True
        self.own.after_fork()


def test_one_that_goes_in_and_out_all_the_time_lets_forks_happen() -> None:
    own, is_over = NoFork(), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            with own:
                time.sleep(0.01)

    threading.Thread(target=work, daemon=True).start()
    try:
        for _ in range(5):
            forking = Forking(own)
            forking.start()
            forking.join(PATIENCE_SECONDS)
            assert forking.has_forked
    finally:
        is_over.set()


def test_two_inside_may_fork_at_once() -> None:
    own, both = NoFork(), threading.Barrier(2)

    class InsideForking(Forking):
        def run(self) -> None:
            with self.own:
                both.wait(PATIENCE_SECONDS)
                super().run()

    threads = [InsideForking(own), InsideForking(own)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert all(thread.has_forked for thread in threads)
    own.before_fork()  # nobody is inside any more


def test_who_forks_may_go_inside_meanwhile() -> None:
    """As a signal's handler may."""
    own = NoFork()

    class InsideLater(Forking):
        def run(self) -> None:
            own.before_fork()
            with own:
                self.has_forked = True
            own.after_fork()

    for _ in range(2):
        thread = InsideLater(own)
        thread.start()
        thread.join(PATIENCE_SECONDS)
        assert thread.has_forked
    with own:
        pass


def test_a_child_has_only_the_thread_that_forked() -> None:
    """Another one waits to fork meanwhile."""
    own, codes = NoFork(), []

    def forked() -> None:
        own.before_fork()
        child = os.fork()
        if not child:
            signal.alarm(int(PATIENCE_SECONDS))
            own.after_fork_in_child()
            with own:
                os._exit(0)
        own.after_fork()
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    threads = [threading.Thread(target=forked, daemon=True) for _ in range(2)]
    with own:
        for thread in threads:
            thread.start()
        while own._forking < 2:
            time.sleep(0.01)
    for thread in threads:
        thread.join(2 * PATIENCE_SECONDS)
    assert codes == [0, 0]
