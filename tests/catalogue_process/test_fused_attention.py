"""Attention by hand is only ever written into source: what lies behind a mask or a submodule no file can tell."""

from __future__ import annotations

from hotlap.catalogue import find
from hotlap.measure.candidates import Skipped, consider
from hotlap.observe.run import SHARES, Run


def test_tune_does_not_try_it_by_itself() -> None:
    shares = {"forward": 0.3, "backward": 0.4}
    run = Run("2.11", "cpu", step_parts=[[shares.get(name, 0.0) for name in SHARES]] * 10)
    found = consider(find("fused-attention"), run)
    assert isinstance(found, Skipped) and not found.is_small
