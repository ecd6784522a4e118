"""Calls without gradients are replayed where they are alike, and are the module's own otherwise; nobody can tell. A
tape stands for the device, which like a graph knows numbers and addresses only."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from contextvars import ContextVar

import pytest
import torch
from taped_recorder import TapedRecorder
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

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
    "a weight turned": lambda model: setattr(model.first.weight, "data", model.first.weight.data.t()),
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


class Filling(Network):
    def forward(self, batch: dict[str, torch.Tensor]) -> None:
        batch["logits"] = super().forward(batch["x"])["logits"]


def test_a_dict_that_is_given_is_the_scripts_own() -> None:
    model, other, own = network(Filling), network(Filling), captured()
    with torch.no_grad():
        for number in range(12):
            mine, theirs = {"x": batch(number)}, {"x": batch(number)}
            assert own.call(model, (mine,), {}) is None is other(theirs)
            assert alike(mine, theirs)
    assert own.replays == 0


class Keeping(Network):
    """What it has seen so far, in a tensor that is neither parameter nor buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(8)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.mul_(0.9).add_(x.mean(dim=0))
        return super().forward(x + self.seen)


class KeepingByData(Network):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.data.mul_(0.9).add_(x.mean(dim=0))
        return super().forward(x + self.seen)


class Adapting(Network):
    """A batch norm that goes on learning in tests; neither its schema nor a version tells."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        norm = self.norm
        h = F.batch_norm(self.first(x), norm.running_mean, norm.running_var, norm.weight, norm.bias, training=True)
        return {"logits": self.last(h)}


@pytest.mark.parametrize("kind", [Keeping, KeepingByData, Adapting])
def test_what_a_module_keeps_is_changed_once_in_each_call(kind) -> None:
    model, other, own = network(kind), network(kind), captured()
    with torch.no_grad():
        for number in range(12):
            assert alike(own.call(model, (batch(number),), {}), other(batch(number)))
    assert alike(model.state_dict(), other.state_dict()) and own.replays == 0


class Clamping(Network):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x.data.clamp_(min=0)
        return super().forward(x)


def test_an_input_that_is_changed_where_no_version_tells() -> None:
    model, own = network(Clamping), captured()
    with torch.no_grad():
        for number in range(12):
            x = batch(number)
            own.call(model, (x,), {})
            assert torch.equal(x, batch(number).clamp(min=0))


class Tabled(Network):
    """A table that is made when it is first wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.table is None:
            self.table = torch.arange(8.0)
        return super().forward(x + self.table)


def test_a_buffer_that_was_made_in_inference_mode() -> None:
    model, own = network(Tabled), captured()
    with torch.inference_mode():
        for number in range(12):
            assert alike(own.call(model, (batch(number),), {}), model(batch(number)))
    assert own.replays > 0


def test_outputs_lie_in_memory_as_they_would() -> None:
    model, own = nn.Conv2d(3, 4, 3).eval(), captured()
    with torch.no_grad():
        for number in range(12):
            x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(number))
            x = x.to(memory_format=torch.channels_last)
            out, expected = own.call(model, (x,), {}), model(x)
            assert torch.equal(out, expected) and out.stride() == expected.stride()
            assert out.permute(0, 2, 3, 1).view(-1, 4).shape == (72, 4)
    assert own.replays > 0


class Leaning(Network):
    """An energy, say, whose slope the script asks for although it only tests."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.enable_grad():
            return {"logits": self.first(x)}


def test_outputs_that_carry_gradients_do() -> None:
    model, own = network(Leaning), captured()
    with torch.no_grad():
        assert all(own.call(model, (batch(number),), {})["logits"].requires_grad for number in range(12))


class Turning(Network):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": torch.fft.fft(self.first(x)) * 1j}


def test_complex_outputs_are_compared_whole_and_in_silence() -> None:
    class Halved(TapedRecorder):
        def record(self, update, device):
            made = []
            replay = super().record(lambda: made.append(update()), device)

            def play() -> None:
                replay()
                made[0][0].imag.zero_()

            return play

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for own in (captured(), CapturedEvaluation(Halved)):
            model = network(Turning)
            for number in range(12):
                assert alike(own.call(model, (batch(number),), {}), model(batch(number)))
            assert bool(own.refused) is (own._new_recorder is Halved)


class Unfilled(TapedRecorder):
    """Nothing is carried out by recording it: what a recording makes is not there before the first replay."""

    def record(self, update, device):
        replay = super().record(update, device)
        for tape in self._tapes:
            for *_, out in tape._done:
                for one in torch.utils._pytree.tree_leaves(out):
                    if isinstance(one, torch.Tensor) and one.is_floating_point():
                        one.fill_(float("nan"))
        return replay


class Casting(Network):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.first(x)}


def test_casts_of_weights_that_a_recording_made_are_handed_to_nobody() -> None:
    """An autocast that a forward is decorated with keeps them until the script's own round it ends."""
    model, own = network(Casting), CapturedEvaluation(Unfilled)
    with torch.no_grad():
        for number in range(12):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = own.call(model, (batch(number),), {})
            assert alike(out, model(batch(number)))
    assert own.replays > 2 and own.refused == ""


def test_whoever_looks_at_each_function_sees_the_modules_own() -> None:
    class Counted(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            names.append(function.__name__)
            return function(*args, **(kwargs or {}))

    model, own, names = network(), captured(), []
    with torch.no_grad():
        for number in range(8):
            own.call(model, (batch(number),), {})
        assert own.replays > 0
        with Counted():
            own.call(model, (batch(0),), {})
            mine = list(names)
            names.clear()
            model(batch(0))
    assert [name for name in names if name in ("linear", "batch_norm")] == ["linear", "batch_norm", "linear"]
    assert [name for name in mine if name in ("linear", "batch_norm")] == ["linear", "batch_norm", "linear"]
    assert "copy_" not in mine and "clone" not in mine
    replays = own.replays
    with torch.no_grad(), torch.device("cpu"):
        own.call(model, (batch(0),), {})
    assert own.replays == replays + 1, "a default device is nobody who looks"


def test_derivatives_that_are_carried_forward_come_along() -> None:
    model, own = network(), captured()
    with torch.no_grad():
        for number in range(8):
            own.call(model, (batch(number),), {})
        with forward_ad.dual_level():
            x = forward_ad.make_dual(batch(0), batch(1))
            ours, theirs = (forward_ad.unpack_dual(one["logits"]) for one in (own.call(model, (x,), {}), model(x)))
            assert own.replays > 0 and torch.equal(ours.primal, theirs.primal)
            assert (ours.tangent is None) is (theirs.tangent is None)


WARMTH = ContextVar("warmth", default=1.0)


class Warm(Network):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.first(x) * WARMTH.get()}


def test_what_each_context_has_of_its_own() -> None:
    model, own = network(Warm), captured()
    with torch.no_grad():
        for number in range(24):
            before = WARMTH.set(1.0 + number // 12)
            assert alike(own.call(model, (batch(number),), {}), model(batch(number)))
            WARMTH.reset(before)
