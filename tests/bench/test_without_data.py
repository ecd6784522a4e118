"""What data costs a step, by batches that are drawn and some that are handed out again, in blocks that take turns."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import terminal
import without_data as bench

SCRIPT = """
import torch

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2

train = torch.utils.data.DataLoader(Numbers(), 8)
test = torch.utils.data.DataLoader(Numbers(), 8)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = open("seen.txt", "w", buffering=1)
while True:
    for x, y in train:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        log.write(f"{int(x[0, 0])} ")
        optimizer.step()
    with torch.no_grad():
        log.write("".join(f"t{int(x[0, 0])} " for x, _ in test))
"""


def run(folder: Path, *more: str) -> int:
    short = ["--warmup-steps", "4", "--block", "12", "--turns", "2", "--limit", "300", "--results", str(folder / "r")]
    return bench.main(["tiny", "--script", str(folder / "train.py"), *short, *more])


@pytest.mark.parametrize("how", [["--as-it-is"], ["--with", "fused-optimizer"]])
def test_blocks_take_turns_and_tests_come_to_their_end(
    tmp_path: Path, how: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(terminal, "GRACE_SECONDS", 3.0)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run(tmp_path, *how) == 0
    (path,) = (tmp_path / "r").glob("tiny-*.json")
    found = json.loads(path.read_text())
    assert [is_frozen for is_frozen, _ in found["blocks"]] == [False, True, True, False] * 2
    seen = (tmp_path / "seen.txt").read_text().split()
    tests = [one for one in seen if one.startswith("t")]
    assert tests == ["t0", "t8", "t16"] * (len(tests) // 3) and len(tests) >= 9
    trained = [int(one) for one in seen if not one.startswith("t")]
    blocks = [trained[4 + 12 * number : 16 + 12 * number] for number in range(8)]
    assert [sorted(set(block[3:])) for block in blocks[:4]] == [[0, 8, 16], [8, 16], [8, 16], [0, 8, 16]]
    assert all(block[3 + len(set(block[3:])) :] == block[3 : -len(set(block[3:]))] for block in blocks), "in turns"
    assert found["handed_again"] == 36 and found["next_seconds"] == sorted(found["next_seconds"])
    assert all(waited <= took for waited, took in zip(found["waited_seconds"], found["next_seconds"], strict=True))
    assert str(tmp_path) not in path.read_text()
    assert found["techniques"] == how[1:] and "times as long for them" in capsys.readouterr().out


def test_a_script_without_a_loader_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "GRACE_SECONDS", 3.0)
    (tmp_path / "train.py").write_text(SCRIPT.replace("in train:", "in iter(lambda: next(iter(train)), None):"))
    with pytest.raises(SystemExit, match=r"no loader of train\.py could be kept from drawing"):
        run(tmp_path, "--as-it-is")


def test_the_cost_is_taken_within_turns() -> None:
    slower = [3.0 * seconds for seconds in (1.1, 1.0, 1.0, 1.1)]  # drift from one turn to the next
    kinds = [False, True, True, False] * 2
    made = bench.cost(list(zip(kinds, [1.1, 1.0, 1.0, 1.1, *slower], strict=True)))
    assert math.isclose(made.ratio, 1.1) and made.low is not None and math.isclose(made.low, 1.1)
    assert bench.cost([(False, 2.0), (True, 1.0), (True, 1.0), (False, 2.0)]).low is None
