"""`hotlap run` with a technique that only source can express: a stand-in, since the catalogue may have none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotlap.catalogue import find
from hotlap.drive import drive
from hotlap.observe.attach import Attached
from hotlap.observe.launch import Target
from hotlap.parts import late_reads
from hotlap.source.edits import insert_argument
from hotlap.technique import Choice, Family, Parity, Technique


class Marks(Technique):
    """Gives every call of torch.get_num_threads an argument that changes its code and nothing else."""

    family = Family.SYNC

    def parity(self, run):
        return Parity.IDENTICAL

    def spot(self, source):
        for call in source.calls("torch.get_num_threads"):
            if not call.node.args:
                yield source.site(call.node, "message", "safe")

    def rewrite(self, site, setting):
        return insert_argument(site.node, "*()", source=site.source)


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A run ends with its process; here others come after it."""
    made: list[Attached] = []

    class Noted(Attached):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("hotlap.drive.Attached", Noted)
    yield
    for one in reversed(made):
        one.detach()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["x"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    path = tmp_path / "train.py"
    path.write_text("import torch\ndef f():\n    return torch.get_num_threads()\nprint(f.__code__.co_code.hex())\n")
    return Target(str(path))


def test_it_is_written_in_memory_unless_that_is_not_wanted(script: Target, capsys: pytest.CaptureFixture[str]) -> None:
    finders = list(sys.meta_path)
    choices = [Choice(Marks(), {})]
    drive(script, choices, "", quiet=False)
    with_it, said = capsys.readouterr()
    assert said.startswith("hotlap: marks\n") and "withdrawn" not in said and "found no place" not in said
    drive(script, choices, "", quiet=False, rewrites=False)
    without, said = capsys.readouterr()
    assert said.startswith("hotlap: nothing applied")
    assert with_it != without
    sys.meta_path[:] = finders


def test_a_technique_without_a_place_says_so(script: Target, capsys: pytest.CaptureFixture[str]) -> None:
    finders = list(sys.meta_path)
    Path(script.path).write_text("import torch\n")
    drive(script, [Choice(Marks(), {})], "", quiet=False)
    assert "marks found no place in this script's source" in capsys.readouterr().err
    sys.meta_path[:] = finders


TRAINING = """
import torch
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = torch.nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(0)

def train():
    total = 0.0
    for x in torch.randn(9, 2, 4):
        loss = model(x.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(repr(total), "read_later" in train.__code__.co_names)

torch.nn.init.ones_(model.weight)
torch.nn.init.ones_(model.bias)
train()
"""


def test_totals_are_read_late_and_shown_as_they_were(
    script: Target, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    finders = list(sys.meta_path)
    monkeypatch.setattr(late_reads, "DEVICES", {"cpu", "cuda"})
    Path(script.path).write_text(TRAINING)
    choices = [Choice(find("sync-free-loop"), {})]
    shown = []
    for rewrites in (False, True):
        drive(script, choices, "", quiet=True, rewrites=rewrites)
        shown.append(capsys.readouterr().out.split())
    sys.meta_path[:] = finders
    assert [one[1] for one in shown] == ["False", "True"]
    assert shown[0][0] == shown[1][0]


METHODS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in torch.randn(3, 2, 4):
    {}.pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("call", "is_idle"), [("torch.nn.Sequential.forward(root, x)", True), ("root(x)", False)])
def test_what_found_no_call_to_stand_round_is_told(
    script: Target, capsys: pytest.CaptureFixture[str], call: str, is_idle: bool
) -> None:
    text = METHODS.format(call).replace("optimizer =", "root = torch.nn.Sequential(model)\noptimizer =")
    Path(script.path).write_text(text)
    drive(script, [Choice(find("mixed-precision"), {"dtype": "bfloat16"})], "", quiet=False)
    said = capsys.readouterr().err
    why = "mixed-precision (dtype bfloat16): the script calls its methods, not the module"
    assert (why in said) is is_idle and "3 updates" in said
