"""bench/reading.py counts as it says, and the labels it counts against are well formed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "bench" / "reading.py"


@pytest.fixture(scope="module")
def reading() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reading", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["reading"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_misses_false_alarms_and_what_counts_as_neither(reading: ModuleType) -> None:
    certain = reading.Label("a.py", 10, 10, "async-copies", True, "")
    ranged = reading.Label("a.py", 30, 34, "fused-attention", True, "")
    missed = reading.Label("a.py", 50, 50, "async-copies", True, "")
    argued = reading.Label("a.py", 70, 70, "async-copies", False, "")
    right = [reading.Finding("a.py", 12, "async-copies"), reading.Finding("a.py", 36, "fused-attention")]
    false = [
        reading.Finding("a.py", 13, "async-copies"),  # one line too far
        reading.Finding("b.py", 10, "async-copies"),  # another file
        reading.Finding("a.py", 10, "fused-optimizer"),  # another technique
    ]
    neutral = [reading.Finding("a.py", 70, "async-copies")]
    score = reading.Score.of([certain, ranged, missed, argued], [*false, *neutral, *right])
    assert score.found == [certain, ranged]
    assert score.missed == [missed]
    assert (score.right, score.false, score.neutral) == (right, false, neutral)


def test_the_report_leaves_out_what_nobody_labelled(reading: ModuleType) -> None:
    label = reading.Label("a.py", 10, 10, "async-copies", True, "pinned")
    findings = [reading.Finding("a.py", 99, "async-copies", "m"), reading.Finding("a.py", 1, "mixed-precision")]
    lines = list(reading.report([label], findings))
    total = next(line for line in lines if line.startswith("total")).split()
    assert total == ["total", "1", "0", "0.0", "%", "1", "1", "0.0", "%", "0"]
    assert "not judged: 1 findings of mixed-precision" in lines
    assert "  a.py:10 async-copies (pinned)" in lines and "  a.py:99 async-copies (m)" in lines


@pytest.mark.parametrize("kind", ["public", "blind"])
def test_labels_are_well_formed(reading: ModuleType, kind: str) -> None:
    labels = reading.read_labels(kind)  # fails where a label names a file that was not read
    assert {label.technique for label in labels} <= set(reading.JUDGED)
    assert all(1 <= label.first <= label.last for label in labels)
    syncs = [label for label in labels if label.technique == "sync-free-loop" and label.is_certain]
    assert all(label.why.startswith(("train: ", "eval: ")) for label in syncs)
    placed = [(label.file, label.first, label.technique, label.is_certain) for label in labels]
    assert len(placed) == len(set(placed)) and len([label for label in labels if label.is_certain]) > 100
