"""Updates compiled and recorded as one CUDA graph: the same training as the plain optimizer, in fewer kernels."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.facts import optimizer_facts
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.captured_update import CapturedUpdate
from hotlap.parts.compiled_form import CompiledForm

pytestmark = pytest.mark.gpu

STEPS = 50
KINDS = [
    (torch.optim.Adadelta, {"lr": 1.0}),
    (torch.optim.Adadelta, {"lr": 0.5, "weight_decay": 0.01, "maximize": True}),
    (torch.optim.RMSprop, {"lr": 0.01}),
    (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.9, "centered": True, "foreach": False}),
]
OTHERS = [torch.optim.NAdam, torch.optim.Adamax, torch.optim.ASGD, torch.optim.Rprop]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()


def fill(model: nn.Module, number: int) -> None:
    """The gradients of step `number`, where the last ones were."""
    generator = torch.Generator("cuda").manual_seed(number)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=generator, device="cuda")
        p.grad = grad if p.grad is None else p.grad.copy_(grad)


def train(model, optimizer, steps=STEPS, start=0, own=None, scheduler=None) -> None:
    for number in range(start, start + steps):
        fill(model, number)
        own.step(optimizer.step) if own else optimizer.step()
        if scheduler:
            scheduler.step()


def farthest(model: nn.Module, other: nn.Module) -> float:
    """The largest difference of two tensors, relative to their size."""
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def form_of(value):
    """Keys, types and settings all the way down."""
    if isinstance(value, dict):
        return {key: form_of(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [form_of(one) for one in value]
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.device, tuple(value.shape), vars(value)
    return type(value), value


def trained(kind, options, steps=STEPS):
    plain, model = network(), network()
    theirs, ours = kind(plain.parameters(), **options), kind(model.parameters(), **options)
    form = CompiledForm(ours)
    own = CapturedUpdate(ours, form=form)
    train(plain, theirs, steps, scheduler=torch.optim.lr_scheduler.ExponentialLR(theirs, 0.97))
    train(model, ours, steps, own=own, scheduler=torch.optim.lr_scheduler.ExponentialLR(ours, 0.97))
    return (plain, theirs), (model, ours, own, form)


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_it_trains_the_same_under_a_schedule(kind, options) -> None:
    (plain, theirs), (model, ours, own, form) = trained(kind, options)
    assert own.refused == "" and own.replays >= STEPS - 4 and form.graphs == 1
    assert farthest(model, plain) < 1e-5
    assert isinstance(ours.param_groups[0]["lr"], float) and not ours.param_groups[0]["capturable"]
    assert form_of(ours.state_dict()) == form_of(theirs.state_dict())
    torch.testing.assert_close(ours.state_dict()["state"], theirs.state_dict()["state"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", OTHERS)
def test_the_other_kinds_train_alike(kind) -> None:
    (plain, theirs), (model, ours, own, _) = trained(kind, {"lr": 0.01})
    assert own.refused == "" and own.replays >= STEPS - 4
    assert farthest(model, plain) < 1e-4
    assert form_of(ours.state_dict()) == form_of(theirs.state_dict())


@pytest.mark.parametrize(("kind", "options"), KINDS[::2])
def test_a_checkpoint_goes_both_ways_and_compiles_nothing(kind, options) -> None:
    (plain, theirs), (model, ours, own, form) = trained(kind, options, 12)
    resumed = copy.deepcopy(plain)
    again = kind(resumed.parameters(), **options)
    again.load_state_dict(copy.deepcopy(ours.state_dict()))
    train(plain, theirs, 8, 12), train(resumed, again, 8, 12)
    assert farthest(resumed, plain) < 1e-5
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    model.load_state_dict(plain.state_dict())
    before = own.replays
    train(plain, theirs, 8, 20), train(model, ours, 8, 20, own)
    assert own.replays > before and own.refused == "" and form.graphs == 1
    assert farthest(model, plain) < 1e-5


def test_it_takes_fewer_kernels() -> None:
    def kernels(form) -> int:
        model = network()
        optimizer = torch.optim.Adadelta(model.parameters())
        own = CapturedUpdate(optimizer, form=form(optimizer))
        train(model, optimizer, 10, own=own)
        assert own.refused == "" and own.replays > 0
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            own.step(optimizer.step)
            torch.cuda.synchronize()
        names = [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
        return sum(not name.startswith(("Memcpy", "Memset")) for name in names)

    compiled, plain = kernels(CompiledForm), kernels(lambda optimizer: None)
    assert 0 < compiled <= 4 < plain, (compiled, plain)


def test_through_the_technique() -> None:
    """The optimizer is built while the model is still in main memory, as some scripts do it."""

    def steps(patch: Patch | None) -> nn.Module:
        if patch is not None:
            find("fused-optimizer").apply(patch, {"kind": "compiled"})
        model = network().cpu()
        optimizer = torch.optim.Adadelta(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, gamma=0.7)
        model.cuda()
        train(model, optimizer, 40, scheduler=scheduler)
        if patch is not None:
            assert patch.joints.withdrawn == [] and optimizer_facts(optimizer).captured
            assert patch.joints.comparisons[0].facts.count == 1
            patch.undo()
        return model

    plain = steps(None)
    assert farthest(steps(Patch(Joints())), plain) < 1e-5
