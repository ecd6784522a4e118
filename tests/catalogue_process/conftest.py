"""Techniques applied to this very process, and undone at the end of the test."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts import early_copies


@pytest.fixture
def apply():
    """`apply("fused-optimizer", {...}) -> Patch`; several share one patch, as in a run."""
    patch = Patch(Joints())

    def applied(name: str, setting: dict | None = None) -> Patch:
        technique = find(name)
        technique.apply(patch, technique.default if setting is None else setting)
        return patch

    yield applied
    patch.undo()


class _Clones:
    """Stands for a device: what torch itself moves to "meta" has no values, what comes from here has."""

    device, room_bytes = torch.device("meta"), 1 << 30

    def __init__(self) -> None:
        self.handed = 0

    def copy(self, tensors):
        return [tensor.clone() for tensor in tensors]

    def hand_over(self, made, blocking):
        self.handed += 1
        return made


@pytest.fixture
def clones(monkeypatch: pytest.MonkeyPatch) -> _Clones:
    """In force as the device "meta"; `clones.handed` counts what was copied ahead and used."""
    found = _Clones()
    monkeypatch.setattr(early_copies, "copier_for", lambda device: found if device == found.device else None)
    return found


class _BoundToItself(nn.Module):
    """Refers to itself, as a method does that is kept under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.act = self.bent

    def bent(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.layer(x))


@pytest.fixture
def bound_to_itself() -> type[nn.Module]:
    """The class, not a model: a fixture would keep that alive."""
    return _BoundToItself
