"""Trainings with several seeds, as they are and under hotlap, are told apart by more than their seeds or not at all."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import accuracy as bench

from hotlap.errors import HotlapError

SCRIPT = """
import sys
import torch
torch.manual_seed(int(sys.argv[2]))
open("checkpoint.bin", "x").close()  # fails where two trainings share a folder
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for _ in range(20):
        x = torch.randn(8, 4)
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
    print(f"score {100 - loss.item():.4f} of epoch {epoch}")
"""


def trainings(script: list[float], run: list[float]) -> list[bench.Training]:
    both = zip(bench.WAYS, (script, run), strict=True)
    return [bench.Training(way, seed, score, 1.0, []) for way, scores in both for seed, score in enumerate(scores)]


def test_a_script_trains_alike_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    own = ["tiny", "--script", str(tmp_path / "train.py"), "--with", "fused-optimizer", "--reads", "score ([0-9.]+)"]
    more = ["--seeds", "2", "--last", "2", "--parallel", "2", "--results", str(tmp_path), "--", "--seed", "{seed}"]
    assert bench.main([*own, *more]) == 0
    record = json.loads(next(tmp_path.glob("tiny-*.json")).read_text())
    assert [(one["way"], one["seed"]) for one in record["trainings"]] == [
        ("script", 1), ("hotlap run", 1), ("script", 2), ("hotlap run", 2),
    ]  # fmt: skip
    assert record["compared"]["lead"] == pytest.approx(0, abs=1e-3)
    first, _, second, _ = (one["score"] for one in record["trainings"])
    assert first != second
    assert any("fused-optimizer" in line for line in record["trainings"][1]["said"])
    assert str(tmp_path) not in json.dumps(record)
    assert "within the spread of 2 seeds" in capsys.readouterr().out


def test_a_training_that_fails_is_told_with_its_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print('about to'); raise SystemExit(3)")
    own = ["tiny", "--script", str(tmp_path / "train.py"), "--reads", "x", "--results", str(tmp_path), "--", "{seed}"]
    assert bench.main(own) == 1
    assert "ended with 3; its last lines:\nabout to" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))


def test_a_lead_beyond_the_seeds_is_seen() -> None:
    assert bench.compare(trainings([60, 61, 62, 63], [61, 60, 63, 62])).is_within_the_spread
    better = bench.compare(trainings([60, 61, 62, 63], [70, 71, 72, 73]))
    assert not better.is_within_the_spread and better.low > 0
    worse = bench.compare(trainings([60.0, 61.0, 62.0, 63.0], [57.0, 58.0, 59.0, 60.0]))
    assert not worse.is_within_the_spread and worse.high < 0
    assert "NOT within" in bench.verdict(worse, 4)


def test_the_score_is_what_comes_last() -> None:
    lines = ["Acc@1 10.0", "Acc@1 20.0 Acc@1 30.0", "loss 3"]
    assert bench.score(lines, r"Acc@1 ([\d.]+)", 1) == 30
    assert bench.score(lines, r"Acc@1 ([\d.]+)", 2) == 25
    with pytest.raises(HotlapError, match="found 3 times"):
        bench.score(lines, r"Acc@1 ([\d.]+)", 4)


@pytest.mark.parametrize(("more", "words"), [(["--seeds", "1", "--", "{seed}"], "--seeds 2"), ([], "{seed}")])
def test_what_cannot_be_compared_is_refused(more: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.options(["tiny", "--script", "train.py", "--reads", "x", *more])
    assert words in capsys.readouterr().err
