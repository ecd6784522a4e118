"""bench/exhaustive.py covers the space it says, and compares by the fresh figures only."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import exhaustive
from exhaustive import Entry, space, verdict

from hotlap.errors import HotlapError
from hotlap.technique import CannotHelp, Choice, Technique, Try


class Fed(Technique):
    def settings(self, run):
        return [Try({"num_workers": number}, 0.5) for number in (2, 1)]


class Packed(Technique):
    traits = frozenset({"layout"})

    def settings(self, run):
        return [Try({}, 0.001)]  # too little for tune to try: here it counts


class Turned(Technique):
    excludes = frozenset({"layout"})

    def settings(self, run):
        return [Try({}, 0.1)]


class Absent(Technique):
    def settings(self, run):
        return CannotHelp("not here")


class InUse(Packed):
    def seen(self, run):
        return True


RUN = SimpleNamespace()


def test_every_combination_once() -> None:
    plans = space([Fed(), Packed(), Absent(), InUse()], RUN, 64)
    assert len(plans) == len({str(list(map(str, plan))) for plan in plans}) == 10  # 5 ways to feed, 2 to pack
    assert () in plans
    counts = {
        choice.setting.get("prefetch_factor") for plan in plans for choice in plan if choice.technique.id == "fed"
    }
    assert counts == {None, 4, 8}


def test_what_cannot_live_together_is_no_plan() -> None:
    assert len(space([Packed(), Turned()], RUN, 64)) == 3


def test_the_space_is_cut_to_size_at_the_settings_tune_would_not_try() -> None:
    plans = space([Fed(), Packed()], RUN, 6)
    assert len(plans) == 6
    assert {choice.setting["num_workers"] for plan in plans for choice in plan if choice.setting} == {1, 2}
    with pytest.raises(HotlapError, match="--only"):
        space([Fed(), Packed()], RUN, 3)


def test_tunes_plan_is_found_whatever_its_order() -> None:
    fed, packed = Choice(Fed(), {"num_workers": 2}), Choice(Packed(), {})
    entry = Entry((fed, packed))
    assert exhaustive._entry_of((packed, fed), [Entry(()), entry]) is entry
    assert exhaustive._entry_of((packed,), [Entry(()), entry]).plan == (packed,)


def test_luck_in_screening_does_not_count() -> None:
    script = Entry((), again=[4.0, 4.4, 3.6])
    chosen = Entry((Choice(Packed(), {}),), screened=[9.0], again=[2.0, 2.2, 1.8])
    lucky = Entry((Choice(Fed(), {"num_workers": 2}),), screened=[0.1], again=[2.1, 2.31, 1.89])
    better = Entry((Choice(Fed(), {"num_workers": 1}),), screened=[1.0], again=[1.6, 1.76, 1.44])
    words, _ = verdict(script, chosen, [script, chosen, lucky], 64)
    assert "2.00x (packed), best of 64 2.00x (packed), the same plan" in words
    words, figures = verdict(script, chosen, [script, chosen, lucky, better], 64)
    assert "best of 64 2.50x (fed 1), 25.0 % away" in words and "over 3 rounds" in words
    assert figures["percent_away"] == pytest.approx([25.0] * 3) and "cannot tell" not in words
    restless = Entry((Choice(Fed(), {"num_workers": 1}),), again=[1.0, 2.5, 1.9])
    words, _ = verdict(script, chosen, [script, chosen, restless], 64)
    assert "cannot tell" in words
