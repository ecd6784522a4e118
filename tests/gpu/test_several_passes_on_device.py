"""Several recorded passes a step, passes that add up to one update, and passes that go back through what was made
outside of them: as CUDA graphs, beside the plain loops."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hotlap.catalogue import find
from hotlap.parts import recorded_pass
from hotlap.source.fix import rewritten
from hotlap.source.module import Source

pytestmark = pytest.mark.gpu

LOOPS = Path(__file__).resolve().parents[1] / "catalogue_process" / "strange_passes.py"
PASSES = {  # how often each pass is replayed at least
    "a_maker_and_its_judge": [20, 20],
    "a_judge_and_then_its_maker": [20, 20, 20],
    "judges_of_two_makers": [20, 20, 20],
    "a_maker_now_and_then": [60, 10],
    "four_passes_to_an_update": [40],
    "gradients_set_to_zero": [20],
    "a_judge_that_is_frozen_for_its_maker": [20, 20],
    "a_head_that_works_in_place": [20],
    "a_way_that_the_settings_decide": [20],
    "what_is_given_as_a_whole": [20],
    "what_is_shown_before_it_goes_back": [20],
}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    recorded_pass._passes.clear()
    yield
    recorded_pass._passes.clear()


def trained(name: str, is_recorded: bool) -> tuple[list[torch.Tensor], list[recorded_pass.RecordedPass]]:
    source = Source(LOOPS.read_text(), str(LOOPS))
    choices = [(find("captured-pass"), None)] if is_recorded else []
    script = types.ModuleType("several_passes")
    text = rewritten(source, choices, unsafe=True, doubtful=True).text
    torch.manual_seed(0)
    exec(compile(text, str(LOOPS), "exec"), vars(script))
    _, model, _ = vars(script)[name]()
    weights = [one.detach().clone() for one in model.parameters()]
    return weights, list(recorded_pass._passes.values())


@pytest.mark.parametrize("name", PASSES)
def test_they_train_the_same(name: str) -> None:
    theirs, _ = trained(name, False)
    again, _ = trained(name, False)
    ours, passes = trained(name, True)
    assert [one.refused for one in passes] == [""] * len(PASSES[name])
    assert all(one.replays >= most for one, most in zip(passes, PASSES[name], strict=True))
    for one, other, own in zip(theirs, again, ours, strict=True):
        apart = 4 * float((one - other).abs().max())  # as far as the loop is from itself
        torch.testing.assert_close(one, own, rtol=1e-3, atol=1e-3 + apart)
