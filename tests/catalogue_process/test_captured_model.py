"""Recorded calls in a whole loop, alone and beside others: the same training, seen, and told when it is given up."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.facts import root_facts
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.run import OptimizerFacts, RootFacts, Run
from hotlap.parts import captured_calls, captured_update
from hotlap.technique import CannotHelp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parts"))
from played_graphs import PlayedGraphs
from played_recorder import PlayedRecorder


@pytest.fixture
def graphs(monkeypatch) -> PlayedGraphs:
    played = PlayedGraphs()
    monkeypatch.setattr(captured_calls, "GraphRecorder", played)
    monkeypatch.setattr(captured_update, "GraphRecorder", PlayedRecorder)
    return played


def network() -> nn.Module:
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 2)]
    return nn.Sequential(*layers)


class Training:
    """Sixteen steps of a network, each technique in a patch of its own, as in a run."""

    def __init__(self, graphs: PlayedGraphs, *techniques, model: nn.Module | None = None) -> None:
        joints = Joints()
        patches = [Patch(joints, name) for name in ("watch", *(name for name, _ in techniques))]
        patches[0].at(joints.root_found, lambda root: None)
        for patch, (name, setting) in zip(patches[1:], techniques, strict=True):
            find(name).apply(patch, setting)
        torch.manual_seed(0)
        self.model = model or network()
        graphs.roots = (self.model,)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.losses = [self.step(optimizer) for _ in range(16)]
        self.run = Run(torch="2.13", device="cuda", roots=[root_facts(self.model, joints.roots)])
        self.is_update_replayed = captured_update.replayed(optimizer)
        self.withdrawn, self.compared = joints.withdrawn, [one.facts for one in joints.comparisons]
        for patch in reversed(patches):
            patch.undo()
        assert "_compiled_call_impl" not in vars(self.model)

    def step(self, optimizer: torch.optim.Optimizer) -> float:
        loss = self.model(torch.randn(4, 3, 8, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()


def same(first: Training, second: Training) -> bool:
    ones, others = first.model.state_dict(), second.model.state_dict()
    return first.losses == second.losses and all(torch.equal(ones[name], others[name]) for name in ones)


CAPTURED = ("captured-model", {})


def test_the_training_is_the_same_and_is_seen(graphs) -> None:
    plain, ours = Training(graphs), Training(graphs, CAPTURED)
    assert same(plain, ours) and graphs.played > 10
    assert find("captured-model").seen(ours.run) is True and ours.withdrawn == []
    assert ours.compared[0].count == 4 and ours.compared[0].difference == 0


BESIDE = [
    [("mixed-precision", {"dtype": "bfloat16"})],
    [("channels-last", {})],
    [("no-bias-before-norm", {})],
    [("mixed-precision", {"dtype": "bfloat16"}), ("channels-last", {}), ("no-bias-before-norm", {})],
]


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("others", BESIDE)
def test_beside_others_it_is_the_training_they_make(graphs, others, order) -> None:
    theirs, ours = Training(graphs, *others), Training(graphs, *[*others, CAPTURED][::order])
    assert same(theirs, ours)
    assert ours.run.roots[0].captured and ours.withdrawn == [] and graphs.played > 10


def test_gradients_stay_in_place_so_that_the_update_is_recorded_too(graphs) -> None:
    plain, ours = Training(graphs), Training(graphs, CAPTURED, ("fused-optimizer", {"kind": "captured"}))
    assert ours.run.roots[0].captured and ours.is_update_replayed and ours.withdrawn == []
    assert ours.losses == pytest.approx(plain.losses, rel=1e-5)


def test_a_reason_is_told_when_it_is_given_up(graphs) -> None:
    torch.manual_seed(0)
    model = network()
    model[2].register_forward_hook(lambda module, args, out: None)
    ours = Training(graphs, CAPTURED, model=model)
    assert ours.withdrawn == ["captured-model: a hook hangs on its ReLU"]
    assert find("captured-model").seen(ours.run) is False


def test_a_compiled_model_is_left_to_its_compiler(graphs, apply) -> None:
    """Whoever sits nearer to the model does something else with its calls; when he leaves, they are recorded."""
    joints = apply("captured-model").joints
    nearer = Patch(joints)
    nearer.at(joints.root_called, lambda proceed, *args: proceed(*args), depth=8)
    model = network()
    graphs.roots = (model,)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> int:
        for _ in range(12):
            model(torch.randn(4, 3, 8, 8)).square().mean().backward()
            optimizer.step()
        return graphs.played

    assert train() == 0 and joints.withdrawn == []
    nearer.undo()
    assert train() > 0


def root(**more) -> RootFacts:
    facts = {"channels_last": False, "input_channels_last": False, "input_dims": (2,), "parameter_dtypes": ("float32",)}
    return RootFacts("Net", 8, {}, autocast=None, compiled=False, **{"stands_aside": None, **facts, **more})


def optimizer(**more) -> OptimizerFacts:
    facts = {"sparse": False, "closure": False, **more}
    return OptimizerFacts("torch.optim.SGD", False, None, False, False, 2, 8, ("cuda",), ("float32",), **facts)


CANNOT = [
    ({"device": "cpu"}, "GPU"),
    ({"roots": []}, "no model"),
    ({"roots": [root(stands_aside="it is a scripted module")]}, "scripted"),
    ({"roots": [root(devices=2)]}, "several devices"),
    ({"optimizers": [optimizer(closure=True)]}, "closure"),
    ({"optimizers": [optimizer(sparse=True)]}, "sparse"),
]


@pytest.mark.parametrize(("facts", "words"), CANNOT)
def test_where_it_cannot_help(facts, words) -> None:
    usual = {"torch": "2.13", "device": "cuda", "roots": [root()], "optimizers": [optimizer()]}
    usual["step_parts"] = [[0.0, 0.0, 0.3, 0.5, 0.1, 0.0, 0.1]] * 4
    (one,) = find("captured-model").settings(Run(**usual))
    assert one.most == pytest.approx(0.8)
    verdict = find("captured-model").settings(Run(**{**usual, **facts}))
    assert isinstance(verdict, CannotHelp) and words in verdict.reason


def test_a_model_that_the_script_drops_is_gone(graphs, apply, bound_to_itself) -> None:
    patch = apply("captured-model")
    patch.at(patch.joints.root_found, lambda root: None)
    model = bound_to_itself()
    graphs.roots = (model,)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    assert graphs.played > 2 and captured_calls.replayed(model)
    last, graphs.roots = weakref.ref(model), ()
    del model, optimizer
    gc.collect()
    assert last() is None
