"""Training loops that add up values from the device, for the tests of what is written into them."""

from __future__ import annotations

import contextlib
import io
import os
import textwrap
from pathlib import Path

import pytest

from hotlap.catalogue import find
from hotlap.parts import late_reads
from hotlap.source.fix import fix_source
from hotlap.source.module import Source

HEAD = """
import json
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(4, 3).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = [(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (5, 4, 5, 5, 5, 5, 3)]
history = []


def shown(value, *more):
    assert type(value) in (int, float), type(value)
    history.append((type(value).__name__, value))
    return value
"""
STEP = """\
x, y = x.to(device), y.to(device)
optimizer.zero_grad()
out = model(x)
loss = F.cross_entropy(out, y)
loss.backward()
optimizer.step()
"""
TAIL = """
try:
    print(train())
except Exception as error:
    print(type(error).__name__, error)
print(history)
"""


def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is a device, and a number that is shown unread, which would show the right value, is an error."""

    def refuse(self: object, *how: str) -> str:
        raise AssertionError("shown unread")

    monkeypatch.setattr(late_reads, "DEVICES", {"cpu"})
    for name in ("__repr__", "__format__", "__eq__", "__lt__", "__gt__", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(late_reads.Later, name, refuse)


def script(loop: str) -> str:
    """A whole script around `def train():`, with the lines of a step in the place of STEP."""
    lines: list[str] = []
    for line in textwrap.dedent(loop).strip("\n").split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.indent(STEP, indent).rstrip().split("\n") if line.strip() == "STEP" else [line]
    return HEAD + "\n\n" + "\n".join(lines) + "\n\n" + TAIL


def written(text: str) -> str:
    return fix_source(Source(text), [(find("sync-free-loop"), {})], unsafe=True)


def findings(text: str) -> list[str]:
    return [site.message for site in find("sync-free-loop").spot(Source(text))]


def outcome(text: str, folder: Path) -> tuple[str, dict[str, bytes]]:
    """What a script prints, and the files it leaves."""
    folder.mkdir()
    before, printed = os.getcwd(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
    finally:
        os.chdir(before)
    return printed.getvalue(), {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
