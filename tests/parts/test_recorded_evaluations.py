"""Calls without gradients are replayed where they are alike, and are the module's own otherwise; nobody can tell. A
tape stands for the device, which like a graph knows numbers and addresses only."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from taped_recorder import TapedRecorder
from torch import nn
from torch.nn import functional as F

from hotlap.parts import captured_evaluation
from hotlap.parts.captured_evaluation import CapturedEvaluation

FIRST = captured_evaluation._UNWATCHED + captured_evaluation._WATCHED  # calls before the first that is recorded


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop, self.last = (
            nn.Linear(8, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.5),
            nn.Linear(8, 3),
        )
        self.scale, self.calls = 1.0, 0

    def forward(self, x: torch.Tensor, gain: float = 1.0) -> dict[str, torch.Tensor]:
        out = self.last(self.drop(F.relu(self.norm(self.first(x))))) * self.scale * gain
        return {"logits": out, "best": out.argmax(dim=1)}


class Counting(Network):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        return super().forward(x)


class Reading(Network):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().forward(x if x.sum().item() > 0 else -x)


class Noisy(Network):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return super().forward(x + torch.randn_like(x))


def network(kind: type[Network] = Network) -> Network:
    torch.manual_seed(0)
    return kind().eval()


def captured() -> CapturedEvaluation:
    return CapturedEvaluation(TapedRecorder)


def batch(number: int, size: int = 8) -> torch.Tensor:
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(number))


def alike(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@pytest.fixture(autouse=True)
def steady_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_same_while_the_weights_are_trained(mode) -> None:
    model, own = network(), captured()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    for epoch in range(4):
        model.train()
        for number in range(3):
            optimizer.zero_grad()
            own.call(model, (batch(number),), {})["logits"].square().sum().backward()
            optimizer.step()
        model.eval()
        with mode():
            for number in range(10):
                out = own.call(model, (batch(number),), {})
                expected = model(batch(number))
                assert alike(out, expected) and out["logits"].is_inference() == expected["logits"].is_inference()
                kept.append((out["logits"], expected["logits"]))
        assert own.replays == 10 * (epoch + 1) - FIRST, own.refused
    assert all(torch.equal(*pair) for pair in kept), "what a script keeps must not be written over"


def test_shapes_that_change_run_as_they_are_and_those_that_stay_are_replayed() -> None:
    """As when a text is sampled: the window grows until it is full, and then slides over ever longer rows."""
    model, own = network(), captured()
    text = torch.randn(64, 8)
    with torch.no_grad():
        for end in range(1, 60):
            window = text[:end] if end < 20 else text[end - 20 : end]
            assert alike(own.call(model, (window,), {}), model(window))
        assert own.replays == 40 - FIRST
        rows = torch.randn(1, 90, 8)
        one = captured()
        steps = nn.Sequential(nn.Flatten(), nn.Linear(80, 2)).eval()
        for end in range(11, 30):
            seen = rows[:, :end][:, -10:]
            assert torch.equal(one.call(steps, (seen,), {}), steps(seen))
    assert one.replays == 19 - FIRST, "the strides of a dimension of one say nothing"


def test_keywords_and_numbers_are_part_of_the_kind() -> None:
    model, own = network(), captured()
    with torch.no_grad():
        for number in range(30):
            gain = {"gain": 2.0} if number % 15 > 6 else {}
            assert alike(own.call(model, (batch(number),), gain), model(batch(number), **gain))
    assert own.replays > 10


CHANGES = {
    "an attribute": lambda model: setattr(model, "scale", model.scale + 1),
    "a weight elsewhere": lambda model: setattr(model.last, "weight", nn.Parameter(model.last.weight * 2)),
    "a part": lambda model: setattr(model, "last", nn.Linear(8, 3)),
    "a weight in place": lambda model: model.last.weight.data.mul_(2),
    "a buffer in place": lambda model: model.norm.running_mean.add_(1),
    "a hook": lambda model: model.norm.register_forward_hook(lambda module, args, out: out + 1),
    "training mode of a part": lambda model: model.drop.train(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_module_that_changes(change) -> None:
    model, own = network(), captured()
    with torch.no_grad():
        for number in range(24):
            if number == 10:
                assert own.replays > 2
                change(model)
            random = torch.get_rng_state()
            out = own.call(model, (batch(number),), {})
            torch.set_rng_state(random)
            assert alike(out, model(batch(number)))


@pytest.mark.parametrize("kind", [Counting, Reading])
def test_what_a_graph_could_not_repeat_is_left_alone(kind) -> None:
    model, other, own = network(kind), network(kind), captured()
    with torch.no_grad():
        for number in range(12):
            assert alike(own.call(model, (batch(number),), {}), other(batch(number)))
    assert own.replays == 0 and model.calls == other.calls


def test_random_numbers_go_on_as_they_would() -> None:
    model, other, states = network(Noisy), network(Noisy), []
    for one, call in ((model, captured().call), (other, lambda root, args, kwargs: root(*args))):
        torch.manual_seed(1)
        with torch.no_grad():
            outs = [call(one, (batch(number),), {}) for number in range(12)]
        states.append((outs, torch.get_rng_state()))
    (ours, mine), (theirs, wanted) = states
    assert torch.equal(mine, wanted)
    assert all(map(alike, ours[:FIRST], theirs[:FIRST]))


def test_calls_with_gradients_or_in_training_mode_are_not_touched() -> None:
    model, own = network(), captured()
    for is_training, mode in ((True, torch.no_grad), (True, nullcontext), (False, nullcontext)):
        model.train(is_training)
        with mode():
            for number in range(8):
                own.call(model, (batch(number),), {})
    assert own.replays == 0 and own.refused == ""


def test_a_replay_that_is_not_the_same_is_seen_and_ended() -> None:
    class Wrong(TapedRecorder):
        def record(self, update, device):
            made = []
            replay = super().record(lambda: made.append(update()), device)

            def play() -> None:
                replay()
                made[0][0].add_(1)

            return play

    model, own = network(), CapturedEvaluation(Wrong)
    with torch.no_grad():
        for number in range(12):
            assert alike(own.call(model, (batch(number),), {}), model(batch(number)))
    assert "not what the plain call gives" in own.refused
