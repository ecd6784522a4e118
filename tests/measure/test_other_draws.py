"""Two samples of random draws, made up: how often the judgement takes right for wrong, and wrong for right."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from hotlap.measure import chance
from hotlap.measure.draws import DRAWS
from hotlap.measure.parity import judge
from hotlap.technique import Parity

RATE = 0.02  # at most so often is rejected what only draws otherwise
PAIRS = 5000  # a thousand for each of five seeds that nobody chose: single ones of Student's showed 0.9 to 2.3 %

Shape = Callable[[random.Random], float]


def normal(dice: random.Random) -> float:
    return dice.gauss(0, 1)


def lognormal(dice: random.Random) -> float:
    return dice.lognormvariate(0, 1.5)


def student(dice: random.Random) -> float:
    """With two degrees of freedom: it has no variance."""
    return dice.gauss(0, 1) / (dice.expovariate(1) or 1e-9) ** 0.5


def evidence(losses: list[float], along: list[float]) -> dict[str, Any]:
    """What a witness would have taken down, of a training in which single steps cannot be compared."""
    figures = [{"step": float(step), "loss": 0.1, "gradient": 0.5, "projection": 0.8, "cosine": 0.8} for step in (1, 2)]
    rest = {name: [] for name in ("batches", "sketches", "epoch_ends", "losses", "norms", "census")}
    update = [{"step": 1.0, "update": 0.0}]
    return {**rest, "figures": [*figures, *update], "draws": [[loss] for loss in losses], "along": along}


def sample(dice: random.Random, shape: Shape, centre: float = 10.0) -> dict[str, Any]:
    """Losses and the way of gradients by one shape, each a tenth as wide as it is large where the shape is normal."""
    along = [centre + shape(dice) for _ in range(DRAWS // 2)]
    return evidence([centre + shape(dice) for _ in range(DRAWS)], along)


def rejections(shape: Shape, pairs: int, change: Callable[[dict[str, Any]], dict[str, Any]] = lambda one: one) -> float:
    count = 0
    for number in range(pairs):
        if number % 1000 == 0:
            dice = random.Random(1 + number // 1000)
        ours, theirs = sample(dice, shape), change(sample(dice, shape))
        checks = judge(Parity.EQUIVALENT, ours, ours, theirs)
        count += not all(check.passed for check in checks)
    return count / pairs


@pytest.mark.parametrize("shape", [normal, lognormal, student])
def test_draws_of_the_same_shape_are_rejected_at_the_stated_rate_at_most(shape: Shape) -> None:
    assert rejections(shape, PAIRS) <= RATE


def scaled(one: dict[str, Any]) -> dict[str, Any]:
    return evidence([1.1 * loss for (loss,) in one["draws"]], [1.1 * x for x in one["along"]])


def doubled_noise(one: dict[str, Any]) -> dict[str, Any]:
    return evidence([10 + 2 * (loss - 10) for (loss,) in one["draws"]], one["along"])


def shifted(one: dict[str, Any]) -> dict[str, Any]:
    return evidence([loss + 1 for (loss,) in one["draws"]], one["along"])


# Fixed limits on 16 draws (a ratio of spreads of 2, 4 standard errors) rejected these so often; of draws of the same
# shape they rejected 2 % of the normal, 58 % of the lognormal and 32 % of Student's.
BEFORE = [(scaled, 0.26), (doubled_noise, 0.50), (shifted, 0.20)]


@pytest.mark.parametrize(("change", "before"), BEFORE)
def test_what_is_wrong_is_seen_as_often_as_by_fixed_limits(change: Any, before: float) -> None:
    assert rejections(normal, 200, change) >= before


def test_no_spread_at_all_is_seen_through_heavy_tails() -> None:
    def still(one: dict[str, Any]) -> dict[str, Any]:
        return evidence([one["draws"][0][0]] * DRAWS, one["along"])

    assert rejections(lognormal, 100, still) == 1.0


def test_what_draws_have_in_common_makes_a_shift_plainer() -> None:
    dice = random.Random(2)
    ours = [dice.gauss(0, 1) for _ in range(DRAWS)]
    theirs = [0.9 * loss + 0.3 * dice.gauss(0, 1) + 0.3 for loss in ours]
    apart = [0.9 * dice.gauss(0, 1) + 0.3 * dice.gauss(0, 1) + 0.3 for _ in ours]
    assert chance.mean(ours, theirs, 0.005)[1] < chance.mean(ours, apart, 0.005)[1] / 2


def test_the_same_draws_are_always_judged_alike() -> None:
    dice = random.Random(3)
    ours, theirs = ([dice.gauss(0, 1) for _ in range(DRAWS)] for _ in range(2))
    assert chance.spread(ours, theirs, 0.01) == chance.spread(ours, theirs, 0.01)
