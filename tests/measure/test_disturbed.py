"""A trial that had to share its cores is repeated once; a plan that crowds them by itself is not mistaken for a noisy
machine; and trials of short epochs hold whole ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hotlap.catalogue import find
from hotlap.measure.bench import Bench
from hotlap.measure.order import Order
from hotlap.measure.timed import Timed
from hotlap.measure.trial import Trial
from hotlap.observe.run import LoaderFacts, Run
from hotlap.technique import Choice

PLAN = [Choice(find("fused-optimizer"), {"kind": "fused"}), Choice(find("channels-last"), {})]


class Listener:
    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Queues:
    """Trials that stood runnable for a second or not at all, one after the other."""

    def __init__(self, crowded: Sequence[bool]) -> None:
        self._crowded, self.orders = list(crowded), []

    def run(self, order: Order, on_progress: Any) -> Trial:
        is_crowded = self._crowded[len(self.orders)]
        self.orders.append(order)
        seconds = 0.02 if is_crowded else 0.01
        run = Run(
            torch="2.13.0", device="cpu", step_seconds=[seconds] * 60, queue_seconds=float(is_crowded), threads=1,
            wall_seconds=2.0,
        )  # fmt: skip
        return Trial("enough", run, None, 2.0, "")


def bench(*crowded: bool) -> tuple[Bench, Queues]:
    trials = Queues(crowded)
    return Bench(trials, Order(name="train.py"), 1.0, Listener()), trials  # type: ignore[arg-type]


def level(timing: Any) -> float:
    assert isinstance(timing, Timed)
    return timing.level


def test_a_disturbed_trial_is_repeated_once() -> None:
    made, trials = bench(True, False, False)
    assert level(made.time([], "the script", "baseline")) == pytest.approx(0.01)
    made.time([], "the script", "baseline")
    assert len(trials.orders) == 3
    assert made.disturbed_share == pytest.approx(1 / 3)


def test_a_plan_that_crowds_the_machine_is_not_repeated_for_ever_nor_called_noise() -> None:
    made, trials = bench(False, True, True, True, False)
    made.time([], "the script", "baseline")
    assert level(made.time(PLAN, "plan", "confirm")) == pytest.approx(0.02)
    made.time(PLAN[::-1], "plan", "confirm")  # in another order it is the same plan
    made.time([], "the script", "baseline")
    assert len(trials.orders) == 5
    assert made.disturbed_share == 0


def test_where_the_script_itself_is_disturbed_all_the_time_the_machine_is_noisy() -> None:
    made, _ = bench(*[True] * 6)
    made.time([], "the script", "baseline")
    made.time(PLAN, "plan", "confirm")
    made.time([], "the script", "baseline")
    assert made.disturbed_share == 1


@pytest.mark.parametrize(
    ("epoch", "step_seconds", "steps"),
    [
        (12, 0.01, 37),  # the first, two more, and the start of another
        (5, 0.01, 31),
        (30, 0.01, 91),
        (30, 0.06, 54),  # too long for that: past the first epoch
        (30, 0.1, 24),  # and for that
        (100, 0.01, 124),  # long enough to be timed by its steps
    ],
)
def test_trials_of_short_epochs_hold_whole_ones(epoch: int, step_seconds: float, steps: int) -> None:
    made, trials = bench(False)
    loader = LoaderFacts(
        dataset="Photos", batch_size=8, num_workers=0, prefetch_factor=None, persistent_workers=False, pin_memory=False,
        iterable=False, in_memory=False, length=8 * epoch, private_generator=False, start_method="fork", trains=True,
    )  # fmt: skip
    seen = made.see_past_an_epoch(Run(torch="2.13.0", device="cpu", step_seconds=[step_seconds] * 30, loaders=[loader]))
    made.time([], "the script", "baseline")
    assert trials.orders[0].steps_at_least == steps
    assert seen is (steps > 24)
