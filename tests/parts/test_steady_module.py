"""A module's calls rest on more than the module: what its code reads elsewhere must be as it was, too."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace

import pytest
import torch
from played_graphs import PlayedGraphs
from played_recorder import PlayedPasses
from torch import nn
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator

from hotlap.parts import captured_calls
from hotlap.parts.captured_calls import CapturedCalls
from hotlap.parts.recorded_pass import RecordedPass
from hotlap.parts.steady_module import SteadyModule

WARMTH, COLD, SEEN = 1.0, 1.0, []


class Settings:
    warmth = 1.0


def warmed(x: torch.Tensor) -> torch.Tensor:
    return x * WARMTH


class Network(nn.Module):
    share = 1.0

    def __init__(self, how: object) -> None:
        super().__init__()
        self.layer, self.how, self.several = nn.Linear(4, 2), how, [how]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return warmed(self.layer(x)) * self.how.warmth * self.share * Settings.warmth * COLD


def elsewhere(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WARMTH", 2.0)


def in_its_own_file(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "COLD", 2.0)


def in_an_object(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    model.how.warmth = 2.0


def in_its_class(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "share", 2.0)


def in_another_class(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "warmth", 2.0)


def in_a_function(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "warmed", lambda x: x + 1)


CHANGES = [elsewhere, in_its_own_file, in_an_object, in_its_class, in_another_class, in_a_function]


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_elsewhere_ends_a_recording(change, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temperatures and weights that a schedule lowers are often nowhere in the module."""
    model = Network(SimpleNamespace(warmth=1.0))
    steady, captured = SteadyModule(model), CapturedCalls(PlayedGraphs(model))
    for _ in range(6):
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    assert captured.replays == 3 and steady.holds()
    change(model, monkeypatch)
    assert not steady.holds()
    captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    assert captured.replays == 3 and captured.refused == ""


class Noting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(len(SEEN))
        return self.layer(x)


class Drawing(nn.Module):
    """Hardly ever does something else, and no generator that everybody shares tells."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.own = nn.Linear(4, 2), random.Random(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if self.own.random() < 0.999 else x[:, :2]


@pytest.mark.parametrize(("kind", "words"), [(Noting, "change between calls"), (Drawing, "random numbers on the host")])
def test_what_leaves_traces_elsewhere_is_not_recorded(kind, words: str) -> None:
    SEEN.clear()
    model = kind()
    captured = CapturedCalls(PlayedGraphs(model))
    for _ in range(12):
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    assert captured.replays == 0 and words in captured.refused
    assert kind is Drawing or list(range(12)) == SEEN


class Tabled(nn.Module):
    """A table that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 2), torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.table


def test_a_tensor_in_an_attribute_that_gets_other_memory() -> None:
    model = Tabled()
    captured = CapturedCalls(PlayedGraphs(model))
    for number in range(12):
        if number == 6:
            assert captured.replays == 3
            model.table.data = torch.full((2,), 3.0)
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    assert captured.replays == 6, "it is watched and recorded anew"


@pytest.mark.parametrize("is_buffer", [False, True])
def test_a_sparse_tensor_is_no_error(is_buffer: bool) -> None:
    """As graph networks keep their neighbours."""

    class Neighbours(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            if is_buffer:
                self.register_buffer("near", torch.eye(3).to_sparse())
            else:
                self.near = torch.eye(3).to_sparse()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.near, self.layer(x))

    model = Neighbours()
    captured = CapturedCalls(PlayedGraphs(model))
    for _ in range(6):
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    assert captured.replays == 0 and "sparse" in captured.refused


def test_code_that_could_print_and_does_not_is_recorded() -> None:
    class Talks(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) > 1000:
                print("large")
            return super().forward(x)

    model = Talks(4, 2)
    captured = CapturedCalls(PlayedGraphs(model))
    for _ in range(6):
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
    assert captured.replays == 3


def test_a_module_that_its_settings_know_is_not_kept_alive() -> None:
    model = Network(SimpleNamespace(warmth=1.0))
    model.how.model = model
    steady = SteadyModule(model)
    assert steady.holds()
    gone = weakref.ref(model)
    model.how.model = None
    del model
    gc.collect()
    assert gone() is None


def test_precision_said_in_the_new_way() -> None:
    """Torch refuses to tell it in the old way then."""
    was = torch.backends.cuda.matmul.fp32_precision
    try:
        before = captured_calls.forward_settings(torch.device("cpu"))
        torch.backends.cuda.matmul.fp32_precision = "ieee" if was == "tf32" else "tf32"
        assert captured_calls.forward_settings(torch.device("cpu")) != before
    finally:
        torch.backends.cuda.matmul.fp32_precision = was


def doubling() -> HigherOrderOperator:
    class Doubling(HigherOrderOperator):
        def __init__(self) -> None:
            super().__init__("doubling")

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return super().__call__(x)

    double = Doubling()
    double.py_impl(DispatchKey.CPU)(lambda x: x * 2)
    double.fallthrough(DispatchKey.AutogradCPU)
    return double


def test_an_operation_made_of_others_is_no_error() -> None:
    """Such as flexible attention: torch does not let every mode see them."""
    double = doubling()

    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + double(x).sum()

    model = Doubled(4, 2)
    captured, own = CapturedCalls(PlayedGraphs(model)), RecordedPass(PlayedPasses(model))
    for _ in range(8):
        captured.call(model, (torch.ones(3, 4),), {}).sum().backward()
        model.zero_grad()
        own.run(lambda x: model(x).sum().backward(), (torch.ones(3, 4),))
        model.zero_grad()
    assert captured.replays == own.replays == 0 and "looked into" in own.refused
