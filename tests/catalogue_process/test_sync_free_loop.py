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
