"""Clipping is replayed where gradients lie where they lay, and is torch's own otherwise; nobody can tell. A tape stands
for the device, which like a graph knows numbers and addresses only."""

from __future__ import annotations

import warnings

import pytest
import torch
from taped_recorder import TapedRecorder
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts import captured_clip
from hotlap.parts.captured_clip import CapturedClip

PLAIN = torch.nn.utils.clip_grad_norm_
STEPS = 12


def weights() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(shape)) for shape in ((8, 4), (4,), (2, 3, 2))]


def fill(parameters: list[nn.Parameter], number: int, factor: float = 1.0, in_place: bool = True) -> None:
    generator = torch.Generator().manual_seed(number)
    for p in (p for p in parameters if p.requires_grad):
        grad = factor * torch.randn(p.shape, generator=generator)
        if in_place and p.grad is not None:
            p.grad.copy_(grad)
        else:
            p.grad = grad


def clipped(clip, steps=STEPS, change=lambda number, parameters: None, **how) -> list[torch.Tensor]:
    """Norms and gradients of all steps; every third gradient is too short to be clipped."""
    parameters, found = weights(), []
    for number in range(steps):
        change(number, parameters)
        fill(parameters, number, 0.01 if number % 3 == 0 else 10.0)
        found.append(clip((p for p in parameters), **{"max_norm": 1.0, **how}))
        found += [p.grad.clone() for p in parameters if p.grad is not None]
    return found


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


@pytest.mark.parametrize("how", [{}, {"norm_type": 1.0}, {"norm_type": float("inf")}, {"foreach": True}])
def test_the_same_to_the_bit(how) -> None:
    own = CapturedClip(recorder=TapedRecorder())
    assert same(clipped(own, **how), clipped(PLAIN, **how))
    assert own.replays == STEPS - captured_clip._STEADY - 1 and own.refused == ""


def test_gradients_that_move_and_some_that_are_gone() -> None:
    kept = []

    def change(number, parameters) -> None:
        if number == 6:
            kept.append(parameters[0].grad)
            parameters[0].grad = torch.empty_like(parameters[0])
        parameters[1].requires_grad_(number < 12)
        if number >= 12:
            parameters[1].grad = None

    own = CapturedClip(recorder=TapedRecorder())
    assert same(clipped(own, 20, change), clipped(PLAIN, 20, change)) and own.replays > 6


def test_another_bound_is_another_recording() -> None:
    own, recorded = CapturedClip(recorder=TapedRecorder()), []
    for clip in (own, PLAIN):
        parameters = weights()
        for number in range(16):
            fill(parameters, number, 10.0)
            clip(parameters, 1.0 if number % 8 < 6 else 0.5)
        recorded.append([p.grad for p in parameters])
    assert same(*recorded) and own.replays > 0


def test_gradients_in_new_places_are_clipped_as_ever_and_given_up_in_the_end() -> None:
    own, kept = CapturedClip(recorder=TapedRecorder()), []
    parameters, others = weights(), weights()
    for number in range(captured_clip._PATIENCE):
        for mine, clip in ((parameters, own), (others, PLAIN)):
            fill(mine, number, 10.0, in_place=False)
            clip(mine, 1.0)
            kept += [p.grad for p in mine]
    assert same([p.grad for p in parameters], [p.grad for p in others])
    assert own.replays == 0 and "where they lay before" in own.refused


def test_a_replay_that_is_not_the_same_harms_nothing() -> None:
    class Wrong(TapedRecorder):
        def record(self, update, device):
            replay = super().record(update, device)

            def play() -> None:
                replay()
                for p in parameters:
                    p.grad.mul_(2.0)

            return play

    parameters, others = weights(), weights()
    own = CapturedClip(recorder=Wrong())
    for number in range(STEPS):
        for mine, clip in ((parameters, own), (others, PLAIN)):
            fill(mine, number, 10.0)
            clip(mine, 1.0)
        assert same([p.grad for p in parameters], [p.grad for p in others])
    assert own.replays == 0 and "not the same" in own.refused


def test_norms_that_are_no_numbers_tell_nothing() -> None:
    own, parameters, others = CapturedClip(recorder=TapedRecorder()), weights(), weights()
    for number in range(20):
        for mine, clip in ((parameters, own), (others, PLAIN)):
            fill(mine, number, float("inf") if number < 8 else 10.0)
            clip(mine, 1.0)
        pairs = zip(parameters, others, strict=True)
        assert all(torch.equal(a.grad.nan_to_num(), b.grad.nan_to_num()) for a, b in pairs)
    assert own.refused == "" and own.replays > 0


def test_what_only_torch_itself_can_do() -> None:
    own = CapturedClip(recorder=TapedRecorder())
    (parameter,) = weights()[:1]
    for _ in range(8):
        fill([parameter], 0, float("nan"))
        with pytest.raises(RuntimeError, match="non-finite"):
            own([parameter], 1.0, error_if_nonfinite=True)
        fill([parameter], 0)
        own(parameter, 1.0)
        own([parameter], torch.tensor(1.0))
        own([nn.Parameter(torch.ones(2))], 1.0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        own((one for one in ()), 1.0)
    assert own.replays == 0 and len(seen) == 1 and "generator" in str(seen[0].message)
    with pytest.raises(TypeError):
        own([parameter])


def test_a_bound_that_becomes_a_tensor_is_left_to_torch() -> None:
    own, parameters, others = CapturedClip(recorder=TapedRecorder()), weights(), weights()
    for number in range(STEPS):
        bound = 1.0 if number < 8 else torch.tensor(1.0)
        for mine, clip in ((parameters, own), (others, PLAIN)):
            fill(mine, number, 10.0)
            clip(mine, bound)
        assert same([p.grad for p in parameters], [p.grad for p in others])
    assert own.replays == 8 - captured_clip._STEADY - 1


def test_a_gradient_of_which_a_part_is_left_is_another() -> None:
    own, parameters, others = CapturedClip(recorder=TapedRecorder()), weights()[:1], weights()[:1]
    for number in range(STEPS):
        for mine, clip in ((parameters, own), (others, PLAIN)):
            fill(mine, number, 10.0)
            if number == 8:
                mine[0].data, mine[0].grad.data = mine[0].data[:4], mine[0].grad.data[:4]
            clip(mine, 1.0)
        assert same([p.grad for p in parameters], [p.grad for p in others])
    assert own.replays > 0


def test_gradients_are_clipped_once_where_memory_ends_amid_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(*args: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(captured_clip, "_apart", apart)
    own, parameters, others = CapturedClip(recorder=TapedRecorder()), weights(), weights()
    for number in range(STEPS):
        fill(parameters, number, 10.0)
        fill(others, number, 10.0)
        assert torch.equal(own(parameters, 1.0), PLAIN(others, 1.0))
        assert same([p.grad for p in parameters], [p.grad for p in others])
    assert "no memory" in own.refused


def test_complex_gradients_are_left_to_torch() -> None:
    own, parameter = CapturedClip(recorder=TapedRecorder()), nn.Parameter(torch.ones(4, dtype=torch.complex64))
    parameter.grad = torch.zeros_like(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(8):
            parameter.grad.fill_(10j)
            own([parameter], 1.0)
    assert own.replays == 0


def test_autograd_sees_that_gradients_were_changed() -> None:
    own, parameters = CapturedClip(recorder=TapedRecorder()), weights()
    for number in range(STEPS):
        fill(parameters, number)
        before = [p.grad._version for p in parameters]
        own(parameters, 1.0)
        assert all(p.grad._version > version for p, version in zip(parameters, before, strict=True))
    assert own.replays > 0


def test_gradients_that_move_again_and_again_are_not_recorded_for_ever() -> None:
    """Each place is good for one replay, and then gone."""
    recorder = TapedRecorder()
    own, kept, (parameter, *_) = CapturedClip(recorder=recorder), [], weights()
    for number in range(200):
        if number % (captured_clip._STEADY + 2) == 0:
            kept.append(torch.zeros_like(parameter))
            parameter.grad = kept[-1]
        fill([parameter], number)
        own([parameter], 1.0)
    assert recorder.recorded == captured_clip._TRIED and "too many places" in own.refused


def test_a_script_that_compiles_its_clipping_gets_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_clip, "GraphRecorder", TapedRecorder)
    patch = Patch(Joints(), "fused-optimizer")
    find("fused-optimizer").apply(patch, {"kind": "captured"})
    (parameter, *_) = weights()
    fill([parameter], 0, 10.0)

    @torch.compile(backend="eager", fullgraph=True)
    def clip() -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_([parameter], 1.0)

    try:
        assert [clip().item() > 1 for _ in range(2)] == [True, False]
    finally:
        patch.undo()
        torch._dynamo.reset()


def test_it_comes_with_the_recorded_update_and_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_clip, "GraphRecorder", TapedRecorder)
    patch = Patch(Joints(), "fused-optimizer")
    find("fused-optimizer").apply(patch, {"kind": "captured"})
    from torch.nn.utils import clip_grad_norm_

    assert clip_grad_norm_ is torch.nn.utils.clip_grad.clip_grad_norm_ is not PLAIN
    assert same(clipped(clip_grad_norm_), clipped(PLAIN))
    patch.undo()
    assert torch.nn.utils.clip_grad_norm_ is PLAIN is torch.nn.utils.clip_grad.clip_grad_norm_
    assert same(clipped(clip_grad_norm_), clipped(PLAIN)), "a script keeps the name it has imported"
