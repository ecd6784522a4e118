"""The decision procedure: its parts against known values, and its error rates by simulation."""

from __future__ import annotations

import math
import random

import pytest

from hotlap.measure.stats import LOOKS, Decision, block_means, calibration_sd, compare, level, smallest_gain
from hotlap.measure.stats import student_quantile as quantile


@pytest.mark.parametrize(
    ("p", "freedom", "known"),
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 8, 2.30600), (0.995, 5, 4.03214), (0.9995, 30, 3.64596)],
)
def test_student_quantile(p: float, freedom: int, known: float) -> None:
    assert quantile(p, freedom) == pytest.approx(known, rel=1e-4)


def test_level_reads_bursts_right() -> None:
    """Two workers deliver in pairs: 2 ms, 18 ms, 2 ms, ... is 10 ms a step, which a median of steps misses."""
    assert level([0.002, 0.018] * 40) == pytest.approx(0.010)
    assert level([0.010] * 50 + [3.0] + [0.010] * 50) == pytest.approx(0.010)
    assert len(block_means([1.0] * 5)) >= 3


def series(generator: random.Random, gain: float, sd: float, disturbed: float, pairs: int) -> tuple[list, list]:
    """Levels of alternating processes with drift over the series and one-sided disturbances."""
    baseline, candidate = [], []
    for pair in range(pairs):
        drift = 0.05 * pair / 16
        for arm, shift in ((baseline, 0.0), (candidate, -math.log(gain))):
            noise = generator.gauss(0, sd / math.sqrt(2))
            hit = generator.uniform(0.05, 0.6) if generator.random() < disturbed else 0.0
            arm.append(math.exp(drift + shift + noise + hit))
    return baseline, candidate


def claims(gain: float, sd: float, disturbed: float = 0.0, rounds: int = 400, pairs: int = 16) -> float:
    generator = random.Random(7)
    found = 0
    for _ in range(rounds):
        calm = [math.exp(generator.gauss(0, sd / math.sqrt(2))) for _ in range(6)]
        baseline, candidate = series(generator, gain, sd, disturbed, pairs)
        for look in (look for look in LOOKS if look <= pairs):
            decision = compare(baseline[:look], candidate[:look], calibration_sd(calm + baseline[:look])).decision
            if decision is not Decision.GO_ON:
                found += decision is Decision.CLAIM
                break
    return found / rounds


@pytest.mark.parametrize("sd", [0.003, 0.02, 0.05])
@pytest.mark.parametrize("disturbed", [0.0, 0.03])
def test_no_gain_is_not_claimed(sd: float, disturbed: float) -> None:
    assert claims(1.0, sd, disturbed, rounds=1500) <= 0.01


def test_gains_are_found_where_they_can_be() -> None:
    assert claims(1.03, 0.003) > 0.7  # processes that agree within 0.3 %
    assert claims(1.10, 0.02) > 0.8
    assert claims(1.50, 0.05, pairs=4) > 0.8
    assert claims(1.03, 0.05) < 0.2  # nobody can see this, and nobody claims to


def test_a_loss_is_given_up() -> None:
    assert compare([1.0, 1.01, 0.99], [1.1, 1.12, 1.09], 0.01).decision is Decision.GIVE_UP


def test_the_interval_holds_the_truth() -> None:
    inside = 0
    generator = random.Random(3)
    for _ in range(200):
        interval = compare(*series(generator, 2.0, 0.02, 0.0, 6), 0.02).interval
        inside += interval.low <= 2.0 <= interval.high
    assert inside >= 199


def test_the_smallest_visible_gain_grows_with_noise() -> None:
    assert 1.01 < smallest_gain(0.003) < smallest_gain(0.02) < smallest_gain(0.05)
