"""What a swap shows of itself: the largest difference of all processes, and its end where one was beyond the limit."""

from __future__ import annotations

import os

import pytest

from hotlap.measure.sameness import shown
from hotlap.observe.attach import Attached
from hotlap.observe.comparison import Comparison
from hotlap.observe.run import Compared
from hotlap.technique import Choice, Parity, Technique


def in_child(action) -> None:
    pid = os.fork()
    if pid == 0:
        action()
        os._exit(0)
    os.waitpid(pid, 0)


def test_forked_workers_count_into_one_figure() -> None:
    comparison = Comparison("levels", limit=2.0, first=3)
    comparison.add(0.5)
    in_child(lambda: comparison.add(1.5))
    found = comparison.facts
    assert (found.count, found.difference, found.limit) == (2, 1.5, 2.0)
    assert comparison.is_open and not comparison.failed
    in_child(lambda: comparison.add(0.0))
    assert not comparison.is_open
    assert str(comparison) == "levels, of the first 3: 1.5, allowed 2"


@pytest.mark.parametrize("difference", [2.1, float("inf"), float("nan")])
def test_one_beyond_the_limit_ends_it_for_all(difference: float) -> None:
    comparison = Comparison("levels", limit=2.0, first=3)
    in_child(lambda: comparison.add(difference))
    assert comparison.failed and not comparison.is_open
    assert comparison.facts.difference > 2.0
    comparison.add(0.0)
    assert comparison.failed


class Swapping(Technique):
    def parity(self, run: object) -> Parity:
        return Parity.IDENTICAL

    def apply(self, patch, setting) -> None:
        patch.compare("levels apart", limit=0.0).add(setting["apart"])
        patch.compare("never asked", limit=0.0)


def test_what_is_shown_and_what_is_withdrawn() -> None:
    attached = Attached([Choice(Swapping(), {"apart": 0.0}), Choice(Swapping(), {"apart": 7.0})])
    try:
        assert attached.shown == ["swapping (apart 0.0): levels apart, of the first 1: 0, allowed 0"]
        assert attached.withdrawn == ["swapping (apart 7.0): levels apart, of the first 1: 7, allowed 0"]
    finally:
        attached.detach()


@pytest.mark.parametrize(("difference", "passed"), [(0.5, True), (2.5, False)])
def test_it_is_a_figure_of_the_parity_test(difference: float, passed: bool) -> None:
    check = shown(Compared("swapping: levels apart", 16, difference, 2.0))
    assert (check.what, check.figure) == ("swapping: levels apart, of 16", difference)
    assert (check.limit, check.passed) == ("<= 2", passed)
