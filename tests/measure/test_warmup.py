"""Where warm-up ends: made-up series of every cause, 100 of each, and causes planted into recorded ones. What is known
not to work is asserted as such, so that mending it shows."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hotlap.measure.pace import pace
from hotlap.measure.warmup import warmup_steps
from hotlap.observe.run import Run

SERIES = Path(__file__).parent / "series"


def steady(count: int, level: float = 1.0, seed: int = 0) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(level, 0.03 * level) for _ in range(count)]


def test_none_is_found_where_there_is_none() -> None:
    assert all(warmup_steps(steady(80, seed=seed)) == 0 for seed in range(20))


def test_compile_spikes_are_left_out() -> None:
    assert warmup_steps([30.0, 8.0, *steady(80)]) == 8


def test_a_cache_that_fills_in_the_first_epoch() -> None:
    assert warmup_steps(steady(64, 3.0) + steady(100)) == 64


def test_a_storm_never_settles() -> None:
    storm = [9.0 if i % 6 == 0 else 1.0 for i in range(120)]
    assert warmup_steps(storm) is None


def test_few_steps_are_not_judged() -> None:
    assert warmup_steps([1.0] * 8) is None


def test_one_late_spike_is_a_one_off_cost() -> None:
    assert warmup_steps([*steady(60), 20.0, *steady(60)]) == 0


# every cause, a hundred times -------------------------------------------------------------------------------------


def found(series: Callable[[int], list[float]]) -> list[int | None]:
    return [warmup_steps(series(seed)) for seed in range(100)]


def share(answers: list[int | None], good: Callable[[int | None], bool]) -> float:
    return sum(map(good, answers)) / len(answers)


@pytest.mark.parametrize(
    ("start", "steps"),
    [
        ([], 0),
        ([30.0, 8.0], 8),  # compiled forward, then backward
        ([40.0, 1.8, 1.4], 8),  # algorithms searched for, then pages touched for the first time
        ([3.0] * 64, 64),  # an epoch that fills a cache
        ([3.0] * 75, 80),  # one whose end lies within a block
    ],
)
def test_what_ends_at_a_step_is_left_out_to_the_block(start: list[float], steps: int) -> None:
    assert set(found(lambda seed: start + steady(100, seed=seed))) == {steps}


def test_a_somewhat_slower_first_step_costs_a_block_at_most() -> None:
    assert set(found(lambda seed: [1.6, *steady(100, seed=seed)])) <= {0, 8}
    assert set(found(lambda seed: [1.6, *steady(26, seed=seed)])) <= {3, 6, 9, 12}  # few steps: blocks of three


def test_a_late_search_for_the_last_smaller_batch_is_a_one_off_cost() -> None:
    answers = found(lambda seed: [40.0, *steady(39, seed=seed), 25.0, *steady(100, seed=seed + 1)])
    assert set(answers) == {8}


def growth(seed: int, tau: float = 10.0, height: float = 2.0) -> list[float]:
    """An allocator that grows: what it costs dies away."""
    return [v * (1 + height * math.exp(-i / tau)) for i, v in enumerate(steady(16 * int(tau), seed=seed))]


def test_growth_is_left_out_up_to_a_few_steps() -> None:
    """It is within 5 % from step 37 on. Known to be weak: some are declared settled a block early, when it is within
    the 5 % on the block's average; never more than that."""
    answers = found(growth)
    assert set(answers) <= {32, 40, 48}
    assert 0.05 < share(answers, lambda steps: steps == 32) < 0.4


def leak(seed: int, steps: int, growth: float = 0.005) -> list[float]:
    return [v * (1 + growth * i) for i, v in enumerate(steady(steps, seed=seed))]


@pytest.mark.parametrize("steps", [48, 100, 200, 400])
def test_a_slow_leak_is_refused(steps: int) -> None:
    assert share(found(lambda seed: leak(seed, steps)), lambda answer: answer is None) > 0.9


def test_a_leak_after_compiling_is_refused() -> None:
    assert set(found(lambda seed: [30.0, 8.0, *leak(seed, 200)])) == {None}


def test_what_grows_by_little_or_becomes_faster_is_not() -> None:
    assert None not in found(lambda seed: leak(seed, 200, 0.0002))
    assert None not in found(lambda seed: list(reversed(leak(seed, 400, 0.0005))))


def test_a_regular_storm_is_refused() -> None:
    assert set(found(lambda seed: [9.0 if i % 6 == 0 else v for i, v in enumerate(steady(160, seed=seed))])) == {None}


def storm(seed: int, often: float, cost: float) -> list[float]:
    generator = random.Random(seed)
    return [cost if generator.random() < often else value for value in steady(160, seed=seed)]


@pytest.mark.parametrize("cost", [6.0, 20.0, 50.0, 200.0])
@pytest.mark.parametrize("often", [0.08, 0.12, 0.20, 0.30])
def test_an_irregular_storm_is_refused(often: float, cost: float) -> None:
    """Some series of a rare storm happen to hold less than the twentieth that is allowed."""
    assert share(found(lambda seed: storm(seed, often, cost)), lambda steps: steps is None) > 0.9


def test_rare_spikes_are_no_storm() -> None:
    assert share(found(lambda seed: storm(seed, 0.01, 20.0)), lambda steps: steps is None) < 0.05


def bursts(wait: float, known: bool = True) -> list[int | None]:
    """Eight workers deliver eight batches at once: one step in eight waits, and that is the pace."""
    answers = []
    for seed in range(100):
        busy = steady(160, seed=seed)
        seconds = [wait * v if i % 8 == 0 else v for i, v in enumerate(busy)]
        answers.append(warmup_steps(seconds, busy if known else None))
    return answers


@pytest.mark.parametrize("wait", [3.0, 10.0, 15.0, 100.0])
def test_bursts_of_a_loader_are_no_storm(wait: float) -> None:
    answers = bursts(wait)
    assert None not in answers
    assert share(answers, lambda steps: steps == 0) > 0.8


def test_jitter_of_what_hardly_takes_time_is_no_storm() -> None:
    busy = [0.001 * value for value in storm(0, 0.15, 8.0)]
    assert warmup_steps([0.1 + value for value in busy], busy) == 0


def test_without_knowing_what_a_step_waited_they_would_be() -> None:
    assert set(bursts(15.0, known=False)) == {None}


def test_a_run_tells_what_its_steps_waited() -> None:
    """And a storm in the model is one, however the loader delivers."""
    busy = steady(160)
    for spikes in (False, True):
        seconds, parts = [], []
        for i, value in enumerate(busy):
            forward, wait = (20.0 if spikes and i % 7 == 3 else value), 14.0 if i % 8 == 0 else 0.0
            seconds.append(forward + wait)
            parts.append([wait, 0.0, forward, 0.0, 0.0, 0.0, 0.0])
        assert pace(Run(torch="", device="cpu", step_seconds=seconds, step_parts=parts)).settled != spikes


def test_wilder_steps_lose_few_series() -> None:
    """A tenth of spread from step to step still leaves nearly all of a series."""
    wild = [[1 + (v - 1) * 10 / 3 for v in steady(200, seed=seed)] for seed in range(100)]
    answers = [warmup_steps(series) for series in wild]
    assert None not in answers
    assert share(answers, lambda steps: steps == 0) > 0.85


# planted into recorded series -------------------------------------------------------------------------------------


def recorded(whole: bool = False) -> list[list[float]]:
    """Processes of more than 100 steps; unless whole, without their own first third."""
    groups = [json.loads(path.read_text())["processes"] for path in sorted(SERIES.glob("*.json"))]
    series = [[1e-3 * ms for ms in process["step_ms"]] for group in groups for process in group]
    return [steps[0 if whole else len(steps) // 3 :] for steps in series if len(steps) > 100]


def level_moved(series: list[float], planted: list[float]) -> float:
    before, after = (pace(Run(torch="", device="cpu", step_seconds=steps)).level for steps in (series, planted))
    return abs(math.log(after / before))


PLANTED: dict[str, Callable[[list[float]], list[float]]] = {
    "compile": lambda series: [3.0, 1.0, *series],
    "search": lambda series: [0.5, *series],
    "growth": lambda series: [v * (1 + 2 * math.exp(-i / 5)) for i, v in enumerate(series)],
    "cache": lambda series: [4 * v for v in series[: len(series) * 4 // 5]] + series,
}


@pytest.mark.parametrize("cause", PLANTED)
def test_warm_up_planted_into_recorded_series_hardly_moves_their_level(cause: str) -> None:
    """By less than identical processes differ, which is 8 to 13 % in these."""
    moved = sorted(level_moved(series, PLANTED[cause](series)) for series in recorded())
    high = 100 * moved[len(moved) * 9 // 10]
    print(f"{cause}: level moved by {100 * moved[len(moved) // 2]:.1f} %, 9 of 10 by at most {high:.1f} %")
    assert moved[len(moved) // 2] < 0.02
    assert moved[len(moved) * 9 // 10] < 0.08


def test_without_leaving_it_out_they_would_be_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.measure.pace.warmup_steps", lambda *_: 0)
    moved = sorted(level_moved(series, PLANTED["cache"](series)) for series in recorded())
    assert moved[len(moved) // 2] > 0.02
    assert moved[len(moved) * 9 // 10] > 0.08


def test_recorded_series_settle() -> None:
    """As they are, every process settles, and on average two thirds of the steps are kept."""
    answers = [(warmup_steps(series), len(series)) for series in recorded(whole=True)]
    kept = [1 - steps / count for steps, count in answers if steps is not None]
    mean = sum(kept) / len(kept)
    print(f"{len(kept)} of {len(answers)} settle, {mean:.2f} of the steps kept, {min(kept):.2f} at least")
    assert len(kept) == len(answers)
    assert mean > 2 / 3


@pytest.mark.parametrize(
    ("device", "compiled_at", "settles"),
    [
        ("cuda", [0], True),
        ("cuda", list(range(9, 400, 10)), False),
        ("cpu", [0], False),
    ],
)
def test_a_host_that_runs_ahead_of_its_device_is_no_storm(device: str, compiled_at: list[int], settles: bool) -> None:
    """It prints every tenth step, and then waits for all ten. Compiling as often looks the same, but is on record."""
    seconds = [44.0 if number % 10 == 9 else value for number, value in enumerate(steady(400, 2.5))]
    found = pace(Run(torch="", device=device, steps=400, step_seconds=seconds, compiled_at=compiled_at))
    assert found.settled == settles
    assert found.level == pytest.approx(6.65, rel=0.03)
