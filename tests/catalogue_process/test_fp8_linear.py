"""Large linear layers in 8 bits: which chips, which layers, and nothing else to be seen of it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

from hotlap.catalogue import find, fp8_linear
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.facts import root_facts
from hotlap.observe.run import RootFacts, Run
from hotlap.parts.eight_bit_products import EightBitLinear


@pytest.fixture
def on_a_good_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_linear, "_bears", lambda root: True)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2))


def train(model: nn.Module, steps: int = 6) -> list[float]:
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        x = torch.randn(32, 32, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), (x.sum(dim=1) > 0).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_training_is_nearly_the_same(apply, on_a_good_chip) -> None:
    plain = network()
    expected = train(plain)
    patch = apply("fp8-linear")
    model = network()
    found = train(model)
    assert found == pytest.approx(expected, rel=0.02) and found != expected
    assert [type(layer) is EightBitLinear for layer in model[::2]] == [False, True, False]
    assert list(model.state_dict()) == list(plain.state_dict())
    assert "EightBitLinear" in root_facts(model, patch.joints.roots).layers


def test_copies_pickles_and_undo_are_plain(apply, on_a_good_chip) -> None:
    patch = apply("fp8-linear")
    model = network()
    train(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    patch.undo()
    for one in (*copies, model):
        assert type(one[2]) is nn.Linear and torch.equal(one[2].weight, model[2].weight)
    assert patch.joints.withdrawn == []


def test_what_finds_nothing_is_withdrawn(apply) -> None:
    patch = apply("fp8-linear")
    model = network()  # on a processor
    train(model, steps=10)
    assert type(model[2]) is nn.Linear
    assert "no linear layer here" in patch.joints.withdrawn[0]


def run(capability: tuple[int, ...] = (9, 0), wide: int = 4, device: str = "cuda", **layers: int) -> Run:
    root = RootFacts("Net", 9, layers, False, False, (2,), ("float32",), None, False, None, wide_linears=wide)
    return Run("2.11", device, roots=[root], step_parts=[[0, 0, 1, 1, 0, 0, 0]], device_capability=capability)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (run((8, 0)), "need a chip like Ada, Hopper or newer (capability 8.9; here 8.0)"),
        (run(wide=0), "no linear layer between the first and the last has 2048"),
        (run((), device="cpu"), "needs cuda"),
    ],
    ids=["Ampere", "small", "processor"],
)
def test_where_it_is_not_to_be_had(seen: Run, reason: str) -> None:
    verdict = consider(find("fp8"), seen)
    assert isinstance(verdict, Skipped) and reason in verdict.reason and not verdict.in_use


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0)])
def test_where_it_is(capability: tuple[int, int]) -> None:
    assert isinstance(consider(find("fp8"), run(capability)), Candidate)


def test_torchaos_layers_count_as_having_it() -> None:
    verdict = consider(find("torchao"), run(Float8Linear=3))
    assert isinstance(verdict, Skipped) and verdict.in_use
