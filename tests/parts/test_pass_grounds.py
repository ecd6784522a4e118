"""What a recorded pass rests on: whatever the script changes between two passes, no graph goes on as before. A recorder
that plays by doing again stands for the device, so a fault shows in what is recorded anew, kept or refused."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy
import pytest
import torch
from played_recorder import PlayedPasses
from taped_recorder import TapedRecorder
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hotlap.parts.graph_recorder import settings
from hotlap.parts.pass_grounds import Grounds
from hotlap.parts.pass_look import Look
from hotlap.parts.recorded_pass import RecordedPass

STEPS, MIDDLE = 24, 12


class Network(nn.Module):
    power = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bend, self.last = nn.Linear(4, 8), nn.LeakyReLU(0.1), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.bend(self.first(x))) * self.power


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 4, generator=generator), torch.randint(0, 2, (6,), generator=generator)


def passes(model: nn.Module, change: Callable = lambda: None, forward: Callable | None = None, recorder=None) -> tuple:
    """A training in whose middle something changes."""
    recorder = recorder or PlayedPasses(model)
    own, forward = RecordedPass(recorder), forward or model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        if number == MIDDLE:
            assert own.replays > 0 or own.refused
            change()

        def one_pass(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(forward(x), y)
            loss.backward()
            return loss

        own.run(one_pass, batch(number))
        optimizer.step()
    return own, recorder


def network() -> Network:
    torch.manual_seed(0)
    return Network()


# settings ------------------------------------------------------------------------------------------------------------


def on_the_class(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Network, "power", 2.0)


def before_the_class(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    model.power = 2.0


def of_a_layer_of_torchs(model: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    model.bend.negative_slope = 0.5


@pytest.mark.parametrize("change", [on_the_class, before_the_class, of_a_layer_of_torchs])
def test_a_setting_that_changes_ends_a_recording(change, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    own, recorder = passes(model, lambda: change(model, monkeypatch))
    assert recorder.recorded == 2 and own.refused == ""


@pytest.mark.parametrize("new", [torch.tensor([1.0, 2.0]), numpy.ones(2), torch.tensor(1.0), True])
def test_a_number_that_becomes_something_else(new: object) -> None:
    model, held = network(), SimpleNamespace(scale=1.0)
    own, recorder = passes(model, lambda: setattr(held, "scale", new), lambda x: model(x) * (type(held.scale) is float))
    assert recorder.recorded == 2 and own.refused == ""


def test_a_closure_of_a_function_that_it_calls() -> None:
    weight = 1.0

    def weighted(out: torch.Tensor) -> torch.Tensor:
        return out * weight

    def change() -> None:
        nonlocal weight
        weight = 3.0

    model = network()
    own, recorder = passes(model, change, lambda x: weighted(model(x)))
    assert recorder.recorded == 2 and own.refused == ""


def test_an_object_that_is_a_default() -> None:
    model, held = network(), SimpleNamespace(scale=1.0)

    def scaled(x: torch.Tensor, how: SimpleNamespace = held) -> torch.Tensor:
        return model(x) * how.scale

    own, recorder = passes(model, lambda: setattr(held, "scale", 2.0), scaled)
    assert recorder.recorded == 2 and own.refused == ""


class Weighing:
    def __init__(self) -> None:
        self.share = 1.0

    def __call__(self, model: Network, x: torch.Tensor) -> torch.Tensor:
        return model(x) * self.share

    def weighed(self, x: torch.Tensor) -> torch.Tensor:
        return self(self.model, x)


@pytest.mark.parametrize("way", ["method", "partial", "partial of a method", "another method"])
def test_an_object_behind_a_method_or_a_partial(way: str) -> None:
    model, held = network(), Weighing()
    held.model = model
    ways = {
        "method": held.weighed,
        "partial": functools.partial(weighed_by, weighing=held, model=model),
        "partial of a method": functools.partial(held.weighed),
        "another method": held.weighed,
    }
    box = SimpleNamespace(forward=ways[way])

    def change() -> None:
        if way != "another method":
            held.share = 2.0
        else:
            other = Weighing()
            other.model, other.share, box.forward = model, 2.0, other.weighed

    own, recorder = passes(model, change, lambda x: box.forward(x))
    assert recorder.recorded == 2 and own.refused == ""


def weighed_by(x: torch.Tensor, weighing: Weighing, model: Network) -> torch.Tensor:
    return weighing(model, x)


# what cannot be recorded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generator", [random.Random(0), numpy.random.default_rng(0)])
def test_a_generator_of_the_scripts_own(generator) -> None:
    model = network()
    own, recorder = passes(model, forward=lambda x: model(x) * generator.random())
    assert recorder.recorded == 0 and "random numbers on the host" in own.refused


def test_sparse_tensors_are_left_alone() -> None:
    model, neighbours = network(), torch.eye(6).to_sparse()
    own, recorder = passes(model, forward=lambda x: model(torch.sparse.mm(neighbours, x)))
    assert recorder.recorded == 0 and "sparse" in own.refused


def test_the_rate_as_a_part_of_the_loss() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for forward in (
        lambda x: model(x) * optimizer.param_groups[0]["lr"],
        lambda x: model(x) * schedule.get_last_lr()[0],
    ):
        own, recorder = passes(model, forward=forward)
        assert recorder.recorded == 0 and "learning rate" in own.refused


def test_a_number_in_main_memory_that_the_device_reads() -> None:
    """A kernel is given its value, which a graph has in it for good. A device that computes nothing stands for one."""
    number, x = torch.tensor(2.0), torch.ones(3, device="meta")

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * number

    def makes(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(2.0) * 3.0

    for function, is_refused in ((reads, True), (makes, False)):
        with Look("meta", [x], Grounds(function)) as look:
            function(x)
        assert ("main memory" in look.reason) is is_refused, look.reason


def test_a_weight_that_is_handed_on() -> None:
    model = network()
    own = RecordedPass(PlayedPasses(model))
    for number in range(STEPS):
        model.zero_grad()

        def one_pass(x, y):
            weight = model.last.weight
            F.cross_entropy(model(x), y).backward()
            return weight

        with torch.no_grad():
            own_weight = model.last.weight.clone()
        weight = own.run(one_pass, batch(number)) if number else model.last.weight
        with torch.no_grad():
            weight.mul_(0.5)
        assert torch.equal(model.last.weight, own_weight * 0.5), "what the script writes to is the weight itself"
    assert "weights" in own.refused


def test_a_weight_that_is_changed_without_a_trace() -> None:
    """The proof makes a pass twice, and what it wrote to weights is not put back."""
    model = network()

    def forward(x: torch.Tensor) -> torch.Tensor:
        model.last.weight.data.mul_(0.5)
        return model(x)

    own, recorder = passes(model, forward=forward)
    assert recorder.recorded == 0 and own.refused == "it changes its inputs or weights"


def test_calls_that_are_spread_over_devices() -> None:
    model = network()
    spread = nn.DataParallel(model)
    spread.device_ids = [0, 1]
    spread.forward = model.forward
    own, recorder = passes(spread)
    assert recorder.recorded == 0 and "several devices" in own.refused


@pytest.mark.parametrize("error", [TypeError("can't convert cuda tensor to numpy"), ValueError()])
def test_whatever_a_recording_raises_the_step_is_the_scripts(error: Exception, monkeypatch) -> None:
    model = network()
    monkeypatch.setattr(PlayedPasses, "record", lambda *args: (_ for _ in ()).throw(error))
    own, _ = passes(model)
    assert own.refused.startswith(f"it cannot be recorded: {type(error).__name__}")


# hooks and gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_that_is_hung_on_a_weight_later(register: str) -> None:
    model, calls = network(), []

    def change() -> None:
        getattr(model.last.weight, register)(lambda grad: calls.append(1))

    own, _ = passes(model, change)
    assert len(calls) == STEPS - MIDDLE and "hooks" in own.refused


@pytest.mark.parametrize("kept", ["grad", "grad.detach()", "grad.view(-1)", "grad.data"])
@pytest.mark.parametrize("clears_inside", [True, False])
@pytest.mark.parametrize("which", [0, -1])
def test_a_gradient_that_the_script_keeps_in_any_form(kept: str, clears_inside: bool, which: int) -> None:
    model, found = network(), []
    own = RecordedPass(PlayedPasses(model))
    for number in range(STEPS):
        if not clears_inside:
            model.zero_grad()

        def one_pass(x, y):
            if clears_inside:
                model.zero_grad()
            F.cross_entropy(model(x), y).backward()

        own.run(one_pass, batch(number))
        if number in (MIDDLE, MIDDLE + 3):
            one = eval(kept, {"grad": list(model.parameters())[which].grad})
            found.append((one, one.clone()))
    assert own.replays > 5 and all(torch.equal(one, value) for one, value in found)


def test_what_a_pass_clears_and_does_not_fill() -> None:
    """Two heads are trained in turns: the gradients of the other one must be gone when weights are updated."""

    def trained(is_recorded: bool) -> tuple[list[torch.Tensor], list[RecordedPass]]:
        torch.manual_seed(0)
        heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        optimizer = torch.optim.SGD(heads.parameters(), lr=0.1)
        runs = [RecordedPass(PlayedPasses(heads)) for _ in heads]
        for number in range(2 * STEPS):
            which = number % 2
            head = heads[which]

            def one_pass(x, y, head=head):
                optimizer.zero_grad()
                F.cross_entropy(head(x), y).backward()

            runs[which].run(one_pass, batch(number)) if is_recorded else one_pass(*batch(number))
            optimizer.step()
        return list(heads.parameters()), runs

    (theirs, _), (ours, runs) = trained(False), trained(True)
    assert all(map(torch.equal, theirs, ours))
    assert all(run.replays > 5 for run in runs), [run.refused for run in runs]


def test_a_group_that_is_added_to_the_optimizer_ends_a_recording() -> None:
    model, extra = network(), nn.Parameter(torch.ones(2))
    optimizer, recorder = torch.optim.SGD(model.parameters(), lr=0.1), PlayedPasses(model)
    own = RecordedPass(recorder)
    for number in range(STEPS):
        if number == MIDDLE:
            optimizer.add_param_group({"params": [extra]})
        extra.grad = torch.ones(2)

        def one_pass(x, y):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()

        own.run(one_pass, batch(number))
        assert (extra.grad is None) is (number >= MIDDLE), "cleared as soon as the optimizer has it"
        optimizer.step()
    assert own.replays > 5


# who else is there ---------------------------------------------------------------------------------------------------


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.times += function is torch.ops.aten.addmm.default
        return function(*args, **(kwargs or {}))


class SilentTape(TapedRecorder):
    """Nobody sees its operations, either."""

    def record(self, update, device):
        play = super().record(update, device)

        def silently() -> None:
            with _disable_current_modes():
                play()

        return silently


def test_hooks_on_all_modules_see_every_call() -> None:
    model, seen = network(), []
    handles = []

    def change() -> None:
        handles.append(register_module_forward_hook(lambda module, *rest: seen.append(module)))

    try:
        passes(model, change, recorder=TapedRecorder())  # which calls no hooks, as a graph does not
    finally:
        handles[0].remove()
    assert seen.count(model) == STEPS - MIDDLE


def test_a_mode_that_counts_operations_counts_them_all() -> None:
    model, mode = network(), Counted()
    try:
        passes(model, mode.__enter__, recorder=SilentTape())
    finally:
        mode.__exit__(None, None, None)
    assert mode.times == 2 * (STEPS - MIDDLE)


def test_anomalies_are_still_found() -> None:
    model = network()
    try:
        own, _ = passes(model, lambda: torch.autograd.set_detect_anomaly(True))
    finally:
        torch.autograd.set_detect_anomaly(False)
    assert own.replays == MIDDLE - 6


@pytest.mark.parametrize("name", ["benchmark", "deterministic", "enabled"])
def test_how_convolutions_choose_their_kernels_is_a_part_of_it(name: str) -> None:
    model, was = network(), getattr(torch.backends.cudnn, name)
    try:
        _, recorder = passes(model, lambda: setattr(torch.backends.cudnn, name, not was))
    finally:
        setattr(torch.backends.cudnn, name, was)
    assert recorder.recorded == 2


def test_a_weight_that_lies_otherwise_at_the_same_place_is_another() -> None:
    layer = torch.nn.Linear(4, 4)

    def one_pass(x):
        return layer(x)

    grounds = Grounds(one_pass)
    assert grounds.hold(one_pass)
    layer.weight.data = layer.weight.data.t()
    assert not grounds.hold(one_pass)


def test_a_weight_of_which_a_part_is_left_is_another() -> None:
    layer = torch.nn.Linear(4, 4, bias=False)

    def one_pass(x):
        return layer(x)

    grounds = Grounds(one_pass)
    layer.weight.data = layer.weight.data[:2]
    assert not grounds.hold(one_pass)


def test_tied_weights_and_whoever_asks_are_no_change() -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight

    def one_pass(x):
        return second(first(x))

    grounds = Grounds(one_pass)
    for around in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu")):
        with around:
            assert grounds.hold(one_pass)
    second.weight.requires_grad_(False)
    assert not grounds.hold(one_pass)


@pytest.mark.parametrize("backend", [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn])
def test_another_precision_is_another_setting(backend) -> None:
    before, was = settings(), backend.fp32_precision
    try:
        backend.fp32_precision = "ieee" if was == "tf32" else "tf32"
        assert settings() != before
    finally:
        backend.fp32_precision = was
    assert settings() == before
