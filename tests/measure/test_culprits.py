"""A whole plan that is not the same training: who is looked at, in what order, and what is said of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from test_search import Fast, Made

from hotlap.measure import proof
from hotlap.measure.found import Found
from hotlap.measure.proof import Proof
from hotlap.report.findings import ParityCheck
from hotlap.technique import Choice, Family, Parity


class Feeder(Fast): ...


class Layout(Fast):
    family = Family.COMPUTE


class Rounding(Layout):
    rounding = 2.0**-8


class Drawing(Layout): ...


MEMBERS = (Feeder(), Layout(), Drawing(), Rounding())
EQUIVALENT = {"rounding", "drawing"}  # of the others the same bits are promised


class MadeSameness:
    """Says of a plan that it differs where a culprit is in it. Each look takes so many seconds on the bench's clock."""

    culprits: frozenset[str] = frozenset()
    batches_differ = False
    seconds, looks, losses, reference_losses = 2.0, [], [], []  # type: ignore[var-annotated]
    repeats_itself = saw_an_epoch_end = True
    too_little = ""

    def __init__(self, bench: Made, folder: str) -> None:
        self._bench = bench

    def start(self) -> None: ...

    def checks(self, plan: Sequence[Choice], label: str, parities: Any) -> list[ParityCheck]:
        names = [choice.technique.id for choice in plan]
        self.looks.append(names)
        self._bench.asked += [("parity",)] * int(self.seconds)
        is_same = not self.culprits & set(names)
        batches = ParityCheck("batches that differ, of 9", 0.0, "= 0", is_same or not self.batches_differ)
        return [batches, ParityCheck("loss difference, median", 1.0, "<= 1e-03", is_same)]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch):
    """`check(culprits, budget) -> (found, looks)` for a plan of all members."""

    def run(culprits: set[str], budget: float, batches_differ: bool = False) -> tuple[Found, list[list[str]]]:
        made = type("Sameness", (MadeSameness,), {"looks": [], "batches_differ": batches_differ})
        made.culprits = frozenset(culprits)
        monkeypatch.setattr(proof, "Sameness", made)
        found = Found(plan=[Choice(one, {}) for one in MEMBERS])
        found.parities = {one.id: Parity.EQUIVALENT if one.id in EQUIVALENT else Parity.IDENTICAL for one in MEMBERS}
        Proof(Made({}), found, budget, 1.0, "")._check_parity()
        return found, made.looks

    return run


def names(found: Found) -> list[str]:
    return [choice.technique.id for choice in found.plan]


def test_the_likeliest_goes_first_and_the_rest_is_spared(check) -> None:
    found, looks = check({"rounding"}, 100.0)
    assert looks == [["feeder", "layout", "drawing", "rounding"], ["feeder", "layout", "drawing"]]
    assert names(found) == looks[1] and not found.cut_short and found.checks
    (rejected,) = found.rejected
    assert rejected.technique == "rounding" and rejected.reason.startswith("not the same training: loss difference")


def test_who_went_on_the_way_comes_back(check) -> None:
    found, looks = check({"drawing"}, 100.0)
    assert looks[1:] == [["feeder", "layout", "drawing"], ["feeder"], ["feeder", "rounding"],
                         ["feeder", "drawing", "rounding"], ["feeder", "layout", "rounding"]]  # fmt: skip
    assert names(found) == ["feeder", "layout", "rounding"] and not found.cut_short
    assert [one.technique for one in found.rejected] == ["drawing"]


def test_other_batches_point_at_what_feeds(check) -> None:
    found, looks = check({"feeder"}, 100.0, batches_differ=True)
    assert looks[1:] == [["layout", "drawing", "rounding"]] and names(found) == looks[1]


def test_each_of_several_culprits_is_found(check) -> None:
    assert names(check({"drawing", "layout"}, 100.0)[0]) == ["feeder", "rounding"]
    assert names(check({"feeder", "rounding"}, 100.0)[0]) == ["layout", "drawing"]
    assert names(check({"feeder", "layout", "drawing", "rounding"}, 100.0)[0]) == []


def test_what_only_differs_together_does_not_stay_together(check, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = MadeSameness.checks

    def only_together(self: Any, plan: Sequence[Choice], *rest: Any) -> list[ParityCheck]:
        both = {"drawing", "layout"}
        self.culprits = frozenset(both if both <= {choice.technique.id for choice in plan} else ())
        return alone(self, plan, *rest)

    monkeypatch.setattr(MadeSameness, "checks", only_together)
    found, _ = check(set(), 100.0)
    assert names(found) == ["feeder", "drawing", "rounding"] and not found.cut_short


class Whole(Layout):
    traits = frozenset({"whole"})


class Companion(Layout):
    comes_with = frozenset({"whole"})


@pytest.mark.parametrize(
    ("culprits", "left"),
    [({"whole"}, ["feeder"]), ({"companion"}, ["feeder", "whole"]), ({"feeder", "whole"}, [])],
)
def test_what_comes_with_a_culprit_goes_with_it(check, monkeypatch: pytest.MonkeyPatch, culprits, left) -> None:
    monkeypatch.setitem(globals(), "MEMBERS", (Feeder(), Whole(), Companion()))
    found, looks = check(culprits, 100.0)
    assert names(found) == left and not found.cut_short
    assert all("companion" not in look or "whole" in look for look in looks), "by itself it is not meant"
    (companion,) = [one.reason for one in found.rejected if one.technique == "companion"]
    assert ("not the same training" in companion) is ("companion" in culprits) or "nothing that it comes" in companion


def test_the_budget_ends_the_looks_and_says_who_was_not_looked_at(check) -> None:
    """2 s a look and 6 s for pairs: room for the whole and two looks more."""
    found, looks = check({"layout"}, 12.0)
    assert looks[1:] == [["feeder", "layout", "drawing"], ["feeder"]]
    assert names(found) == ["feeder"] and found.cut_short and found.checks
    assert {one.technique for one in found.rejected} == {"rounding", "drawing", "layout"}
    assert all("the budget ended before a look at this" in one.reason for one in found.rejected)
    assert "look at 3 of its members" in found.caveats[0] and "--budget" in found.caveats[0]


def test_without_any_room_nothing_is_kept(check) -> None:
    found, looks = check({"layout"}, 3.0)
    assert len(looks) == 1 and names(found) == [] and found.cut_short and found.checks == []
