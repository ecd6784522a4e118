"""Updates recorded as CUDA graphs: the same training as the plain optimizer, class by class; and calls made direct."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.captured_update import CapturedUpdate
from hotlap.technique import Choice

pytestmark = pytest.mark.gpu

STEPS = 50
KINDS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True, "fused": True}),
    (torch.optim.SGD, {"momentum": 0.9, "maximize": True, "fused": True}),
    (torch.optim.Adam, {}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.01}),
    (torch.optim.Adam, {"amsgrad": True, "maximize": True, "fused": True}),
    (torch.optim.Adam, {"foreach": False}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.NAdam, {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    (torch.optim.Adamax, {}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.RMSprop, {}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adadelta, {}),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.LayerNorm(64), nn.Linear(64, 4)).cuda()


def fill(model: nn.Module, number: int, in_place: bool = True) -> None:
    generator = torch.Generator("cuda").manual_seed(number)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=generator, device="cuda")
        if in_place and p.grad is not None:
            p.grad.copy_(grad)
        else:
            p.grad = grad


def train(model, optimizer, steps=STEPS, start=0, captured=None, gamma: float | None = None, in_place=True) -> None:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) if gamma else None
    for number in range(start, start + steps):
        fill(model, number, in_place)
        captured.step(optimizer.step) if captured else optimizer.step()
        if scheduler:
            scheduler.step()


def assert_close(first: nn.Module, second: nn.Module) -> None:
    """The captured form counts and scales in float32 on the device, the plain one in doubles on the host."""
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def assert_alike(mine, other) -> None:
    """Types, keys, devices and settings; values of tensors within rounding."""
    assert type(mine) is type(other)
    if isinstance(mine, dict):
        assert list(mine) == list(other)
        [assert_alike(mine[key], other[key]) for key in mine]
    elif isinstance(mine, (list, tuple)):
        [assert_alike(one, two) for one, two in zip(mine, other, strict=True)]
    elif isinstance(mine, torch.Tensor):
        assert mine.device == other.device and mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)
    else:
        assert mine == other


@pytest.mark.parametrize("gamma", [None, 0.97])
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_every_kind_trains_the_same(kind, options, gamma) -> None:
    if gamma and kind is torch.optim.SGD and not options.get("fused"):
        pytest.skip("its plain form takes each rate from the host, so a rate that changes in every step is given up")
    plain, model = network(), network()
    theirs, ours = kind(plain.parameters(), lr=0.01, **options), kind(model.parameters(), lr=0.01, **options)
    captured = CapturedUpdate(ours)
    train(plain, theirs, gamma=gamma), train(model, ours, captured=captured, gamma=gamma)
    assert captured.refused == "" and captured.replays >= STEPS - 4
    assert_close(plain, model)
    assert isinstance(ours.param_groups[0]["lr"], float)
    assert_alike(ours.state_dict(), theirs.state_dict())


def test_a_fused_kernel_gives_the_same_bits_in_a_graph() -> None:
    """A rate that float32 holds exactly, so that nothing is rounded on its way to the device."""
    plain, model = network(), network()
    theirs = torch.optim.AdamW(plain.parameters(), lr=2**-7, fused=True)
    ours = torch.optim.AdamW(model.parameters(), lr=2**-7, fused=True)
    captured = CapturedUpdate(ours)
    train(plain, theirs), train(model, ours, captured=captured)
    assert captured.replays > 40
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


def test_plain_descent_gives_the_same_bits_in_a_graph() -> None:
    plain, model = network(), network()
    theirs = torch.optim.SGD(plain.parameters(), lr=0.01, momentum=0.9)
    ours = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    captured = CapturedUpdate(ours)
    train(plain, theirs), train(model, ours, captured=captured)
    assert captured.replays > 40
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_checkpoint_goes_both_ways(kind, options) -> None:
    plain, model = network(), network()
    theirs, ours = kind(plain.parameters(), lr=0.01, **options), kind(model.parameters(), lr=0.01, **options)
    captured = CapturedUpdate(ours)
    train(plain, theirs, 12), train(model, ours, 12, captured=captured)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    resumed = copy.deepcopy(plain)
    again = kind(resumed.parameters(), lr=0.01, **options)
    again.load_state_dict(torch.load(file))
    train(plain, theirs, 8, 12), train(resumed, again, 8, 12)
    assert_close(plain, resumed)
    ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
    model.load_state_dict(plain.state_dict())
    before = captured.replays
    train(plain, theirs, 8, 20), train(model, ours, 8, 20, captured)
    assert captured.replays > before and captured.refused == ""
    assert_close(plain, model)


def test_gradients_that_move() -> None:
    plain, model, kept = network(), network(), []
    theirs, ours = torch.optim.AdamW(plain.parameters()), torch.optim.AdamW(model.parameters())
    captured = CapturedUpdate(ours)
    train(plain, theirs, 10), train(model, ours, 10, captured=captured)
    assert captured.replays > 0
    for number in range(10, 60):
        train(plain, theirs, 1, number)
        train(model, ours, 1, number, captured, in_place=False)
        kept += [p.grad for p in model.parameters()]
    assert "where they lay before" in captured.refused
    assert_close(plain, model)
    assert ours.state[model[0].weight]["step"].device.type == "cpu"


def test_a_pinning_thread_does_not_break_a_recording() -> None:
    data = torch.utils.data.TensorDataset(torch.randn(512, 16))
    loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    captured = CapturedUpdate(optimizer)
    for (x,) in loader:
        optimizer.zero_grad(set_to_none=False)
        model(x.cuda(non_blocking=True)).square().mean().backward()
        captured.step(optimizer.step)
    assert captured.refused == "" and captured.replays > 50


def test_with_a_grad_scaler() -> None:
    def trained(is_captured: bool) -> tuple[nn.Module, int]:
        model, patch = network(), Patch(Joints())
        if is_captured:
            find("fused-optimizer").apply(patch, {"kind": "captured"})
        optimizer = torch.optim.AdamW(model.parameters(), lr=2**-7, fused=True)
        scaler = torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=8)
        for number in range(30):
            scale = scaler.scale(torch.ones((), device="cuda"))
            fill(model, number)
            for p in model.parameters():
                p.grad.mul_(scale)
            if number == 20:
                model[0].weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
        assert patch.joints.withdrawn == []
        steps = int(optimizer.state_dict()["state"][0]["step"])
        patch.undo()
        return model, steps

    (plain, theirs), (model, ours) = trained(False), trained(True)
    assert theirs == ours == 29
    assert_close(plain, model)


SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).cuda()
optimizer = torch.optim.{kind}(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
data = torch.utils.data.TensorDataset(torch.randn(960, 16), torch.randint(0, 4, (960,)))
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
state = optimizer.state_dict()
group = state["param_groups"][0]
print("kept", group.get("fused"), group.get("capturable"), state["state"][0]["step"])
"""


@pytest.mark.parametrize("kind", ["AdamW", "RMSprop"])
def test_on_top_of_a_compiled_model(run_script, tmp_path, kind: str) -> None:
    """Its CUDA graphs put gradients in the same place in every step."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(kind=kind))
    choices = [Choice(find("compiled-model"), {"mode": "reduce-overhead"})]
    choices += [Choice(find("fused-optimizer"), {"kind": "captured"})]
    trial = run_script(script, choices)
    assert trial.good, trial.log
    assert trial.run.withdrawn == [] and trial.run.optimizers[0].captured
    assert "kept None False tensor(120.)" in trial.log, trial.log


def test_a_call_over_one_device_is_direct(monkeypatch) -> None:
    plain = network()
    wrapper = nn.DataParallel(plain, device_ids=[0])
    x, scattered = torch.randn(8, 16, device="cuda"), []
    scatter = nn.DataParallel.scatter
    monkeypatch.setattr(nn.DataParallel, "scatter", lambda *given: scattered.append(1) or scatter(*given))
    expected = wrapper(x)
    assert scattered == [1]
    patch = Patch(Joints())
    find("no-data-parallel").apply(patch, {})
    try:
        assert torch.equal(wrapper(x), expected) and scattered == [1]
        assert torch.equal(wrapper(x.cpu()), expected) and scattered == [1, 1], "what must be moved is"
        assert all(key.startswith("module.") for key in wrapper.state_dict())
    finally:
        patch.undo()


@pytest.mark.parametrize("update", ["p.data.add_(p.grad, alpha=-lr)", "p.data.sub_(lr * p.grad)"])
def test_an_update_by_hand_has_the_same_bits_as_one_call(update: str) -> None:
    from hotlap.source.fix import fix_source
    from hotlap.source.module import Source

    technique = find("fused-optimizer")
    before = f"import torch\nlr = 0.3\nfor p in model.parameters():\n    {update}\nloss.backward\n"
    after = fix_source(Source(before), [(technique, technique.default)], unsafe=True)
    assert "_foreach_" in after
    plain, model = network(), network()
    for text, one in ((before, plain), (after, model)):
        for number in range(STEPS):
            fill(one, number)
            exec(text, {"model": one, "loss": torch.zeros(1)})
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
