"""Results of a replay, read while it still goes back: the right values each time, and no waiting for the rest."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotlap.parts import recorded_pass
from hotlap.parts.captured_update import CapturedUpdate
from hotlap.parts.graph_recorder import GraphRecorder
from hotlap.parts.recorded_pass import read_early, reading_early, recorded

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_pass, "_passes", {})


class Slow(torch.autograd.Function):
    """Backward takes its time, on the device."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        torch.cuda._sleep(60_000_000)  # some 30 ms
        return grad.clone()


class Network(nn.Module):
    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.slow = nn.Linear(64, 512), nn.BatchNorm1d(512), nn.Linear(512, 10), slow

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        return self.last(Slow.apply(x) if self.slow else x)


def train(is_recorded: bool, steps: int, slow: bool = False, kept: bool = False, pause: float = 0.0):
    """Everything a step shows; each step has a batch of its own, made and dropped on the way."""
    torch.manual_seed(0)
    model = Network(slow).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    update = CapturedUpdate(optimizer) if is_recorded else None
    total, right, shown, idle = 0.0, 0, [], []  # idle: whether the queue was empty after the reads
    do = recorded if is_recorded else lambda function, *inputs: function(*inputs)
    for number in range(steps):
        generator = torch.Generator("cuda").manual_seed(number)
        x = torch.randn(256, 64, generator=generator, device="cuda")
        y = torch.randint(0, 10, (256,), generator=generator, device="cuda")

        def one_pass(x, y):
            optimizer.zero_grad()
            out = model(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            return out, loss

        out, loss = do(one_pass, x, y)
        update.step(optimizer.step) if update else optimizer.step()
        queued = torch.cuda.current_stream().record_event()
        if is_recorded:
            with reading_early(one_pass, total, right, loss, out, y):
                total += loss.item()
                _, best = out.max(1)
                right += best.eq(y).sum().item()
            shown.append(read_early(one_pass, loss))
        else:
            total += loss.item()
            right += out.max(1)[1].eq(y).sum().item()
            shown.append(loss.item())
        idle.append(queued.query())
        if kept:
            shown.append(out)
        time.sleep(pause)
    own = next(iter(recorded_pass._passes.values()), None)
    torch.cuda.synchronize()
    return (total, right, shown), model, own, idle


@pytest.mark.parametrize("pause", [0.0, 0.002])
def test_what_is_read_is_what_the_plain_loop_shows(pause: float) -> None:
    theirs, plain, _, _ = train(False, 400)
    ours, model, own, _ = train(True, 400, pause=pause)
    assert own.refused == "" and own.replays > 380 and own.made is not None
    assert ours == theirs
    for key, value in plain.state_dict().items():
        assert torch.equal(value, model.state_dict()[key]), key


def test_results_that_are_kept_stay_as_they_were() -> None:
    theirs, _, _, _ = train(False, 120, kept=True)
    ours, _, own, _ = train(True, 120, kept=True)
    assert own.replays > 100
    for one, other in zip(theirs[2], ours[2], strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))


def test_a_read_does_not_wait_for_backward() -> None:
    """By the device's own word: after a plain read its queue is empty, after an early one it still goes back."""
    theirs, _, _, plain = train(False, 24, slow=True)
    ours, _, own, early = train(True, 24, slow=True)
    assert ours == theirs and own.replays > 10
    assert all(plain) and not any(early[-10:])


@pytest.mark.parametrize("slow", [False, True])
def test_a_number_now_and_then_is_read_in_the_midst_of_its_step(slow: bool) -> None:
    def read(is_recorded: bool, steps: int) -> tuple[list[float], list[bool]]:
        torch.manual_seed(0)
        recorded_pass._passes.clear()
        model, found, idle = Network(slow).cuda(), [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for number in range(steps):
            x = torch.randn(256, 64, generator=torch.Generator("cuda").manual_seed(number), device="cuda")

            def one_pass(x):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                return loss

            loss = recorded(one_pass, x) if is_recorded else one_pass(x)
            optimizer.step()
            if number % 3 == 0:
                queued = torch.cuda.current_stream().record_event()
                found.append(read_early(one_pass, loss) if is_recorded else loss.item())
                idle.append(queued.query())
        return found, idle

    steps = 45 if slow else 600
    theirs, waited = read(False, steps)
    ours, early = read(True, steps)
    assert ours == theirs and all(waited)
    assert not slow or not any(early[-8:])


def test_a_torch_without_such_events_reads_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphRecorder, "moment", lambda self: None)
    theirs, _, _, _ = train(False, 60)
    ours, _, own, _ = train(True, 60)
    assert ours == theirs and own.replays > 40 and own.made is None


def test_values_changed_in_place_are_waited_for() -> None:
    torch.manual_seed(0)
    model, recorded_values, plain_values = Network(False).cuda(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for number in range(40):
        x = torch.full((256, 64), 0.01 * number, device="cuda")

        def one_pass(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        loss = recorded(one_pass, x)
        x.zero_().add_(number)  # by the main queue, after the pass
        with reading_early(one_pass, loss, x):
            recorded_values.append(x.mean().item())
        plain_values.append(float(number))
    assert recorded_values == plain_values
