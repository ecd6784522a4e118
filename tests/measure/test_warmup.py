from __future__ import annotations

import random

from hotlap.measure.warmup import warmup_steps


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
