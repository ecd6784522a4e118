"""What a profile on a device says about waits, and what it does not."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.observe.run import Run, SyncFacts


def wait(kind: str, steps: int) -> SyncFacts:
    return SyncFacts("train.py", 7, kind, count=steps, steps=steps, seconds=0.1)


@pytest.mark.parametrize(
    ("device", "syncs", "seen"),
    [
        ("cuda", [wait("item", 10)], False),
        ("cuda", [wait("item", 5)], False),
        ("cuda", [wait("item", 1)], True),  # now and then, for show
        ("cuda", [wait("pageable copy", 10)], True),  # another technique's
        ("cuda", [wait("pageable copy", 10), wait("if", 9)], False),
        ("cuda", [], None),  # nobody watched closely
        ("cpu", [wait("item", 10)], None),
    ],
)
def test_seen(device: str, syncs: list[SyncFacts], seen: bool | None) -> None:
    assert find("sync-free-loop").seen(Run("2.11", device, syncs=syncs, step_seconds=[0.1] * 10)) is seen


@pytest.mark.parametrize(
    ("syncs", "help_or_not"),
    [
        ([wait("item", 10)], "help"),
        ([wait("item", 1)], "no"),  # for show only
        ([wait("pageable copy", 10)], "no"),  # another technique's
        ([], "maybe"),  # nobody watched closely: cannot tell, so it may still be worth a trial
    ],
)
def test_settings_say_how_much(syncs: list[SyncFacts], help_or_not: str) -> None:
    run = Run(
        "2.11",
        "cuda",
        syncs=syncs,
        step_seconds=[0.1] * 10,
        step_parts=[[0.0, 0.0, 0.5, 0.3, 0.0, 0.15, 0.05]] * 10,
    )
    tries = find("sync-free-loop").settings(run)
    if help_or_not == "no":
        assert tries.reason
    else:
        (attempt,) = tries
        wanted = 0.15 if help_or_not == "help" else 0.2
        assert attempt.most == pytest.approx(wanted)
