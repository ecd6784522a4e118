"""Unusual loops, plain and with everything recorded, must be the same to the bit. A tape stands for the device, which
like a graph knows numbers and addresses only."""

from __future__ import annotations

import functools
import operator
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.replays import Replays
from hotlap.parts import captured_calls, captured_update, recorded_pass
from hotlap.parts.pass_grounds import Grounds
from hotlap.source.fix import rewritten
from hotlap.source.module import Source

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parts"))
from taped_recorder import TapedRecorder

HERE = Path(__file__).resolve().parent

WRITTEN = ("captured-pass", "sync-free-loop")
CAPTURED = ("fused-optimizer", {"kind": "captured"})


def loops() -> dict[str, Path]:
    found = {}
    for path in sorted(HERE.glob("strange_*.py")):
        for line in path.read_text().splitlines():
            if (
                line.startswith("def ")
                and line.endswith("():")
                and line not in ("def batches():", "def pair():", "def trained():", "def maker_and_judge():")
            ):
                found[line[4:-3]] = path
    return found


LOOPS = loops()
WITHOUT = {  # passes that are not recorded, and what is said of them
    "a_penalty_now_and_then": "",
    "two_passes_a_step": "",
    "gradients_that_are_centred": "",
    "what_is_put_into_what_was_given": "it puts something into what it is given",
    "a_slope_after_the_pass": "",
    "a_meter_of_what_has_a_gradient": "",
    "a_meter_that_does_more": "",
    "what_comes_from_elsewhere_in_rounds": "it may draw from an iterator, which a replay would not",
}


@functools.cache
def written(path: Path, techniques: tuple[str, ...]) -> str:
    choices = [(find(one), None) for one in techniques]
    return rewritten(Source(path.read_text(), str(path)), choices, unsafe=True, doubtful=True).text


class Trained:
    def __init__(self, name: str, *techniques: Any) -> None:
        text = written(LOOPS[name], tuple(one for one in techniques if one in WRITTEN))
        script = types.ModuleType("strange_script")
        script.__file__ = str(LOOPS[name])
        joints = Joints()
        patches = [Patch(joints, "watch")]
        Replays(patches[0])
        patches[0].at(joints.root_found, lambda root: None)
        for one in techniques:
            if one not in WRITTEN:
                patches.append(Patch(joints, one[0]))
                find(one[0]).apply(patches[-1], one[1])
        recorded_pass._passes.clear()
        torch.manual_seed(0)
        try:
            exec(compile(text, script.__file__, "exec"), vars(script))
            log, model, optimizer = vars(script)[name]()
        finally:
            for patch in reversed(patches):
                patch.undo()
        grads = [p.grad for p in model.parameters()]
        self.values = [log, dict(model.state_dict()), grads, optimizer.state_dict(), torch.get_rng_state()]
        self.passes = next(iter(recorded_pass._passes.values()), None)
        self.all_passes = list(recorded_pass._passes.values())

    def __eq__(self, other: Any) -> bool:
        ones, others = tree_leaves(self.values), tree_leaves(other.values)
        return len(ones) == len(others) and all(map(is_same, ones, others))


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
    return one == other or (one != one and other != other)


@pytest.fixture(autouse=True)
def taped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And kernels that round alike wherever things lie in memory; so do those for sizes divisible by 8."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for part in (recorded_pass, captured_calls, captured_update):
        monkeypatch.setattr(part, "GraphRecorder", TapedRecorder)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    yield
    recorded_pass._passes.clear()
    torch.set_num_threads(threads)


@functools.cache
def plain(name: str) -> Trained:
    return Trained(name)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_whose_passes_are_recorded(name: str) -> None:
    ours = Trained(name, CAPTURED, *WRITTEN)
    assert plain(name) == ours
    if name in WITHOUT:
        assert (ours.passes.refused if ours.passes else "") == WITHOUT[name]
    else:
        assert ours.passes.replays > 8 and ours.passes.refused == ""


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_whose_model_is_recorded(name: str) -> None:
    assert plain(name) == Trained(name, CAPTURED, ("captured-model", {}), "sync-free-loop")


@pytest.mark.parametrize(
    "name",
    [
        "a_teacher_that_cools",
        "smoothing_that_fades",
        "weights_of_tasks",
        "a_trainer",
        "layers_frozen_for_a_while",
        "weights_in_a_list",
        "rounds_that_become_more",
        "exits_that_are_opened",
        "a_row_that_grows",
    ],
)
def test_without_a_look_at_what_changes_they_would_differ(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain(name)
    monkeypatch.setattr(Grounds, "hold", lambda self, function: True)
    assert expected != Trained(name, *WRITTEN)


@pytest.mark.parametrize(
    ("name", "replays"),
    [
        ("a_maker_and_its_judge", [20, 20]),
        ("a_judge_and_then_its_maker", [20, 20, 20]),
        ("judges_of_two_makers", [20, 20, 20]),
        ("a_maker_now_and_then", [60, 10]),
        ("four_passes_to_an_update", [40]),
        ("a_judge_that_is_frozen_for_its_maker", [20, 20]),
        ("a_head_that_works_in_place", [20]),
        ("parts_of_a_batch", [100]),
        ("several_updates_a_batch", [40]),
    ],
)
def test_each_pass_of_a_step_is_recorded(name: str, replays: list[int]) -> None:
    ours = Trained(name, CAPTURED, *WRITTEN)
    found = [one.replays for one in ours.all_passes]
    assert len(found) == len(replays) and all(map(operator.ge, found, replays)), (
        found,
        [one.refused for one in ours.all_passes],
    )
