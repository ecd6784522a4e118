"""What a replay must show before it is believed, where gradients overflow and where numbers are infinite on purpose."""

from __future__ import annotations

import pytest
import torch
from played_recorder import PlayedPasses
from torch import nn
from torch.nn import functional as F

from hotlap.parts import recorded_pass
from hotlap.parts.recorded_pass import RecordedPass

STEPS = 32


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 4, generator=generator), torch.randint(0, 2, (6,), generator=generator)


class Masked(nn.Module):
    """A mask of minus infinities, as attention has one."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, float("-inf")]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x) + self.mask


def network(kind=Masked) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def trained(model: nn.Module, own: RecordedPass | None, overflows, steps: int = STEPS) -> nn.Module:
    """As a script with a GradScaler of its own: steps whose gradients overflow are left out."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=1000)
    for number in range(steps):
        x, y = batch(number)
        x = x * float("inf") if overflows(number) else x

        def one_pass(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            return loss

        own.run(one_pass, (x, y)) if own is not None else one_pass(x, y)
        scaler.step(optimizer)
        scaler.update()
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


@pytest.mark.parametrize("first", [0, 6, 12])
def test_overflowing_gradients_neither_prove_nor_end_anything(first: int) -> None:
    plain, model = network(), network()
    recorder = PlayedPasses(model)
    own = RecordedPass(recorder)

    def overflows(number: int) -> bool:
        return number < first

    trained(plain, None, overflows), trained(model, own, overflows)
    assert same(plain, model) and own.refused == "" and recorder.recorded == 1
    assert own.replays == STEPS - max(first, recorded_pass._UNRECORDED) - recorded_pass._PROVEN


def test_a_replay_that_overflows_alone_ends_it() -> None:
    plain, model = network(), network()
    recorder = PlayedPasses(model)
    own = RecordedPass(recorder)

    def spoil() -> None:
        next(iter(own._graphs.values())).grads[0].fill_(float("inf"))

    recorder.spoil = spoil
    trained(plain, None, lambda number: False), trained(model, own, lambda number: False)
    assert same(plain, model) and own.replays == 0 and "not the same" in own.refused


def test_a_fault_is_seen_beside_gradients_that_overflow() -> None:
    class Normed(Masked):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm(x.clamp(-2.0, 2.0))
            return super().forward(x)

    plain, model = network(Normed), network(Normed)
    recorder = PlayedPasses(model)
    own = RecordedPass(recorder)
    recorder.spoil = lambda: model.norm.running_mean.zero_()
    trained(plain, None, lambda number: True), trained(model, own, lambda number: True)
    assert same(plain, model) and own.replays == 0 and "not the same" in own.refused


def test_a_training_that_only_overflows_is_given_up() -> None:
    plain, model = network(), network()
    own, steps = RecordedPass(PlayedPasses(model)), recorded_pass._PATIENCE + 8
    trained(plain, None, lambda number: True, steps), trained(model, own, lambda number: True, steps)
    assert same(plain, model) and own.replays == 0 and "not finite" in own.refused
