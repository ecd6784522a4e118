"""What a run with the plan pays once, at its start, is told and paid back too."""

from __future__ import annotations

import pytest

from hotlap.measure.tune import _one_off
from hotlap.report.findings import TrialTimes


def trial(label: str, role: str, first: float, warm: int = 8, ending: str = "enough") -> TrialTimes:
    return TrialTimes(label, role, ending, [first, *[0.1] * 40], warm, 0.5)  # type: ignore[arg-type]


def test_the_worst_start_of_the_plan_against_the_scripts_usual_one() -> None:
    trials = [
        trial("the script", "baseline", 0.3),
        trial("baseline", "confirm", 0.1),
        trial("baseline", "confirm", 0.2),
    ]
    trials += [trial("compiled", "screen", 30.2), trial("plan", "confirm", 20.2), trial("other", "screen", 90.0)]
    assert _one_off(trials, {"plan", "compiled"}) == pytest.approx(30.0)
    assert _one_off([*trials, trial("plan", "confirm", 99.0, ending="hang")], {"plan", "compiled"}) == pytest.approx(
        30.0
    )


def test_a_plan_that_starts_sooner_costs_nothing() -> None:
    trials = [trial("the script", "baseline", 3.0), trial("plan", "confirm", 0.1)]
    assert _one_off(trials, {"plan"}) == 0.0
    assert _one_off(trials, {"unknown"}) == 0.0
