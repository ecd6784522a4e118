"""The outside scaler against torch's own in a written-out loop: the same losses, norms and weights, to the bit."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from hotlap.parts.loss_scaler import LossScaler

SCALE, STEPS, ACCUMULATED, CLIP = 2.0**16, 12, 2, 0.3
OVERFLOWS = {5, 6, 14}  # micro-batches whose gradients come out infinite


class Overflow(torch.autograd.Function):
    """What fp16 does to a gradient that is too large."""

    @staticmethod
    def forward(ctx, x, overflows):
        ctx.overflows = overflows
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad * float("inf") if ctx.overflows else grad), None


class Setup:
    def __init__(self, kind=torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.optimizers = [kind(self.body.parameters(), lr=0.05), torch.optim.SGD(self.head.parameters(), 0.1, 0.9)]
        self.batches = torch.randn(STEPS * ACCUMULATED, 6, 4)
        self.losses: list[float] = []
        self.norms: list[float] = []

    def loss(self, index: int) -> torch.Tensor:
        out = Overflow.apply(self.head(self.body(self.batches[index]).tanh()), index in OVERFLOWS)
        return out.square().mean() / ACCUMULATED

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [*self.body.parameters(), *self.head.parameters()]

    def result(self):
        return self.losses, self.norms, [p.tolist() for p in self.parameters]


def by_hand() -> Setup:
    setup, scaler = Setup(), torch.amp.GradScaler("cpu", init_scale=SCALE)
    for step in range(STEPS):
        for part in range(ACCUMULATED):
            loss = setup.loss(step * ACCUMULATED + part)
            scaler.scale(loss).backward()
            setup.losses.append(loss.item())
        for optimizer in setup.optimizers:
            scaler.unscale_(optimizer)
        setup.norms.append(float(nn.utils.clip_grad_norm_(setup.parameters, CLIP)))
        for optimizer in setup.optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in setup.optimizers:
            optimizer.zero_grad()
    return setup


def from_outside(scaler: LossScaler, setup: Setup | None = None) -> Setup:
    """The loop of somebody who has never heard of scaling; only the joints know."""
    setup = setup or Setup()
    for optimizer in setup.optimizers:
        scaler.own(optimizer)
        optimizer.register_step_pre_hook(lambda o, *_: scaler.before_step(o))
        optimizer.register_step_post_hook(lambda o, *_: scaler.after_step(o))
    for step in range(STEPS):
        for part in range(ACCUMULATED):
            loss = setup.loss(step * ACCUMULATED + part)
            scaler.backward(torch.autograd.backward, loss)
            setup.losses.append(loss.item())
        setup.norms.append(float(nn.utils.clip_grad_norm_(setup.parameters, CLIP)))
        for optimizer in setup.optimizers:
            optimizer.step()
        for optimizer in setup.optimizers:
            optimizer.zero_grad()
    return setup


def test_the_same_training_as_torchs_own_scaler() -> None:
    scaler = LossScaler(SCALE)
    assert repr(from_outside(scaler).result()) == repr(by_hand().result())  # repr: a NaN equals itself
    overflowing_steps = len({index // ACCUMULATED for index in OVERFLOWS})
    assert scaler.skipped_steps == overflowing_steps * len(by_hand().optimizers)
    assert scaler.scale == SCALE / 2**overflowing_steps


def test_one_optimizer_overflows_and_the_other_goes_on() -> None:
    scaler, good, bad = LossScaler(SCALE), nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = [torch.optim.SGD([p], lr=0.5) for p in (good, bad)]
    for optimizer in optimizers:
        scaler.own(optimizer)
    scaler.backward(torch.autograd.backward, (good + Overflow.apply(bad, True)).sum())
    for optimizer in optimizers:
        scaler.before_step(optimizer), optimizer.step(), scaler.after_step(optimizer)
    assert (good.item(), bad.item(), scaler.skipped_steps) == (0.5, 1.0, 1)


class Late(LossScaler):
    """Planted: the loop sees scaled gradients."""

    def _unscale(self, grads):
        pass


class Blind(LossScaler):
    """Planted: an overflow is not noticed."""

    def before_step(self, optimizer):
        pass


class Forgetful(LossScaler):
    """Planted: what was accumulated before is lost."""

    def backward(self, original, tensors, *args, **kwargs):
        for p in self._parameters():
            p.grad = None
        return super().backward(original, tensors, *args, **kwargs)


@pytest.mark.parametrize("planted", [Late, Blind, Forgetful])
def test_a_planted_fault_shows(planted) -> None:
    assert repr(from_outside(planted(SCALE)).result()) != repr(by_hand().result())


def test_the_loop_sees_only_unscaled_gradients() -> None:
    scaler, weight = LossScaler(SCALE), nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1)  # kept: the scaler holds it weakly
    scaler.own(optimizer)
    for expected in (3.0, 6.0):
        scaler.backward(torch.autograd.backward, (weight * 3).sum())
        assert weight.grad.item() == expected
    scaler.backward(torch.autograd.backward, weight * 3, torch.tensor([10.0]))
    assert weight.grad.item() == 36.0
    kept = weight.grad
    scaler.backward(torch.autograd.backward, [(weight * 3).sum(), (weight * 4).sum()])
    assert weight.grad is kept and kept.item() == 43.0


def test_a_small_gradient_survives_half_precision() -> None:
    """Without the scale it vanishes: the test of the purpose itself."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def loss() -> torch.Tensor:
        return (weight.half() * 1.0).float().sum() * 1e-9

    loss().backward()
    assert weight.grad.item() == 0.0
    optimizer.zero_grad()
    scaler = LossScaler(SCALE)
    scaler.own(optimizer)
    scaler.backward(torch.autograd.backward, loss())
    assert weight.grad.item() == pytest.approx(1e-9, rel=1e-2)


def test_a_skipped_step_leaves_everything_as_it_was() -> None:
    scaler, weight = LossScaler(SCALE), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    scaler.own(optimizer)
    scaler.backward(torch.autograd.backward, (weight * torch.tensor([1.0, float("inf"), 1.0])).sum())
    scaler.before_step(optimizer)
    assert weight.grad is None
    optimizer.step()
    scaler.after_step(optimizer)
    assert weight.tolist() == [1, 1, 1] and not optimizer.state
    assert weight.grad.tolist() == [1, float("inf"), 1], "the script finds its gradient again"
    assert scaler.skipped_steps == 1


def test_the_scale_grows_when_all_is_well() -> None:
    scaler, weight = LossScaler(8.0, growth_interval=3), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    scaler.own(optimizer)
    scales = []
    for _ in range(8):
        scaler.backward(torch.autograd.backward, weight.sum())
        scales.append(scaler.scale)
        scaler.before_step(optimizer), optimizer.step(), scaler.after_step(optimizer)
    assert scales == [8, 8, 8, 16, 16, 16, 32, 32]


def test_an_error_in_backward_loses_nothing() -> None:
    scaler, weight = LossScaler(SCALE), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)  # kept: the scaler holds it weakly
    scaler.own(optimizer)
    scaler.backward(torch.autograd.backward, (weight * 3).sum())
    spent = (weight * weight).sum()
    torch.autograd.grad(spent, weight)
    with pytest.raises(RuntimeError, match="second time"):
        scaler.backward(torch.autograd.backward, spent)
    assert weight.grad.item() == 3.0


def test_what_no_optimizer_owns_is_left_alone() -> None:
    scaler, weight = LossScaler(SCALE), nn.Parameter(torch.ones(1))
    scaler.backward(torch.autograd.backward, (weight * 3).sum())
    assert weight.grad.item() == 3.0


@pytest.mark.parametrize("how", ["keyword", "position"])
def test_a_gradient_to_be_derived_again_is_left_alone(how: str) -> None:
    scaler, weight = LossScaler(SCALE), nn.Parameter(torch.tensor([2.0]))
    optimizer = torch.optim.SGD([weight], lr=0.1)  # kept: the scaler holds it weakly
    scaler.own(optimizer)
    given = {"create_graph": True} if how == "keyword" else {}
    scaler.backward(torch.autograd.backward, (weight**3).sum(), None, None, *([True] if not given else []), **given)
    assert torch.autograd.grad(weight.grad.sum(), weight)[0].item() == 12.0


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_on_a_weight_sees_no_scale(register: str) -> None:
    """One that clips would clip everything."""
    scaler, weight, seen = LossScaler(SCALE), nn.Parameter(torch.ones(1)), []
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.own(optimizer)
    getattr(weight, register)(lambda one: seen.append((one if weight.grad is None else weight.grad).item()))
    scaler.backward(torch.autograd.backward, (weight * 3).sum())
    assert seen == [3.0] and weight.grad.item() == 3.0


def test_gradients_of_what_no_optimizer_owns_are_unscaled_too() -> None:
    """Of an image that is to be changed, and of weights that the script updates by hand."""
    scaler, layer = LossScaler(SCALE), nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler.own(optimizer)
    by_hand, image = nn.Parameter(torch.ones(3)), torch.ones(4, 3, requires_grad=True)
    shift = torch.zeros(3, requires_grad=True)
    asked = (image * by_hand).exp()  # no leaf, and yet it can be asked for

    def loss() -> torch.Tensor:
        return layer((image + shift) * by_hand).square().sum()

    leaves = (image, by_hand, shift, *layer.parameters())
    expected = torch.autograd.grad(loss(), leaves)
    scaler.backward(torch.autograd.backward, loss())
    for one, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(one.grad, gradient)
    scaler.backward(torch.autograd.backward, layer(asked).sum(), None, inputs=[asked])
    torch.testing.assert_close(asked.grad, layer.weight.detach().sum(0).expand(4, 3))


def test_sparse_and_complex_gradients() -> None:
    scaler, table, turn = LossScaler(SCALE), nn.Embedding(5, 2, sparse=True), nn.Parameter(torch.ones(2) * (1 + 2j))
    optimizer = torch.optim.SGD([*table.parameters(), turn], lr=0.1)
    scaler.own(optimizer)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        loss = factor * (table(torch.tensor([1, 1, 3])) * turn).abs().sum()
        expected = torch.autograd.grad(loss, (table.weight, turn), retain_graph=True)
        scaler.backward(torch.autograd.backward, loss)
        if factor == 1.0:
            torch.testing.assert_close(table.weight.grad.to_dense(), expected[0].to_dense())
            torch.testing.assert_close(turn.grad, expected[1])
        scaler.before_step(optimizer), optimizer.step(), scaler.after_step(optimizer)
    assert scaler.skipped_steps == 1


def test_what_a_checkpoint_goes_back_through_is_scaled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.checkpoint import checkpoint

    scaler, layer = LossScaler(2.0**100), nn.Linear(2, 2)  # in float32, twice is too much
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    scaler.own(optimizer)
    monkeypatch.setattr(torch.autograd, "backward", functools.partial(scaler.backward, torch.autograd.backward))
    checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=True).sum().backward()
    assert layer.bias.grad.tolist() == [1.0, 1.0]
