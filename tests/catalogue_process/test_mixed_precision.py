"""Products in 16 bits inside the root; what the script gets back, keeps and saves is float32 as before."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.run import OptimizerFacts, RootFacts, Run
from hotlap.technique import CannotHelp

Pair = namedtuple("Pair", "out extra")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)
        self.inside: list[torch.dtype] = []

    def forward(self, x):
        hidden = self.body(x)
        self.inside.append(hidden.dtype)
        return self.head(hidden.relu())


def network(kind=Net) -> Net:
    torch.manual_seed(0)
    return kind()


def train(model: nn.Module, steps: int = 5, loss_of=lambda out: out.square().mean(), clip: float | None = None):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(torch.randn(16, 4, generator=generator)))
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip or 1e9)))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_inside_and_float32_outside(apply, dtype: str) -> None:
    expected = train(network(), clip=0.1)
    apply("mixed-precision", {"dtype": dtype})
    model, outside = network(), []

    def loss_of(out):
        outside.append(out.dtype)
        return out.square().mean()

    losses, norms = train(model, loss_of=loss_of, clip=0.1)
    assert model.inside == [torch.float32] + [getattr(torch, dtype)] * 4  # the first call found the root
    assert set(outside) == {torch.float32}
    assert losses == pytest.approx(expected[0], rel=0.03) and losses != expected[0]
    assert norms == pytest.approx(expected[1], rel=0.05), "the script must see unscaled gradients"
    state = model.state_dict()
    assert list(state) == list(network().state_dict())
    assert {value.dtype for value in state.values()} == {torch.float32}
    assert {p.grad.dtype for p in model.parameters()} == {torch.float32}


def test_a_loss_that_refuses_sixteen_bits_works_outside(apply) -> None:
    criterion, target = nn.BCELoss(), torch.ones(16, 1)
    apply("mixed-precision")
    model = network(lambda: nn.Sequential(Net(), nn.Sigmoid()))
    losses, _ = train(model, loss_of=lambda out: criterion(out, target))
    assert losses[-1] < losses[0]
    assert torch.bfloat16 in model[0].inside


def test_outputs_of_every_form_are_widened(apply) -> None:
    class Many(Net):
        def forward(self, x):
            out = super().forward(x)
            return {"pair": Pair(out, [out, (out.long(), "text", None)])}

    apply("mixed-precision")
    model, x = network(Many), torch.randn(2, 4)
    for _ in range(2):
        answer = model(x)
    pair = answer["pair"]
    assert type(pair) is Pair and pair.out.dtype == pair.extra[0].dtype == torch.float32
    assert pair.extra[1][0].dtype == torch.int64 and pair.extra[1][1:] == ("text", None)


def test_an_autocast_of_the_scripts_own_is_left_alone(apply) -> None:
    apply("mixed-precision", {"dtype": "float16"})
    model, x = network(), torch.randn(2, 4)
    model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(x)
    assert out.dtype == torch.bfloat16 and model.inside[-1] == torch.bfloat16


def test_evaluation_is_in_sixteen_bits_too(apply) -> None:
    apply("mixed-precision")
    model, x = network(), torch.randn(2, 4)
    model(x)
    model.eval()
    with torch.no_grad():
        assert model(x).dtype == torch.float32
    assert model.inside[-1] == torch.bfloat16


def test_undone(apply) -> None:
    patch = apply("mixed-precision", {"dtype": "float16"})
    model = network()
    train(model)
    backward = torch.autograd.backward
    patch.undo()
    model.inside.clear()
    train(model)
    assert set(model.inside) == {torch.float32}
    assert torch.autograd.backward is not backward
    assert "_compiled_call_impl" not in vars(model)


class Tiny(nn.Module):
    """Its gradients are too small for fp16, unless the loss is scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.layer(x) * 1e-7


@pytest.mark.parametrize("is_scaled", [True, False])
def test_fp16_keeps_small_gradients(apply, is_scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the scaler the gradient vanishes: the planted fault."""
    from hotlap.parts.loss_scaler import LossScaler

    if not is_scaled:
        monkeypatch.setattr(LossScaler, "own", lambda self, optimizer: None)
    apply("mixed-precision", {"dtype": "float16"})
    model = network(Tiny)
    _, norms = train(model, loss_of=lambda out: out.mean() * 1e-2)
    assert norms[0] > 0
    assert (norms[-1] == pytest.approx(norms[0], rel=0.8)) is is_scaled


def test_an_overflowing_step_is_skipped(apply) -> None:
    apply("mixed-precision", {"dtype": "float16"})
    model = network()
    train(model)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    (model(torch.ones(2, 4)).sum() * 1e30).backward()
    assert not all(p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    optimizer.zero_grad()
    model(torch.ones(2, 4)).mean().mul(0.1).backward()
    optimizer.step()
    assert not torch.equal(model.head.bias, before[-1])


@pytest.mark.parametrize(("instructions", "helps"), [((), True), (("avx2", "bf16"), True), (("avx2", "avx512"), False)])
def test_a_processor_without_the_units_is_spared_a_trial(instructions: tuple[str, ...], helps: bool) -> None:
    root = RootFacts("Net", 9, {}, False, False, (2,), ("float32",), None, False, None)
    found = find("mixed-precision").settings(Run("2.13", "cpu", roots=[root], instructions=instructions))
    assert isinstance(found, CannotHelp) is not helps


@pytest.mark.parametrize(
    ("device", "capability", "closure", "tried"),
    [
        ("cpu", (), False, ["bfloat16"]),
        ("cuda", (9, 0), True, ["bfloat16"]),
        ("cuda", (7, 5), False, ["float16"]),
        ("cuda", (7, 5), True, []),
    ],
)
def test_the_type_is_the_chips_own(device: str, capability: tuple, closure: bool, tried: list[str]) -> None:
    root = RootFacts("Net", 9, {}, False, False, (2,), ("float32",), None, False, None)
    optimizer = OptimizerFacts("SGD", False, None, False, False, 2, 9, (device,), ("float32",), False, closure=closure)
    run = Run("2.11", device, roots=[root], optimizers=[optimizer], device_capability=capability)
    found = find("mixed-precision").settings(run)
    if isinstance(found, CannotHelp):
        assert not tried and "closure" in found.reason
    else:
        assert [one.setting["dtype"] for one in found] == tried


class Remembering(nn.Module):
    """Its memory is float32, and nothing else can be put there by indices."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 8))
        self.head, self.when, self.is_late = nn.Linear(8, 1), when, False
        self.register_buffer("memory", torch.zeros(16, 8))

    def forward(self, x):
        hidden = self.body(x)
        if {"always": True, "evaluation": not self.training, "late": self.is_late}[self.when]:
            self.memory[torch.arange(len(x))] = hidden.detach()
        return self.head(hidden + self.memory[: len(x)])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("when", ["always", "evaluation"])
def test_a_network_that_does_not_bear_it_goes_on_as_it_was(apply, when: str, dtype: str) -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model, seen = Remembering(when), []
        for _ in range(3):
            losses, _ = train(model.train(), steps=2)
            with torch.no_grad():
                seen += [torch.tensor(losses), model.eval()(torch.ones(3, 4))]
        return [*seen, *model.state_dict().values(), torch.rand(1)]

    expected = run()
    patch = apply("mixed-precision", {"dtype": dtype})
    found = run()
    (reason,) = patch.joints.withdrawn
    assert "does not bear it: Index put" in reason and patch.is_withdrawn
    exactly = 0.0 if when == "always" else 0.05  # the first steps were in 16 bits
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=exactly, atol=exactly)


def test_an_operation_that_comes_later_and_does_not_bear_it(apply) -> None:
    patch = apply("mixed-precision")
    model = Remembering("late")
    train(model)
    model.is_late = True
    train(model)
    assert len(patch.joints.withdrawn) == 1


def test_an_error_of_the_scripts_own_comes_as_it_was(apply) -> None:
    patch = apply("mixed-precision")
    model = network()
    train(model)
    for is_new in (False, True):
        model.train(not is_new)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
            model(torch.randn(2, 5))
        assert caught.value.__context__ is None
    train(model.train())
    assert not patch.joints.withdrawn and model.inside[-1] is torch.bfloat16


class Enough(RuntimeError):
    """By which a script leaves a network half way."""


def test_a_way_out_of_the_scripts_own_is_taken_once(apply) -> None:
    patch, calls = apply("mixed-precision"), []
    model = network()
    train(model)

    def leave(*given):
        calls.append(1)
        raise Enough

    model.head.register_forward_pre_hook(leave)
    with pytest.raises(Enough):
        model(torch.randn(2, 4))
    assert len(calls) == 1 and not patch.joints.withdrawn
