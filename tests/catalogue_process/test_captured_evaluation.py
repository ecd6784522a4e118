"""Recorded evaluations in a whole loop, alone and beside others: the same training and the same scores, to the bit."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.run import RootFacts, Run
from hotlap.parts import captured_evaluation
from hotlap.technique import CannotHelp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parts"))
from taped_recorder import TapedRecorder

EVALUATION = ("captured-evaluation", {})


class Counted(TapedRecorder):
    recorded = 0

    def record(self, update, device):
        Counted.recorded += 1
        return super().record(update, device)


@pytest.fixture(autouse=True)
def taped(monkeypatch: pytest.MonkeyPatch) -> None:
    Counted.recorded = 0
    monkeypatch.setattr(captured_evaluation, "GraphRecorder", Counted)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


def trained(*techniques, hook=False) -> tuple[list[float], dict[str, torch.Tensor], Joints]:
    """Losses and scores of four epochs of four steps and eight batches of a test; the last of them is smaller."""
    joints = Joints()
    patches = [Patch(joints, name) for name in ("watch", *(name for name, _ in techniques))]
    patches[0].at(joints.root_found, lambda root: None)
    for patch, (name, setting) in zip(patches[1:], techniques, strict=True):
        find(name).apply(patch, setting)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2))
    if hook:
        model[2].register_forward_hook(lambda module, args, out: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    found = []
    for _ in range(4):
        model.train()
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3, 8, 8)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        model.eval()
        with torch.no_grad():
            found += [model(torch.randn(5 if last else 8, 3, 8, 8)).sum().item() for last in (*[0] * 7, 1)]
    for patch in reversed(patches):
        patch.undo()
    return found, dict(model.state_dict()), joints


def same(one, other) -> bool:
    return one[0] == other[0] and all(torch.equal(one[1][name], other[1][name]) for name in one[1])


@pytest.mark.parametrize(
    "others",
    [[], [("mixed-precision", {"dtype": "bfloat16"})], [("channels-last", {})], [("captured-model", {})]],
    ids=["alone", "in bf16", "with channels last", "with a recorded model"],
)
def test_it_is_the_same_and_most_evaluations_are_replayed(others) -> None:
    theirs, ours = trained(*others), trained(*others, EVALUATION)
    assert same(theirs, ours) and ours[2].withdrawn == theirs[2].withdrawn
    (compared,) = [one.facts for one in ours[2].comparisons if "evaluations" in one.facts.what]
    assert Counted.recorded == 1 and compared.count == 2 and compared.difference == 0


def test_what_cannot_be_recorded_costs_the_run_nothing() -> None:
    theirs, ours = trained(hook=True), trained(EVALUATION, hook=True)
    assert same(theirs, ours) and Counted.recorded == 0 and ours[2].withdrawn == []


@pytest.fixture
def attached() -> Iterator[None]:
    joints = Joints()
    patches = [Patch(joints, name) for name in ("watch", "captured-evaluation")]
    patches[0].at(joints.root_found, lambda root: None)
    find("captured-evaluation").apply(patches[1], {})
    yield
    for patch in reversed(patches):
        patch.undo()


def stepped(model: nn.Module) -> nn.Module:
    """Trained until nobody looks for roots any more, and ready to be tested."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return model.eval()


def test_a_model_that_the_script_drops_is_gone(attached, bound_to_itself) -> None:
    model = stepped(bound_to_itself())
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(3, 4))
    assert Counted.recorded == 1
    last = weakref.ref(model)
    del model
    gc.collect()
    assert last() is None


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning", "error::torch.jit.TracerWarning")
def test_a_model_is_traced_as_it_is(attached) -> None:
    """Many scripts end so: what is written to a file must be the model, not what was done to replay it."""
    model = stepped(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    with torch.no_grad():
        for _ in range(8):
            model(torch.randn(3, 4))
        traced, x = torch.jit.trace(model, (torch.randn(3, 4),)), torch.randn(3, 4)
        assert Counted.recorded == 1, "nothing is recorded amid a trace"
        expected = model(x)
    assert torch.equal(traced(x), expected)


def test_a_model_that_is_left_alone_is_not_recorded_either() -> None:
    root = RootFacts("Net", 9, {}, False, False, (2,), (), None, False, None)
    technique, aside = find("captured-evaluation"), replace(root, stands_aside="it is spread over processes")
    assert technique.settings(Run(torch="2.13", device="cuda", roots=[root]))[0].setting == {}
    refused = technique.settings(Run(torch="2.13", device="cuda", roots=[root, aside]))
    assert isinstance(refused, CannotHelp) and refused.reason == "it is spread over processes"
