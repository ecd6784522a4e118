"""Wherever a model keeps the number that the script changes between steps, no graph goes on with the old one. A tape
stands for the device: it knows numbers and addresses only, so that one step with the old number shows."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import os
from types import SimpleNamespace

import numpy
import pytest
import torch
from taped_recorder import TapedRecorder
from torch import nn
from torch.nn import functional as F

from hotlap.parts.captured_calls import CapturedCalls
from hotlap.parts.recorded_pass import RecordedPass

STEPS = 32


class Configured:
    """Answers by name from a dictionary, as many configurations do."""

    def __init__(self) -> None:
        object.__setattr__(self, "_held", {"weight": 1.0})

    def __getattr__(self, name: str) -> float:
        return self._held[name]


@dataclasses.dataclass(slots=True)
class Slotted:
    weight: float = 1.0


HELD = {
    "deque": lambda: collections.deque([1.0], maxlen=4),
    "set": lambda: {1.0},
    "array": lambda: numpy.ones(2),
    "long list": lambda: [1.0] * 100,
    "long dict": lambda: dict.fromkeys(range(100), 1.0),
    "wrapped": lambda: collections.UserDict(weight=1.0),
    "numbers": lambda: itertools.chain(itertools.repeat(1.0, 16), itertools.repeat(2.0)),
    "configured": Configured,
    "slotted": Slotted,
    "spelt": lambda: SimpleNamespace(weight=1.0),
    "partial": lambda: functools.partial(torch.mul, other=1.0),
}


class Network(nn.Module):
    shared, several = SimpleNamespace(weight=1.0), [1.0]

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(8, 8), WAYS[way][0]
        self.box = {way: HELD[way]()} if way in HELD else {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.read(self)


def rewrapped(model: Network, new: float) -> None:
    model.box["partial"] = functools.partial(torch.mul, other=new)


# How the number is read, and how the script changes it.
WAYS = {
    "deque": (lambda m: m.box["deque"][-1], lambda m, new: m.box["deque"].append(new)),
    "set": (lambda m: max(m.box["set"]), lambda m, new: m.box["set"].add(new)),
    "array": (lambda m: float(m.box["array"][0]), lambda m, new: m.box["array"].fill(new)),
    "long list": (lambda m: m.box["long list"][7], lambda m, new: m.box["long list"].__setitem__(7, new)),
    "long dict": (lambda m: m.box["long dict"][7], lambda m, new: m.box["long dict"].__setitem__(7, new)),
    "wrapped": (lambda m: m.box["wrapped"]["weight"], lambda m, new: m.box["wrapped"].update(weight=new)),
    "numbers": (lambda m: next(m.box["numbers"]), lambda m, new: None),
    "configured": (lambda m: m.box["configured"].weight, lambda m, new: m.box["configured"]._held.update(weight=new)),
    "slotted": (lambda m: m.box["slotted"].weight, lambda m, new: setattr(m.box["slotted"], "weight", new)),
    "spelt": (lambda m: getattr(m.box["spelt"], "weight"), lambda m, new: setattr(m.box["spelt"], "weight", new)),  # noqa: B009
    "partial": (lambda m: m.box["partial"](torch.ones(1)), rewrapped),
    "class": (lambda m: m.shared.weight, lambda m, new: setattr(Network.shared, "weight", new)),
    "class list": (lambda m: Network.several[0], lambda m, new: Network.several.__setitem__(0, new)),
    "environment": (
        lambda m: float(os.environ.get("WEIGHT", "1")),
        lambda m, new: os.environ.__setitem__("WEIGHT", str(new)),
    ),
}


def trained(way: str, through: str) -> tuple:
    _, change = WAYS[way]
    torch.manual_seed(0)
    model = Network(way)
    change(model, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    passes, calls, losses = RecordedPass(TapedRecorder()), CapturedCalls(TapedRecorder), []
    for number in range(STEPS):
        if number == STEPS // 2:
            change(model, 2.0)
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(8, 8, generator=generator), torch.randint(0, 8, (8,), generator=generator)

        def one_pass(x, y):
            optimizer.zero_grad()
            out = calls.call(model, (x,), {}) if through == "calls" else model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            return loss

        loss = passes.run(one_pass, (x, y)) if through == "passes" else one_pass(x, y)
        optimizer.step()
        losses.append(loss.item())
    return losses, (passes if through == "passes" else calls)


@pytest.fixture(autouse=True)
def steadily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    monkeypatch.setenv("WEIGHT", "1")


@pytest.mark.parametrize("through", ["passes", "calls"])
@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_changes_in_place(way: str, through: str) -> None:
    theirs, ours = trained(way, ""), trained(way, through)
    assert theirs[0] == ours[0]
    is_left_alone = way in ("numbers", "environment")
    assert bool(ours[1].refused) is is_left_alone and (ours[1].replays == 0) is is_left_alone


@pytest.mark.parametrize("through", ["passes", "calls"])
@pytest.mark.parametrize("change", ["a layer more", "another forward"])
def test_a_model_that_changes(change: str, through: str) -> None:
    def trained(through: str) -> list[float]:
        torch.manual_seed(0)
        model, losses = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))), []
        passes, calls = RecordedPass(TapedRecorder()), CapturedCalls(TapedRecorder)
        for number in range(STEPS):
            if number == STEPS // 2 and change == "a layer more":
                model[1].append(nn.Tanh())
            elif number == STEPS // 2:
                model[0].forward = lambda x: F.linear(x, model[0].weight)

            def one_pass(x):
                model.zero_grad()
                out = calls.call(model, (x,), {}) if through == "calls" else model(x)
                loss = out.square().mean()
                loss.backward()
                return loss

            x = torch.randn(8, 8, generator=torch.Generator().manual_seed(number))
            losses.append((passes.run(one_pass, (x,)) if through == "passes" else one_pass(x)).item())
        return losses

    assert trained("") == trained(through)
