"""What every epoch costs at its start is part of the pace; what happens once is not."""

from __future__ import annotations

import pytest

from hotlap.measure.child import Recorder
from hotlap.measure.order import Order
from hotlap.measure.pace import pace
from hotlap.measure.trained import Trained
from hotlap.observe.run import Run


def run(seconds: list[float], starts: list[int]) -> Run:
    return Run(torch="2.13.0", device="cpu", step_seconds=seconds, epoch_starts=starts)


def test_a_slow_start_of_each_epoch_is_spread_over_its_steps() -> None:
    epoch = [0.61, *[0.01] * 11]
    assert pace(run(epoch * 5, [0, 12, 24, 36, 48])).level == pytest.approx(0.01 + 0.6 / 12)


def test_epochs_that_start_as_they_go_on_add_nothing() -> None:
    assert pace(run([0.01] * 60, [0, 12, 24, 36, 48])).level == pytest.approx(0.01)


def test_only_the_first_start_is_cold() -> None:
    seconds = [2.0, *[0.01] * 11, *[0.01] * 48]
    assert pace(run(seconds, [0, 12, 24, 36, 48])).level == pytest.approx(0.01)


def test_without_an_epoch_end_the_start_does_not_count() -> None:
    assert pace(run([0.5, *[0.01] * 50], [0])).level == pytest.approx(0.01)


def test_a_cache_that_fills_in_the_first_epoch_is_warm_up() -> None:
    found = pace(run([0.05] * 30 + [0.01] * 60, [0, 30, 60]))
    assert found.level == pytest.approx(0.01)
    assert found.warmup_steps >= 30


@pytest.mark.parametrize("drawn_ahead", [2, 5])
def test_short_epochs_are_timed_whole(drawn_ahead: int) -> None:
    """Workers run ahead: the last steps of an epoch cost nothing, and its first ones wait. However that is spread, and
    wherever the trial ends, the same work takes the same time."""
    epoch = [0.3] + [0.04] * (11 - drawn_ahead) + [0.005] * drawn_ahead
    for cut in range(37, 60):
        found = pace(run((epoch * 5)[:cut], [start for start in (0, 12, 24, 36, 48) if start < cut]))
        assert found.level == pytest.approx(sum(epoch) / 12), cut


def test_a_cache_that_fills_is_left_out_of_short_epochs() -> None:
    seconds = [0.15] * 12 + [0.04] * 36
    assert pace(run(seconds, [0, 12, 24, 36])).level == pytest.approx(0.04)


def test_one_disturbed_epoch_of_three_does_not_count() -> None:
    calm, disturbed = [0.04] * 12, [0.04, *[0.4] * 11]
    assert pace(run([*calm, *calm, *disturbed, *calm, 0.04], [0, 12, 24, 36, 48])).level == pytest.approx(0.04)


def test_what_is_paid_once_does_not_end_a_trial() -> None:
    """Kernels are chosen in the second step, half a minute of compiling comes in the fifth: neither counts for more
    than five usual steps."""
    recorder = Recorder(Order(name="train.py", seconds=1.01, steps_at_least=24, seconds_at_most=8.0))
    ended = 0
    for count, seconds in enumerate([3.0, 0.02, 0.02, 30.0, 8.0, *[0.02] * 200], 2):
        recorder._trained.add(seconds)
        if recorder._is_enough(count, recorder._trained.seconds):
            ended = count
            break
    assert ended == 1 + 3 + 36, "after three times 0.1 s, 36 steps of 0.02 s make it more than 1.01"


def test_workers_that_deliver_by_turns_are_not_paid_once() -> None:
    """Eight batches come at once, and then none for a while: that is how it trains."""
    trained = Trained()
    for _ in range(25):
        for seconds in (1.0, *[0.005] * 7):
            trained.add(seconds)
    assert 25.875 - 8.0 < trained.seconds < 25.875


def test_a_step_that_becomes_slower_for_good_counts_in_full() -> None:
    trained = Trained()
    for seconds in [*[0.01] * 40, *[1.0] * 100]:
        trained.add(seconds)
    assert trained.seconds > 80.0
