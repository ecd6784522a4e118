"""Passes whose inputs were made with gradients on: what they owe goes back through what made them, and what the script
hung on those sees it."""

from __future__ import annotations

import pytest
import torch
from taped_recorder import TapedRecorder
from torch import nn
from torch.nn import functional as F

from hotlap.parts import pass_recording, recorded_pass
from hotlap.parts.recorded_pass import RecordedPass

STEPS = 30


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def taped() -> RecordedPass:
    return RecordedPass(TapedRecorder())


def batch(number: int, size: int = 6) -> torch.Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(number))


def trained(own, shares=False, size=lambda number: 6, hang=lambda made, seen: None, leaf=False) -> list[torch.Tensor]:
    """A maker outside of the pass, a judge in it; every loss and gradient, and what was hung on what is made."""
    torch.manual_seed(0)
    maker, judge = network(4, 4), network(4, 1)
    optimizer = torch.optim.SGD([*maker.parameters(), *judge.parameters()], lr=0.1, momentum=0.9)
    run = own.run if own is not None else lambda function, inputs: function(*inputs)
    seen: list[torch.Tensor] = []
    for number in range(STEPS):
        x = batch(number, size(number))
        optimizer.zero_grad()
        made = maker(x) if not leaf else x.requires_grad_()
        hang(made, seen)

        def one_pass(made, x):
            told = judge(made) * made.mean() + (maker(x).mean() if shares else 0)
            loss = F.softplus(told).mean() + made.square().mean()
            loss.backward()
            return loss

        seen.append(run(one_pass, (made, x.detach())).detach().clone())
        seen += [p.grad.clone() for p in [*maker.parameters(), *judge.parameters()] if p.grad is not None]
        seen += [made.grad.clone()] if made.is_leaf or made.retains_grad else []
        optimizer.step()
    return [*seen, *maker.parameters(), *judge.parameters()]


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def test_gradients_reach_what_made_the_input() -> None:
    own = taped()
    assert same(trained(None), trained(own))
    assert own.refused == "" and own.replays > STEPS - 10


def test_replays_hang_on_nothing_of_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pasts, play = [], pass_recording.Recording.play

    def played(self, inputs):
        play(self, inputs)
        pasts.extend(place.grad_fn for place in self.inputs)

    monkeypatch.setattr(pass_recording.Recording, "play", played)
    trained(taped())
    assert len(pasts) > STEPS and not any(pasts)


def test_weights_on_both_sides() -> None:
    own = taped()
    for one, other in zip(trained(None, shares=True), trained(own, shares=True), strict=True):
        torch.testing.assert_close(one, other)  # two gradients are added up in another order
    assert own.refused == "" and own.replays > STEPS - 10


def test_a_smaller_batch() -> None:
    own = taped()
    assert same(trained(None, size=lambda n: 6 - n % 2), trained(own, size=lambda n: 6 - n % 2))
    assert own.replays > STEPS - 16, own.refused


def keeping(made: torch.Tensor, seen: list[torch.Tensor]) -> None:
    made.retain_grad()


def hooking(made: torch.Tensor, seen: list[torch.Tensor]) -> None:
    made.register_hook(lambda grad: seen.append(grad.clone()))


def doubling(made: torch.Tensor, seen: list[torch.Tensor]) -> None:
    made.register_hook(lambda grad: grad * 2)


@pytest.mark.parametrize("hang", [keeping, hooking, doubling])
def test_what_is_hung_on_the_input_sees_its_gradient(hang) -> None:
    own = taped()
    assert same(trained(None, hang=hang), trained(own, hang=hang))
    assert own.replays > STEPS - 10, own.refused


def test_a_gradient_that_is_kept_stays_what_it_was() -> None:
    kept: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []

    def keep(grad: torch.Tensor) -> None:
        kept.append(grad)
        copies.append(grad.clone())

    own = taped()
    trained(own, hang=lambda made, seen: made.register_hook(keep))
    assert own.replays and same(kept, copies)


def test_an_input_that_keeps_its_gradient_itself_is_left_alone() -> None:
    own = taped()
    assert same(trained(None, leaf=True), trained(own, leaf=True))
    assert own.replays == 0 and "get gradients" in own._why + own.refused


def test_nobody_who_watches_takes_it_for_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    plain = torch.autograd.backward

    def backward(*args, **kwargs):
        calls.append(1)
        return plain(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", backward)
    own = taped()
    trained(own)
    assert len(calls) == STEPS - own.replays + own._recordings


@pytest.mark.parametrize("fault", ["not handed back", "another", "twice"])
def test_it_would_show(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if fault == "not handed back":
        monkeypatch.setattr(pass_recording.Recording, "hand_back", lambda self, inputs: None)
    elif fault == "twice":
        plain = recorded_pass.go_back

        def twice(given, stand_ins):
            for one, own in zip(given, stand_ins, strict=True):
                if own is not one and own.grad is not None:
                    own.grad *= 2
            plain(given, stand_ins)

        monkeypatch.setattr(recorded_pass, "go_back", twice)
    else:
        play = pass_recording.Recording.play

        def spoiled(self, inputs):
            play(self, inputs)
            for grad in filter(lambda one: one is not None, self.owed):
                grad.mul_(1.5)

        monkeypatch.setattr(pass_recording.Recording, "play", spoiled)
    own = taped()
    found = trained(own)
    assert not same(trained(None), found) or "not the same" in own.refused
