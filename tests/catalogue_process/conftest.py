"""Techniques applied to this very process, and undone at the end of the test."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch


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
