"""The search on landscapes drawn at random, with the noise of recorded processes: it may not get much worse."""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import searching

from hotlap.measure.refining import Refining
from hotlap.measure.screening import Screening

TUNINGS = 40


def tuned(budget: float, spread: float) -> searching.Outcome:
    """Every process is off by one of these factors."""
    landscapes = [searching.drawn(random.Random(seed)) for seed in range(TUNINGS)]
    dice = random.Random(1)
    return searching.tunings(landscapes, budget, [1 + spread * dice.gauss(0, 1) for _ in range(500)])


def near(outcome: searching.Outcome) -> float:
    return sum(away <= searching.NEAR for away in outcome.away) / TUNINGS


def test_on_a_quiet_machine_the_plan_is_nearly_the_best_there_is() -> None:
    outcome = tuned(300.0, 0.02)
    assert near(outcome) >= 0.92
    assert statistics.median(outcome.away) < 0.01 and outcome.harmful <= 0.1 * TUNINGS


def test_on_a_noisy_machine_the_budget_is_spent_on_second_looks() -> None:
    outcome = tuned(300.0, 0.12)
    assert statistics.median(outcome.away) < 0.05
    assert sorted(outcome.away)[int(0.9 * TUNINGS)] < 0.30 and outcome.harmful <= 0.25 * TUNINGS


def test_no_trial_is_made_beyond_the_budget() -> None:
    """Beside the proof: its first pairs and parity are kept for it. Four of the script and three looks are made in any
    case."""
    for budget in (60.0, 120.0, 300.0):
        most = (1 - 0.35) * budget / searching.TRIAL_SECONDS
        assert max(tuned(budget, 0.12).trials) <= max(4 + 3, most)


def test_a_search_that_takes_whatever_comes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching.Settling, "run", lambda *_: None)
    monkeypatch.setattr(Refining, "refine", lambda *_: None)
    monkeypatch.setattr(Screening, "_try_small_gains", lambda *_: None)
    assert near(tuned(300.0, 0.02)) < 0.92


def test_the_record_makes_a_landscape() -> None:
    path = next((searching.HOME / "results").glob("exhaustive-*-photos.json"))
    landscape = searching.of_the_record(path)
    plans = list(landscape.plans())
    assert len(plans) == 64 and landscape.best < 0.7 * landscape.level(())
    assert sum(landscape.level(plan) == float("inf") for plan in plans) == 32, "mixed precision broke there"
