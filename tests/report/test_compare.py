from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from hotlap.report.compare import CAVEAT, compare
from hotlap.report.profile_findings import Growth, ProfileReport, Sync
from hotlap.report.terminal import to_text

from . import samples

BEFORE = samples.profile()
AFTER = replace(
    BEFORE,
    step_seconds=0.0081,
    shares=samples.tune().shares_after,
    syncs=BEFORE.syncs[1:],
    growth=[],
    memory=BEFORE.memory | {"peak": 1.74 * 2**30},
    bound=samples.cpu_profile().bound,
)


def said(before: ProfileReport, after: ProfileReport, width: int = 100) -> str:
    return to_text(compare(before, after), width)


def row(text: str, name: str, nth: int = 0) -> list[str]:
    return [line.split() for line in text.splitlines() if line.startswith(name)][nth]


def test_the_step_comes_first_and_the_caveat_last() -> None:
    lines = said(BEFORE, AFTER, 120).splitlines()
    assert lines[0] == "19.0 -> 8.1 ms a step (2.3x faster)"
    assert "not alternated" in CAVEAT
    assert "10 %" in CAVEAT
    assert lines[-1] == CAVEAT


def test_slower_is_said() -> None:
    assert said(AFTER, BEFORE).splitlines()[0] == "8.1 -> 19.0 ms a step (2.3x slower)"


def test_a_small_difference_is_not_called_one() -> None:
    first = said(BEFORE, replace(BEFORE, step_seconds=0.0181)).splitlines()[0]
    assert first.endswith("too little for two runs to tell")
    assert "faster" not in first


def test_shares_of_both_clocks_with_their_differences() -> None:
    text = said(BEFORE, AFTER)
    assert row(text, "wait") == ["wait", "11.1", "ms", "0.3", "ms", "-10.7", "ms"]
    assert row(text, "copy") == ["copy", "0.2", "ms", "0.2", "ms", "same"]
    assert row(text, "backward", 1) == ["backward", "4.5", "ms", "1.9", "ms", "-2.6", "ms"]
    assert [line.split()[0] for line in text.splitlines() if line.endswith("difference")] == ["host", "device"]
    assert "device" not in said(BEFORE, replace(AFTER, device_shares=None))


def test_memory_bound_and_waits() -> None:
    text = said(BEFORE, AFTER)
    assert "2.6 -> 1.7 GiB at the peak" in text
    assert "data -> arithmetic" in text
    assert row(text, "gone wait")[2:] == ["main.py:104", "(item):", "every", "step,", "565", "us", "a", "step"]
    assert "new wait" not in text
    assert "no longer grows" in text
    back = said(AFTER, BEFORE)
    assert "main.py:104" in " ".join(row(back, "new wait"))
    assert "main.py:112" in " ".join(row(back, "growing"))
    assert "data, as before" in said(BEFORE, BEFORE)


def test_a_line_that_only_moved_is_neither_gone_nor_new() -> None:
    moved = replace(BEFORE, syncs=[replace(sync, line=sync.line + 5) for sync in BEFORE.syncs])
    assert " wait " not in said(BEFORE, moved)
    two = replace(BEFORE, syncs=[Sync("a.py", 10, 9, 1.0, "item", 9), Sync("a.py", 20, 9, 1.0, "item", 9)])
    one = replace(BEFORE, syncs=[Sync("a.py", 13, 9, 1.0, "item", 9)])
    assert "1 of 2 in a.py (item); lines have moved" in said(two, one)


def test_waits_of_evaluation_are_not_compared() -> None:
    quiet = replace(BEFORE, syncs=[sync for sync in BEFORE.syncs if sync.count])
    assert "131" not in said(quiet, BEFORE)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (replace(BEFORE, torch="2.14"), "not the same torch, which may be the reason: 2.13.0+cu129 -> 2.14"),
        (replace(BEFORE, script="other.py"), "not the same script"),
        (replace(BEFORE, arguments=["--lr", "0.2"]), "not the same arguments"),
        (replace(BEFORE, arguments=["--lr 0.1"]), "not the same arguments"),
        (replace(BEFORE, facts=replace(BEFORE.facts, hardware="A100")), "not the same hardware"),
    ],
)
def test_other_circumstances_are_named(after: ProfileReport, words: str) -> None:
    assert words in said(BEFORE, after)
    assert "not the same" not in said(BEFORE, BEFORE)


@pytest.mark.parametrize(("first", "second"), list(product(samples.PROFILES, repeat=2)))
def test_any_two_profiles_fit_a_narrow_terminal(first: str, second: str) -> None:
    for width in (40, 80, 160):
        lines = said(samples.PROFILES[first](), samples.PROFILES[second](), width).splitlines()
        assert max(map(len, lines)) <= width


def test_growth_without_a_line_is_still_told() -> None:
    grown = replace(BEFORE, growth=[Growth(2.0**20, "", 0, "", "nothing explains it")])
    assert "1.0 MiB a step: nothing explains it" in said(AFTER, grown)
