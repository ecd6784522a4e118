"""Attention by hand is tried as `run` applies it: in memory, where source says for certain what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider, partners
from hotlap.observe.run import SHARES, Run
from hotlap.source.fix import finds_a_place
from hotlap.technique import Choice, Parity

FIXTURE = Path(__file__).resolve().parent.parent / "catalogue" / "fused_attention"
ATTENTION = find("fused-attention")


def run(**shares: float) -> Run:
    return Run("2.11", "cpu", step_parts=[[shares.get(name, 0.0) for name in SHARES]] * 10)


def test_tune_tries_it_for_as_much_as_forward_and_backward_take() -> None:
    found = consider(ATTENTION, run(wait=0.1, forward=0.3, backward=0.4, update=0.2))
    assert isinstance(found, Candidate)
    assert (found.most, found.parity, dict(found.choice().setting)) == (pytest.approx(0.7), Parity.EQUIVALENT, {})
    small = consider(ATTENTION, run(wait=0.99, forward=0.01))
    assert isinstance(small, Skipped) and small.is_small


def test_it_is_tried_together_with_low_precision() -> None:
    other = Choice(find("mixed-precision"), {})
    assert partners(Choice(ATTENTION, {}), [other]) == [other]


def test_it_has_a_place_where_attention_is_written_by_hand() -> None:
    assert finds_a_place(ATTENTION, str(FIXTURE / "before.py"))
    assert not finds_a_place(ATTENTION, str(FIXTURE / "after.py"))


def test_a_trial_goes_through_what_was_written(run_script, tmp_path: Path) -> None:
    (tmp_path / "attending.py").write_text((FIXTURE / "before.py").read_text().partition("torch.manual_seed(0)")[0])
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    plain, fused = run_script(script), run_script(script, [Choice(ATTENTION, {})])
    assert plain.good and fused.good, fused.log
    assert fused.run.withdrawn == []
    assert ("fused False" in plain.log, "fused True" in fused.log) == (True, True)
    assert len(plain.run.losses) == 8 and fused.run.losses == pytest.approx(plain.run.losses, rel=1e-4)


TRAIN = """
import torch
from attending import Causal
torch.manual_seed(0)
model = Causal(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for x in torch.randn(8, 4, 16, 8):
    optimizer.zero_grad()
    (model(x)[:, :-1] - x[:, 1:]).pow(2).mean().backward()
    optimizer.step()
print("fused", "scaled_dot_product_attention" in Causal.forward.__code__.co_names)
"""
