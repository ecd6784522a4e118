"""Passes of a model that this package compiles: they are compiled first, then looked at as they are written, and then
recorded with what was compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotlap.catalogue import find
from hotlap.measure.candidates import clash
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.replays import Replays
from hotlap.parts import recorded_pass
from hotlap.parts.compilable import graphs_made
from hotlap.technique import Choice

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parts"))
from played_recorder import PlayedPasses

STEPS = 16


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.last(F.gelu(self.norm(self.first(x))))
        return logits, F.cross_entropy(logits, y)


class Watching(PlayedPasses):
    """Notes what was compiled while it recorded, which a device would not allow."""

    compiled = 0

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        before = graphs_made()
        try:
            return super().record(update, device)
        finally:
            self.compiled += graphs_made() - before


def trained(is_recorded: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[list[torch.Tensor], Watching]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, joints = Network(), Joints()
    recorder = Watching(model)
    monkeypatch.setattr(recorded_pass, "GraphRecorder", lambda: recorder)
    recorded_pass._passes.clear()
    patches = [Patch(joints, "watch"), Patch(joints, "compiled-model")]
    Replays(patches[0])
    patches[0].at(joints.root_found, lambda root: None)
    find("compiled-model").apply(patches[1], {"mode": "default", "part": "model"})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    run = recorded_pass.recorded if is_recorded else lambda function, *inputs: function(*inputs)
    losses = []
    try:
        for number in range(STEPS):
            generator = torch.Generator().manual_seed(number)
            x, y = torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)

            def one_pass(x, y):
                _, loss = model(x, y)
                model.zero_grad()
                loss.backward()
                return loss

            losses.append(run(one_pass, x, y).detach())
            optimizer.step()
        assert not joints.withdrawn
    finally:
        for patch in reversed(patches):
            patch.undo()
    return losses, recorder


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    recorded_pass._passes.clear()
    torch._dynamo.reset()


def test_what_is_compiled_is_recorded_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = trained(False, monkeypatch)
    made = graphs_made()
    losses, recorder = trained(True, monkeypatch)
    (own,) = recorded_pass._passes.values()
    assert own.refused == "" and own.replays > STEPS / 4, own.refused
    assert graphs_made() > made, "the recorded pass was not compiled at all"
    assert recorder.recorded == 1 and recorder.compiled == 0
    torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-6)


def test_a_pass_that_is_still_being_compiled_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def one_pass(x):
        model.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    model, made = nn.Linear(4, 2), iter(range(1000))
    recorder = PlayedPasses(model)
    own = recorded_pass.RecordedPass(recorder)
    monkeypatch.setattr(recorded_pass, "graphs_made", lambda: next(made))
    for _ in range(9):
        own.run(one_pass, (torch.randn(2, 4),))
    assert recorder.recorded == 0 and own.refused == ""
    monkeypatch.setattr(recorded_pass, "graphs_made", lambda: 1000)
    for _ in range(9):
        own.run(one_pass, (torch.randn(2, 4),))
    assert recorder.recorded == 1 and own.replays > 0


def test_only_graphs_of_the_compilers_own_stand_in_the_way() -> None:
    both = Choice(find("captured-pass"), {})
    modes = ("default", "reduce-overhead", "max-autotune")
    compiled = [Choice(find("compiled-model"), {"mode": mode, "part": "model"}) for mode in modes]
    assert [clash(one, [both]) is None for one in compiled] == [True, False, False]
    assert clash(Choice(find("captured-model"), {}), [compiled[0]]) is not None


def test_what_works_after_backward_cannot_be_replayed() -> None:
    precision = [Choice(find("mixed-precision"), {"dtype": dtype}) for dtype in ("bfloat16", "float16")]
    others = [*precision, Choice(find("no-bias-before-norm"), {}), Choice(find("fp8-linear"), {})]
    assert [clash(Choice(find("captured-pass"), {}), [one]) is None for one in others] == [True, False, False, True]
    for one in others:  # as a pass that is recorded finds it
        patch = Patch(Joints())
        one.technique.apply(patch, one.setting)
        joints = patch.joints  # whoever looks for roots leaves after a few updates
        own = [each for _, each in joints.loss_known._techniques if getattr(each, "__self__", None) is not joints.roots]
        assert bool(own) is ("works after backward" in one.traits)
        patch.undo()
