"""The call goes straight to the module, where that is what scattering to one device comes to; the wrapper stays."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import namedtuple
from dataclasses import replace

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.facts import root_facts
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.run import RootFacts, Run

Pair = namedtuple("Pair", "x y")
ROOT = RootFacts("DataParallel", 2, {"Linear": 1}, False, False, (2,), ("float32",), None, False, None)


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, *given, **more):
        return sum(map(self.add, [*given, *more.values()]))

    def add(self, given):
        if isinstance(given, dict):
            given = list(given.values())
        return sum(map(self.add, given)) if isinstance(given, (list, tuple)) else self.weight * given


class Counting(nn.DataParallel):
    def scatter(self, inputs, kwargs, device_ids):
        self.scattered += 1
        return [inputs], [kwargs]


def wrapped(device_ids=(0,)) -> Counting:
    """As on a machine with one device, which here is the processor."""
    wrapper = Counting(Sum())
    wrapper.scattered = 0
    wrapper.device_ids, wrapper.output_device, wrapper.dim = list(device_ids), 0, 0
    wrapper.src_device_obj = torch.device("cpu")
    return wrapper


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((X,), {}), ((X, 2.0), {"x": X}), (([X, (X, {"x": X})],), {}), ((Pair(X, X),), {}), ((), {"x": X})],
)
def test_the_call_is_direct(apply, args, kwargs) -> None:
    wrapper = wrapped()
    expected = wrapper(*args, **kwargs)
    assert wrapper.scattered == 1, "else this could not fail"
    apply("no-data-parallel")
    assert torch.equal(wrapper(*args, **kwargs), expected) and wrapper.scattered == 1


@pytest.mark.parametrize("given", [X.to("meta"), torch.ones(()), [X, {"x": X.to("meta")}]])
def test_what_scattering_would_move_or_refuse_is_scattered(apply, given) -> None:
    wrapper = wrapped()
    apply("no-data-parallel")
    with contextlib.suppress(RuntimeError):  # the two kinds of device cannot be multiplied
        wrapper(given)
    assert wrapper.scattered == 1


def test_several_devices_stay_scattered(apply, monkeypatch) -> None:
    wrapper = wrapped(device_ids=(0, 1))
    monkeypatch.setattr(wrapper, "replicate", lambda module, ids: [module])
    monkeypatch.setattr(wrapper, "parallel_apply", lambda replicas, inputs, kwargs: [replicas[0](*inputs[0])])
    monkeypatch.setattr(wrapper, "gather", lambda outputs, device: outputs[0])
    apply("no-data-parallel")
    assert torch.equal(wrapper(X), X) and wrapper.scattered == 1


def test_without_a_device_it_goes_through_as_ever(apply) -> None:
    apply("no-data-parallel")
    assert torch.equal(nn.DataParallel(Sum())(X), X)


def test_keys_hooks_pickles_and_copies_are_as_before(apply) -> None:
    wrapper, calls = wrapped(), []
    wrapper.register_forward_hook(lambda *_: calls.append("outer"))
    wrapper.module.register_forward_hook(lambda *_: calls.append("inner"))
    apply("no-data-parallel")
    wrapper(X).sum().backward()
    assert list(wrapper.state_dict()) == ["module.weight"] and calls == ["inner", "outer"]
    assert wrapper.module.weight.grad is not None
    again = pickle.loads(pickle.dumps(nn.DataParallel(Sum())))
    assert list(again.state_dict()) == list(copy.deepcopy(again).state_dict()) == ["module.weight"]


def test_undone(apply) -> None:
    wrapper, before = wrapped(), nn.DataParallel.forward
    patch = apply("no-data-parallel")
    assert nn.DataParallel.forward is not before
    patch.undo()
    assert nn.DataParallel.forward is before
    wrapper(X)
    assert wrapper.scattered == 1


def test_what_is_seen(apply) -> None:
    joints = Joints()
    patch, wrapper = Patch(joints), wrapped()
    patch.at(joints.root_found, lambda root: None)
    torch.optim.SGD(wrapper.parameters(), lr=0.1)
    wrapper(X)
    try:
        assert root_facts(wrapper, joints.roots).devices == 1
        apply("no-data-parallel")
        assert root_facts(wrapper, joints.roots).devices == 0
        wrapper.device_ids = [0, 1]
        assert root_facts(wrapper, joints.roots).devices == 2
    finally:
        patch.undo()


@pytest.mark.parametrize(
    ("devices", "seen", "words"), [(0, True, "no model is wrapped"), (2, False, "several devices")]
)
def test_why_it_cannot_help(devices: int, seen: bool, words: str) -> None:
    run = Run(torch="2.11", device="cuda", roots=[replace(ROOT, devices=devices)])
    technique = find("no-data-parallel")
    assert technique.seen(run) is seen and words in technique.settings(run).reason


def test_when_it_can_help() -> None:
    parts = [[0.0, 0.0, 0.3, 0.4, 0.3, 0.0, 0.0]] * 4
    run = Run(torch="2.11", device="cuda", roots=[replace(ROOT, devices=1)], step_parts=parts)
    technique = find("no-data-parallel")
    assert technique.seen(run) is False
    assert [(one.setting, one.most) for one in technique.settings(run)] == [({}, pytest.approx(0.3))]
