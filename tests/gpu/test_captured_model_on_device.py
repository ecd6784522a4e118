"""Forward and backward recorded as CUDA graphs: the same training as the plain model, whatever the model and the loop.

Graphs run the same kernels in the same order, but some kernels add in no fixed order, and differences grow from step
to step: after 50 steps losses may be apart by 0.1 % in float32 and by 3 % in bf16, which keeps 8 bits."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.captured_calls import CapturedCalls, replayed
from hotlap.parts.captured_update import replayed as is_update_replayed
from hotlap.technique import Choice

pytestmark = pytest.mark.gpu

STEPS = 50


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> dict[str, torch.Tensor]:
        hidden = self.encoder(x.view(len(x), -1, 32) * scale)
        return {"logits": self.head(hidden.mean(1)), "hidden": hidden}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(32, 32, 2, batch_first=True), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x.view(len(x), -1, 32))[0][:, -1])


def perceptron() -> nn.Module:
    layers = [
        nn.Linear(256, 64, bias=False),
        nn.BatchNorm1d(64),
        nn.Dropout(0.2),
        nn.ReLU(inplace=True),
        nn.Linear(64, 4),
    ]
    return nn.Sequential(*layers)


def convolutions() -> nn.Module:
    """Without a bias before a norm, whose gradient is nothing but rounding: AdamW makes full steps of it."""
    layers = [nn.Unflatten(1, (4, 8, 8)), nn.Conv2d(4, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(128, 4))


MODELS = [perceptron, convolutions, Attending, Recurrent]


def built(kind) -> nn.Module:
    torch.manual_seed(0)
    return kind().cuda()


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last of every ten is smaller."""
    generator = torch.Generator("cuda").manual_seed(number)
    size = 10 if number % 10 == 9 else 16
    x = torch.randn(size, 256, generator=generator, device="cuda")
    return x, torch.randint(0, 4, (size,), generator=generator, device="cuda")


def trained(model: nn.Module, call, dtype=None, accumulate: int = 1, steps: int = STEPS, **options) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2**-9, **options)
    losses = []
    for number in range(steps):
        x, y = batch(number)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            out = call(x)
            loss = nn.functional.cross_entropy(out["logits"] if isinstance(out, dict) else out, y)
        loss.backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss)
    return torch.stack([loss.detach() for loss in losses]).tolist()


def assert_same_training(first: nn.Module, second: nn.Module, losses, others, is_exact: bool = True) -> None:
    assert others == pytest.approx(losses, rel=1e-3 if is_exact else 3e-2, abs=1e-4 if is_exact else 1e-2)
    for name, one in first.state_dict().items():
        two = second.state_dict()[name]
        torch.testing.assert_close(one, two, rtol=1e-2, atol=2e-3 if is_exact else 3e-2, msg=name)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("kind", MODELS)
def test_every_model_trains_the_same(kind, dtype) -> None:
    plain, model = built(kind), built(kind)
    captured = CapturedCalls()
    losses = trained(plain, plain, dtype)
    others = trained(model, lambda x: captured.call(model, (x,), {}), dtype)
    assert captured.refused == "" and captured.replays >= STEPS - 3 - 5, "all but the first, and the smaller batches"
    assert_same_training(plain, model, losses, others, dtype is None)
    torch.cuda.synchronize()


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_that_are_added_up(kind) -> None:
    plain, model = built(kind), built(kind)
    captured = CapturedCalls()
    losses = trained(plain, plain, accumulate=2)
    others = trained(model, lambda x: captured.call(model, (x,), {}), accumulate=2)
    assert captured.refused == "" and captured.replays > 30
    assert_same_training(plain, model, losses, others)


def test_dropout_goes_on_in_the_stream_as_it_would() -> None:
    """The same masks: without any kernel that adds in no fixed order, the very same bits."""
    plain, model = nn.Dropout(0.5), nn.Dropout(0.5)
    weight, other = (nn.Parameter(torch.ones(64, device="cuda")) for _ in range(2))
    plain.scale, model.scale = weight, other
    plain.forward = lambda x: nn.functional.dropout(x, 0.5) * plain.scale
    model.forward = lambda x: nn.functional.dropout(x, 0.5) * model.scale
    captured = CapturedCalls()

    def outputs(call) -> list[torch.Tensor]:
        torch.manual_seed(3)
        found = []
        for _ in range(12):
            out = call(torch.ones(64, device="cuda"))
            out.sum().backward()
            found += [out.detach().clone(), torch.rand(4, device="cuda")]  # what the script itself draws in between
        return found

    ours, theirs = outputs(lambda x: captured.call(model, (x,), {})), outputs(plain)
    assert captured.replays >= 9
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(weight.grad, other.grad)


def adversarial(techniques=()) -> tuple[list[float], list[nn.Module], list[str], list[bool]]:
    """Two models, two optimizers; one is called twice before a backward, and through its frozen self."""
    patch = Patch(Joints())
    for name, setting in techniques:
        find(name).apply(patch, setting)
    torch.manual_seed(0)
    makes = nn.Sequential(nn.Linear(8, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).cuda()
    judges = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1)).cuda()
    first = torch.optim.Adam(makes.parameters(), lr=1e-3)
    second = torch.optim.Adam(judges.parameters(), lr=1e-3)
    losses, bce = [], nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(16, 1, device="cuda"), torch.zeros(16, 1, device="cuda")
    for number in range(STEPS):
        generator = torch.Generator("cuda").manual_seed(number)
        real, noise = (torch.randn(16, n, generator=generator, device="cuda") for n in (16, 8))
        fake = makes(noise)
        second.zero_grad()
        loss = bce(judges(real), ones) + bce(judges(fake.detach()), zeros)
        loss.backward()
        second.step()
        first.zero_grad()
        other = bce(judges(fake), ones)
        other.backward()
        first.step()
        losses += [loss.detach(), other.detach()]
    found = torch.stack(losses).tolist()
    has_replayed = [replayed(makes), replayed(judges), *map(is_update_replayed, (first, second))]
    patch.undo()
    return found, [makes, judges], patch.joints.withdrawn, has_replayed


def test_two_models_with_their_optimizers() -> None:
    losses, plain, _, _ = adversarial()
    others, models, withdrawn, has_replayed = adversarial([("captured-model", {})])
    assert withdrawn == [] and has_replayed[:2] == [True, True]
    for one, two in zip(plain, models, strict=True):
        assert_same_training(one, two, losses, others)


def test_together_with_a_recorded_update() -> None:
    """Gradients are where they were in every step, so the update is recorded as well; not of the model that a loss
    leads to twice, where autograd makes their sum in a new place."""
    losses, plain, _, _ = adversarial()
    both = [("captured-model", {}), ("fused-optimizer", {"kind": "captured"})]
    others, models, withdrawn, has_replayed = adversarial(both)
    assert withdrawn == [] and has_replayed[:3] == [True] * 3
    for one, two in zip(plain, models, strict=True):
        assert_same_training(one, two, losses, others)


def test_under_mixed_precision_and_the_image_layout() -> None:
    def run(*names: str) -> tuple[nn.Module, list[float], Patch]:
        patch = Patch(Joints())
        for name in names:
            find(name).apply(patch, find(name).default)
        model = built(convolutions)
        losses = trained(model, model)
        assert replayed(model) is ("captured-model" in names)
        patch.undo()
        return model, losses, patch

    plain, losses, _ = run("mixed-precision", "channels-last")
    model, others, patch = run("mixed-precision", "channels-last", "captured-model")
    assert patch.joints.withdrawn == [] and not any(one.failed for one in patch.joints.comparisons)
    assert_same_training(plain, model, losses, others, is_exact=False)


class Waits(nn.Module):
    """The host waits for the device, openly or only where that breaks a recording."""

    def __init__(self, openly: bool) -> None:
        super().__init__()
        self.openly, self.layer = openly, nn.Linear(256, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.1)
        if self.openly or torch.cuda.is_current_stream_capturing():
            x = x * float(x.sum() < 1e9)
        return self.layer(x)


@pytest.mark.parametrize("openly", [True, False])
def test_a_call_that_cannot_be_recorded_leaves_the_process_as_it_was(openly) -> None:
    torch.manual_seed(0)
    plain = Waits(openly).cuda()
    torch.manual_seed(0)
    model, captured = Waits(openly).cuda(), CapturedCalls()
    losses, others = trained(plain, plain), trained(model, lambda x: captured.call(model, (x,), {}))
    words = "wait" if openly else "cannot be recorded"
    assert captured.replays == 0 and (openly or words in captured.refused)
    assert_same_training(plain, model, losses, others)
    test_every_model_trains_the_same(perceptron, None)  # which draws, allocates and records


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = perceptron(), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(checkpoint(self.first, x, use_reentrant=False))


class Dropping(Recurrent):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(32, 32, 2, batch_first=True, dropout=0.2)


class Embedding(nn.Module):
    """What is looked up is chosen on the device; its gradient is added by atomic operations."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 32), nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table((x[:, :20].abs() * 10).long().clamp(max=49)).mean(1))


@pytest.mark.parametrize("kind", [Checkpointed, Dropping, Embedding])
def test_recorded_or_not_it_is_the_same_training(kind) -> None:
    plain, model, captured = built(kind), built(kind), CapturedCalls()
    losses, others = trained(plain, plain), trained(model, lambda x: captured.call(model, (x,), {}))
    print(kind.__name__, captured.replays, captured.refused)
    assert_same_training(plain, model, losses, others)


def test_with_kernels_that_are_searched_for(monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    test_every_model_trains_the_same(convolutions, torch.bfloat16)


def test_with_scaled_gradients() -> None:
    """fp16 with a scaler of the script's own, whose first scale is far too large: updates are left out."""

    def run(model: nn.Module, call) -> list[float]:
        torch.manual_seed(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=2**-9)
        scaler, losses = torch.amp.GradScaler("cuda", init_scale=2.0**24, growth_interval=5), []
        for number in range(STEPS):
            x, y = batch(number)
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.cross_entropy(call(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses

    plain, model, captured = built(perceptron), built(perceptron), CapturedCalls()
    losses, others = run(plain, plain), run(model, lambda x: captured.call(model, (x,), {}))
    assert captured.refused == "" and captured.replays > 40
    assert_same_training(plain, model, losses, others, is_exact=False)


def test_gradients_of_gradients_are_right_also_when_they_come_unforeseen() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
    captured = CapturedCalls()
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    for _ in range(6):
        captured.call(model, (x,), {}).sum().backward()
    assert captured.replays == 3

    def penalty(out: torch.Tensor) -> list[torch.Tensor]:
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return list(torch.autograd.grad(slope.square().sum(), [model[0].weight, model[2].weight]))

    ours = penalty(captured.call(model, (x,), {}))
    assert captured.replays == 4
    torch.testing.assert_close(ours, penalty(model(x)))


SCRIPT = """
import torch
torch.manual_seed(0)
layers = [torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(1000, 16), torch.randint(0, 4, (1000,)))
for epoch in range(3):
    for x, y in torch.utils.data.DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
print("loss", round(loss.item(), 4), sorted(model.state_dict())[0])
"""


def test_a_script_through_the_command(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "hotlap", "run", "--with", "captured-model,fused-optimizer", str(script)]
    ours = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert ours.returncode == 0 and "withdrawn" not in ours.stderr, ours.stderr
    (_, loss, key), (_, theirs, known) = ours.stdout.split(), plain.stdout.split()
    assert key == known and float(loss) == pytest.approx(float(theirs), rel=1e-2)


def test_in_a_trial_it_is_seen(run_script, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    choices = [Choice(find("captured-model"), {}), Choice(find("fused-optimizer"), {"kind": "captured"})]
    trial = run_script(script, choices)
    assert trial.good, trial.log
    assert trial.run.withdrawn == [] and find("captured-model").seen(trial.run) is True
    assert trial.run.optimizers[0].captured and trial.run.compared[0].count >= 4
