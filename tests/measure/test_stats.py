"""The decision procedure: its parts against known values, and its error rates by simulation."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from hotlap.measure.stats import LOOKS, Decision, block_means, calibration_sd, compare, evened, level, smallest_gain
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


def ahead(steps: int, every: int, *, device: float = 0.007, host: float = 0.002, seed: int = 0) -> list[float]:
    """A host that runs ahead of its device, and waits for it at every so manieth step."""
    dice = random.Random(seed)
    plain = [host * dice.uniform(0.8, 1.3) for _ in range(steps)]
    for last in range(every - 1, steps, every):
        plain[last] = every * device - sum(plain[last - every + 1 : last])
    return plain


@pytest.mark.parametrize("every", [3, 5, 10, 20, 50])
def test_who_waits_at_every_so_manieth_step_is_no_slower_for_it(every: int) -> None:
    """With blocks of eight the median would be that of those with a wait in them: a quarter too long for ten."""
    steps = ahead(600, every)
    assert sum(evened(steps)) == pytest.approx(sum(steps))
    assert evened(steps) != steps
    assert level(steps) == pytest.approx(0.007, rel=0.02)
    assert level(steps[3:]) == pytest.approx(0.007, rel=0.02)


def test_blocks_of_eight_misread_every_tenth_step() -> None:
    assert statistics.median(block_means(ahead(600, 10))) > 1.15 * 0.007


def test_a_wait_in_two_pieces_keeps_its_rhythm() -> None:
    steps = ahead(600, 10)
    for last in range(9, 600, 40):
        steps[last - 1], steps[last] = 0.008, steps[last] + steps[last - 1] - 0.008
    assert level(steps) == pytest.approx(0.007, rel=0.02)


def test_far_longer_waits_stay_where_they_are() -> None:
    """A sample drawn every 500 steps, at one that prints as well."""
    steps = ahead(1600, 10)
    for last in (499, 999, 1499):
        steps[last] += 2.0
    assert [number for number, value in enumerate(evened(steps)) if value > 0.01] == [499, 999, 1499]
    assert level(steps) == pytest.approx(0.007, rel=0.02)


@pytest.mark.parametrize("seed", range(20))
def test_what_comes_rarely_or_by_chance_is_no_rhythm(seed: int) -> None:
    dice = random.Random(seed)
    by_chance = [0.05 if dice.random() < 0.1 else 0.002 for _ in range(600)]
    ends_of_epochs = [0.5 if number % 100 == 99 else 0.002 for number in range(1000)]
    for steps in (by_chance, ends_of_epochs, [0.002] * 50, [0.0] * 50):
        assert evened(steps) == steps
    assert level(ends_of_epochs) == pytest.approx(0.002)


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
