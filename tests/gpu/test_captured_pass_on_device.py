"""Passes recorded as CUDA graphs: the same training as the plain loop, alone and with a recorded update."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.replays import Replays
from hotlap.parts.captured_clip import CapturedClip
from hotlap.parts.captured_update import CapturedUpdate
from hotlap.parts.compilable import graphs_made
from hotlap.parts.graph_recorder import GraphRecorder
from hotlap.parts.recorded_pass import RecordedPass
from hotlap.technique import Choice

pytestmark = pytest.mark.gpu

STEPS = 50


def network(dropped: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    first = nn.Linear(16, 64, bias=False)  # its bias would get nothing but rounding, which Adam magnifies
    layers = [first, nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(dropped), nn.Linear(64, 4)]
    return nn.Sequential(*layers).cuda()


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    layers = [first, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)]
    return nn.Sequential(*layers).cuda()


def batch(number: int, shape=(16,), size: int = 32):
    generator = torch.Generator("cuda").manual_seed(number)
    x = torch.randn(size, *shape, generator=generator, device="cuda")
    return x, torch.randint(0, 4, (size,), generator=generator, device="cuda")


def train(model, own=None, steps=STEPS, low=False, update=False, shape=(16,), size=lambda number: 32, on_host=False):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2**-7, fused=True)
    captured = CapturedUpdate(optimizer) if update else None
    run = own.run if own is not None else lambda function, inputs: function(*inputs)
    losses = []
    torch.manual_seed(1)
    for number in range(steps):
        x, y = batch(number, shape, size(number))
        if on_host:
            x, y = x.cpu(), y.cpu()

        def one_pass(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=low):
                output = model(x.cuda())
            loss = F.cross_entropy(output.float(), y.cuda())
            loss.backward()
            return output, loss

        _, loss = run(one_pass, (x, y))
        captured.step(optimizer.step) if captured else optimizer.step()
        losses.append(loss.detach())
    return losses, captured


def assert_same(plain, model, theirs, ours, rtol=1e-5, atol=1e-6) -> None:
    torch.testing.assert_close(theirs, ours, rtol=rtol, atol=atol)
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=rtol, atol=atol)


@pytest.mark.parametrize("dropped", [0.0, 0.3])
@pytest.mark.parametrize("low", [False, True])
def test_it_trains_the_same(low: bool, dropped: float) -> None:
    plain, model, own = network(dropped), network(dropped), RecordedPass()
    theirs, _ = train(plain, low=low)
    ours, _ = train(model, own, low=low)
    assert own.refused == "" and own.replays > STEPS - 10
    assert_same(plain, model, theirs, ours)


def test_the_generator_goes_on_as_it_would() -> None:
    plain, model, own = network(0.3), network(0.3), RecordedPass()
    train(plain)
    theirs = torch.cuda.get_rng_state()
    train(model, own)
    assert own.replays and torch.equal(theirs, torch.cuda.get_rng_state())


def test_convolutions_and_a_batch_that_the_pass_moves_itself() -> None:
    plain, model, own = convolutions(), convolutions(), RecordedPass()
    theirs, _ = train(plain, shape=(3, 12, 12), on_host=True)
    ours, _ = train(model, own, shape=(3, 12, 12), on_host=True)
    assert own.refused == "" and own.replays > STEPS - 10
    assert_same(plain, model, theirs, ours, rtol=1e-3, atol=1e-4)


def compiled_by_hotlap(model: nn.Module, own: RecordedPass | None):
    """Trained with `compiled-model` applied, without graphs of its own."""
    torch._dynamo.reset()
    joints = Joints()
    patches = [Patch(joints, "watch"), Patch(joints, "compiled-model")]
    Replays(patches[0])
    patches[0].at(joints.root_found, lambda root: None)
    find("compiled-model").apply(patches[1], {"mode": "default", "part": "model"})
    try:
        losses, captured = train(model, own, update=own is not None)
    finally:
        for patch in reversed(patches):
            patch.undo()
    assert not joints.withdrawn
    return losses, captured


@pytest.mark.parametrize("dropped", [0.0, 0.3])
def test_what_is_compiled_is_recorded(dropped: float) -> None:
    plain, model, own = network(dropped), network(dropped), RecordedPass()
    made = graphs_made()
    theirs, _ = compiled_by_hotlap(plain, None)
    ours, captured = compiled_by_hotlap(model, own)
    assert graphs_made() >= made + 2
    assert own.refused == "" and own.replays > STEPS - 12 and captured.replays > STEPS - 20
    if not dropped:  # the pass that is looked at is not compiled, and draws other numbers
        assert_same(plain, model, theirs, ours, rtol=1e-4, atol=1e-5)
    assert all(map(torch.isfinite, ours))


def test_clipping_is_recorded() -> None:
    models, clips = [network(), network()], [torch.nn.utils.clip_grad_norm_, CapturedClip()]
    norms: list[list[torch.Tensor]] = [[], []]
    for model, clip, found in zip(models, clips, norms, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(STEPS):
            x, y = batch(number)
            F.cross_entropy(model(x), y).backward()
            found.append(clip(model.parameters(), 0.05))
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    assert clips[1].refused == "" and clips[1].replays == STEPS - 4
    assert_same(*models, *norms)


def test_a_smaller_last_batch() -> None:
    plain, model, own = network(), network(), RecordedPass()
    sizes = {"size": lambda number: 12 if number % 10 == 9 else 32}
    theirs, _ = train(plain, **sizes)
    ours, _ = train(model, own, **sizes)
    assert own.refused == "" and own.replays > STEPS - 16
    assert_same(plain, model, theirs, ours)


def test_two_kinds_of_batches_in_turns() -> None:
    """Both recordings share one pool of memory."""
    plain, model, own = network(0.3), network(0.3), RecordedPass()
    sizes = {"size": lambda number: 12 if number % 3 == 2 else 32, "steps": 90}
    theirs, _ = train(plain, **sizes)
    ours, _ = train(model, own, **sizes)
    assert own.refused == "" and own._recordings == 2 and own.replays > 70
    assert_same(plain, model, theirs, ours)


def test_gradients_that_the_script_keeps_are_not_overwritten() -> None:
    model, own, kept, copies = network(), RecordedPass(), [], []
    for number in range(40):
        x, y = batch(number)
        model.zero_grad()

        def one_pass(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        own.run(one_pass, (x, y))
        if number in (15, 25):
            kept += [p.grad for p in model.parameters()]
            copies += [p.grad.clone() for p in model.parameters()]
    assert own.refused == "" and own.replays > 5
    assert all(map(torch.equal, kept, copies))


def test_with_a_grad_scaler() -> None:
    def trained(own: RecordedPass | None) -> tuple[nn.Module, float]:
        model, scaler = network(), torch.amp.GradScaler("cuda", init_scale=64.0, growth_interval=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=2**-5)
        for number in range(40):
            x, y = batch(number)

            def one_pass(x, y):
                optimizer.zero_grad()
                with torch.autocast("cuda", torch.float16):
                    loss = F.cross_entropy(model(x), y)
                scaler.scale(loss).backward()
                return loss

            own.run(one_pass, (x, y)) if own is not None else one_pass(x, y)
            scaler.step(optimizer)
            scaler.update()
        return model, scaler.get_scale()

    own = RecordedPass()
    (plain, theirs), (model, ours) = trained(None), trained(own)
    assert own.refused == "" and own.replays > 30 and theirs == ours
    assert_same(plain, model, [], [], rtol=1e-3, atol=1e-4)


def test_together_with_a_recorded_update() -> None:
    plain, model, own = network(0.3), network(0.3), RecordedPass()
    theirs, _ = train(plain)
    ours, captured = train(model, own, update=True)
    assert own.refused == captured.refused == ""
    assert own.replays > 40 and captured.replays > 30
    assert_same(plain, model, theirs, ours, rtol=1e-4, atol=1e-5)


def test_losses_with_their_graphs_kept_from_before() -> None:
    """Autograd remembers the stream of what it adds gradients up with as long as a graph of it lives."""
    model, own, kept = network(), RecordedPass(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(20):
        x, y = batch(number)
        optimizer.zero_grad()

        def one_pass(x, y):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        kept.append(own.run(one_pass, (x, y)))
        optimizer.step()
    assert own.refused == "" and own.replays > 10, own.refused


def test_a_wait_in_the_pass_is_given_up_and_torch_goes_on() -> None:
    model, own = network(0.3), RecordedPass()

    def waiting(model, x, y):
        loss = F.cross_entropy(model(x), y)
        (loss / loss.item()).backward()
        return loss

    for number in range(12):
        x, y = batch(number)
        model.zero_grad()

        def one_pass(x, y):
            return waiting(model, x, y)

        own.run(one_pass, (x, y))
    assert "waits for the device" in own.refused and own.replays == 0


def test_a_recording_that_breaks_leaves_torch_usable() -> None:
    recorder, x = GraphRecorder(), torch.ones(8, device="cuda")
    own = F.dropout(x, 0.5)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: F.dropout(x, 0.5).sum().item(), x.device)
    torch.cuda.synchronize()
    assert F.dropout(x, 0.5).shape == own.shape, "the generator must not think that it is still recorded"
    out = []
    replay = recorder.record(lambda: out.append(F.dropout(x, 0.5) * 2), x.device)
    replay()
    torch.cuda.synchronize()
    assert set(out[0].tolist()) <= {0.0, 4.0}


SCRIPT = """
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Dropout(0.25)
        self.out = nn.Linear(8 * 36, 4)

    def forward(self, x):
        x = self.drop(F.relu(self.norm(self.conv(x))))
        return F.log_softmax(self.out(torch.flatten(x, 1)), dim=1)

def train(model, device, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for number, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} {total / len(loader):.4f}")

torch.manual_seed(0)
device = torch.device("cuda")
data = torch.utils.data.TensorDataset(torch.randn(1000, 1, 8, 8), torch.randint(0, 4, (1000,)))
loader = torch.utils.data.DataLoader(data, batch_size=32)
model = Net().to(device)
optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
for epoch in range(3):
    train(model, device, loader, optimizer, epoch)
    scheduler.step()
sums = [f"{p.detach().double().sum().item():.3f}" for p in model.parameters()]
print("weights", *sums, int(model.norm.num_batches_tracked))
"""


def run(script, *words: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, *words, str(script)], capture_output=True, text=True, cwd=script.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_whole_run(tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain, _ = run(script)
    words = ("-m", "hotlap", "run", "--with", "sync-free-loop,captured-pass,fused-optimizer:kind=captured")
    ours, said = run(script, *words)
    print(said)
    assert "withdrawn" not in said and "found no place" not in said and "replayed passes" in said, said
    theirs, mine = ([float(one) for one in re.findall(r"-?\d+\.\d+", text)] for text in (plain, ours))
    assert mine == pytest.approx(theirs, rel=2e-2, abs=2e-2), (plain, ours)
    assert plain.split()[-1] == ours.split()[-1] == "96"


@pytest.mark.parametrize("others", ["mixed-precision", "mixed-precision,channels-last,resident-dataset,tf32-matmul"])
def test_a_whole_run_with_others(tmp_path, others: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    ours, said = run(script, "-m", "hotlap", "run", "--with", f"captured-pass,fused-optimizer:kind=captured,{others}")
    print(said)
    assert "withdrawn" not in said and "found no place" not in said and "replayed passes" in said, said
    assert ours.split()[-1] == "96"


def test_a_trial_sees_every_step_and_its_loss(run_script, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    choices = [Choice(find("captured-pass"), {}), Choice(find("fused-optimizer"), {"kind": "captured"})]
    plain, trial = run_script(script), run_script(script, choices)
    assert trial.good, trial.log
    assert trial.run.withdrawn == [] and trial.run.optimizers[0].captured
    assert trial.run.steps == plain.run.steps and len(trial.run.losses) == len(plain.run.losses)
    assert trial.run.losses == pytest.approx(plain.run.losses, rel=1e-2, abs=1e-2)
    assert trial.run.compared and trial.run.compared[0].difference < 1e-3


def test_what_it_is_worth_here() -> None:
    """No limit: the figures are printed for whoever reads the log."""
    for own in (None, RecordedPass()):
        model = network(0.3)
        train(model, own, 30, update=own is not None)
        torch.cuda.synchronize()
        start = time.perf_counter()
        train(model, own, 300, update=own is not None)
        torch.cuda.synchronize()
        print(f"{'plain' if own is None else 'recorded'}: {1e3 * (time.perf_counter() - start) / 300:.3f} ms a step")
