"""What a profile says of a script that showed little of itself, or could gain more than its share tells."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.measure.bound import bound
from hotlap.measure.candidates import Candidate
from hotlap.measure.profile import _nothing_seen, _verdict
from hotlap.measure.scrutinised import memory
from hotlap.measure.trial import Trial
from hotlap.observe.launch import Target
from hotlap.observe.run import Run
from hotlap.observe.scrutiny_facts import MemoryFacts
from hotlap.technique import Parity, Try

# wait, copy, forward, backward, update, sync, other
STEP = [0.1, 0.0, 0.3, 0.3, 0.2, 0.0, 0.1]
RUN = Run(torch="2.13", device="cpu", step_seconds=[1.0] * 20, step_parts=[STEP] * 20)


def test_without_a_closer_look_nothing_is_called_arithmetic() -> None:
    found = bound(RUN, 1.0)
    assert found.by == "unknown"
    assert found.evidence[0] == "80 % of a step pass in forward, backward and update"
    assert "no closer look" in found.evidence[1]


def test_memory_that_nobody_looked_at_is_not_nothing() -> None:
    assert memory(MemoryFacts(), "cpu") == {}


@pytest.mark.parametrize("ending", ["raised: KeyboardInterrupt:", "died of signal 2 (SIGINT)"])
def test_stopped_by_hand_there_is_nothing_to_mend(ending: str) -> None:
    said = _nothing_seen(Target("train.py", (), False), Trial(ending, None, None, 0.0, ""), 130)
    assert said == "train.py was stopped before its first training step: let it run until it trains"


@pytest.mark.parametrize(
    ("most", "why"),
    [
        (0.6, "forward and backward: 60 % of a step"),
        (0.8, "forward, backward and more: 80 % of a step"),
    ],
)
def test_the_reason_agrees_with_the_figure(monkeypatch: pytest.MonkeyPatch, most: float, why: str) -> None:
    technique = find("cpu-threads")
    judged = Candidate(technique, (Try({}, most),), Parity.EQUIVALENT)
    monkeypatch.setattr("hotlap.measure.profile.consider", lambda technique, run: judged)
    assert _verdict(technique, RUN).why == why
