"""After undo everything is as it was: the same object, in the same dictionary, and nothing beside it."""

from __future__ import annotations

import types
from types import SimpleNamespace

import pytest
import torch

from hotlap.observe.attach import Attached
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch


@pytest.fixture
def patch() -> Patch:
    return Patch(Joints())


class Base:
    shared = "base"

    @staticmethod
    def plain(value: int) -> int:
        return value

    @classmethod
    def named(cls) -> str:
        return cls.__name__

    @property
    def computed(self) -> int:
        return self.inner

    @computed.setter
    def computed(self, value: int) -> None:
        self.inner = value


class Derived(Base):
    pass


def test_undo_goes_backwards(patch: Patch) -> None:
    owner, order = SimpleNamespace(value=1), []
    patch.set(owner, "value", 2)
    patch.on_undo(lambda: order.append(("first", owner.value)))
    patch.set(owner, "value", 3)
    patch.on_undo(lambda: order.append(("second", owner.value)))
    patch.undo()
    assert order == [("second", 3), ("first", 2)]
    assert owner.value == 1
    patch.undo()  # a second time changes nothing
    assert len(order) == 2 and owner.value == 1


def test_an_absent_attribute_is_absent_again(patch: Patch) -> None:
    owner = SimpleNamespace()
    patch.set(owner, "value", None)
    patch.undo()
    assert not hasattr(owner, "value")


@pytest.mark.parametrize("name", ["plain", "named", "shared", "computed", "__init__"])
def test_what_a_class_inherits_stays_inherited(patch: Patch, name: str) -> None:
    before = dict(vars(Derived)), dict(vars(Base))
    patch.set(Derived, name, lambda *_: "new")
    assert name in vars(Derived)
    patch.undo()
    assert (dict(vars(Derived)), dict(vars(Base))) == before


@pytest.mark.parametrize("name", ["plain", "named", "computed"])
def test_descriptors_come_back_as_descriptors(patch: Patch, name: str) -> None:
    """Read through `getattr` a staticmethod would come back as a function, and a classmethod bound."""
    before = vars(Base)[name]
    patch.set(Base, name, lambda *_: "new")
    patch.undo()
    assert vars(Base)[name] is before
    assert Derived().plain(3) == 3 and Derived.named() == "Derived"


@pytest.mark.parametrize("name", ["plain", "shared"])
def test_what_an_instance_inherits_stays_inherited(patch: Patch, name: str) -> None:
    owner = Derived()
    patch.set(owner, name, "new")
    assert getattr(owner, name) == "new"
    patch.undo()
    assert vars(owner) == {}


def test_values_that_live_behind_a_descriptor(patch: Patch) -> None:
    owner, layer = Derived(), torch.nn.Linear(2, 2)
    owner.computed = 1
    weight = layer.weight
    patch.set(owner, "computed", 2)
    patch.set(layer, "weight", torch.nn.Parameter(torch.zeros(2, 2)))
    assert owner.computed == 2 and layer.weight is not weight
    patch.undo()
    assert vars(owner) == {"inner": 1}
    assert layer.weight is weight and list(layer.state_dict()) == ["weight", "bias"]


def test_items(patch: Patch) -> None:
    mapping = {"kept": None}
    patch.item(mapping, "kept", 1)
    patch.item(mapping, "new", 2)
    patch.item(mapping, "new", 3)
    assert mapping == {"kept": 1, "new": 3}
    patch.undo()
    assert mapping == {"kept": None}


def test_hold_removes_the_handle(patch: Patch) -> None:
    layer, calls = torch.nn.Linear(1, 1), []
    patch.hold(layer.register_forward_hook(lambda *_: calls.append(1)))
    layer(torch.zeros(1, 1))
    patch.undo()
    layer(torch.zeros(1, 1))
    assert calls == [1]


def test_at_subscribes_until_undo(patch: Patch) -> None:
    original = torch.autograd.backward
    patch.at(patch.joints.loss_known, lambda proceed, *args, **kwargs: proceed(*args, **kwargs))
    assert torch.autograd.backward is not original
    patch.undo()
    assert torch.autograd.backward is original


class Half(types.SimpleNamespace):
    """A technique that fails half way."""

    def apply(self, patch: Patch, setting: dict) -> None:
        patch.set(torch, "half_applied", True)
        patch.at(patch.joints.loss_known, lambda proceed, *args, **kwargs: None)
        raise RuntimeError("no kernel")


class Whole(types.SimpleNamespace):
    def apply(self, patch: Patch, setting: dict) -> None:
        patch.set(torch, "whole_applied", setting)


def test_a_technique_that_fails_half_way_is_withdrawn_as_a_whole() -> None:
    original = torch.autograd.backward
    half = SimpleNamespace(technique=Half(), setting={}, device=None)
    choices = [half, SimpleNamespace(technique=Whole(), setting={"a": 1}, device=None)]
    attached = Attached(choices)
    try:
        assert [line.rpartition(": ")[2] for line in attached.withdrawn] == ["no kernel"]
        assert not hasattr(torch, "half_applied") and torch.autograd.backward is original
        assert torch.whole_applied == {"a": 1} and len(attached.applied) == 1
    finally:
        attached.detach()
    assert not hasattr(torch, "whole_applied")
