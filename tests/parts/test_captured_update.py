"""An update is replayed where everything lies where it lay, and is the script's own otherwise; nobody can tell.
A recorder that plays by doing again stands for the device, so that each rule can be shown here."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from played_recorder import Elsewhere, PlayedRecorder
from torch import nn
from torch.optim.sgd import sgd

from hotlap.catalogue import find, fused_optimizer
from hotlap.observe.facts import optimizer_facts
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts import captured_update, update_grounds
from hotlap.parts.captured_update import CapturedUpdate

KINDS = [
    (torch.optim.SGD, {}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.Adam, {"fused": True}),
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (torch.optim.Adamax, {}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.ASGD, {}),
    (torch.optim.Rprop, {}),
    (torch.optim.Adadelta, {}),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def fill(model: nn.Module, number: int, in_place: bool = True) -> None:
    """The gradients of step `number`, where the last ones were or in a new place."""
    generator = torch.Generator().manual_seed(number)
    for p in model.parameters():
        grad = torch.randn(p.shape, generator=generator)
        if in_place and p.grad is not None:
            p.grad.copy_(grad)
        else:
            p.grad = grad


def train(model, optimizer, steps, start=0, captured=None, scheduler=None, in_place=True) -> None:
    for number in range(start, start + steps):
        fill(model, number, in_place)
        captured.step(optimizer.step) if captured else optimizer.step()
        if scheduler:
            scheduler.step()


def same(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def assert_alike(mine, other) -> None:
    """Down to types, devices and values."""
    assert type(mine) is type(other)
    if isinstance(mine, dict):
        assert list(mine) == list(other)
        [assert_alike(mine[key], other[key]) for key in mine]
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(other)
        [assert_alike(one, two) for one, two in zip(mine, other, strict=True)]
    elif isinstance(mine, torch.Tensor):
        assert mine.dtype == other.dtype and mine.device == other.device and torch.equal(mine, other)
    else:
        assert mine == other


def pair(kind=torch.optim.AdamW, **options):
    """The script's own training, and ours: (model, optimizer), (model, optimizer, captured, recorder)."""
    plain, model = network(), network()
    ours = kind(model.parameters(), lr=0.01, **options)
    recorder = PlayedRecorder(ours)
    return (plain, kind(plain.parameters(), lr=0.01, **options)), (
        model,
        ours,
        CapturedUpdate(ours, recorder),
        recorder,
    )


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_every_kind_trains_the_same_with_a_schedule(kind, options) -> None:
    (plain, theirs), (model, ours, captured, _) = pair(kind, **options)
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
        train(network_, optimizer, 20, captured=own, scheduler=scheduler)
    assert same(plain, model)
    assert captured.refused == "" and captured.replays > 0
    assert isinstance(ours.param_groups[0]["lr"], float)
    assert_alike(ours.state_dict(), theirs.state_dict())


def test_a_changing_rate_needs_no_new_recording() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
        train(network_, optimizer, 20, captured=own, scheduler=scheduler)
    assert same(plain, model) and recorder.recorded == 1
    assert captured.replays == 20 - captured_update._STEADY


def test_a_rate_that_only_the_host_reads_is_recorded_for_each_value() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair(torch.optim.SGD)
    for number in range(24):
        for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
            optimizer.param_groups[0]["lr"] = 0.1 if number % 12 < 6 else 0.2
            train(network_, optimizer, 1, number, own)
    assert same(plain, model) and recorder.recorded == 2 and captured.replays >= 12


def test_gradients_in_new_places_are_updated_as_ever_and_given_up_in_the_end() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    kept = []  # so that no address comes back
    for number in range(captured_update._PATIENCE):
        for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
            train(network_, optimizer, 1, number, own, in_place=False)
            kept += [p.grad for p in network_.parameters()]
    assert same(plain, model) and captured.replays == recorder.recorded == 0
    assert "where they lay before" in captured.refused


def test_gradients_that_move_for_a_while() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        train(network_, optimizer, 8, captured=own)
        home = [p.grad for p in network_.parameters()]
        train(network_, optimizer, 2, 8, own, in_place=False)
        for p, grad in zip(network_.parameters(), home, strict=True):
            p.grad = grad
        train(network_, optimizer, 5, 10, own)
    assert same(plain, model) and recorder.recorded == 1
    assert captured.replays == 13 - captured_update._STEADY


def test_gradients_in_two_places_by_turns() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        places = [[torch.zeros_like(p) for p in network_.parameters()] for _ in range(2)]
        for number in range(16):
            for p, grad in zip(network_.parameters(), places[number % 2], strict=True):
                p.grad = grad
            train(network_, optimizer, 1, number, own)
    assert same(plain, model) and recorder.recorded == 2 and captured.replays >= 8


def test_a_gradient_laid_out_otherwise_in_the_same_place() -> None:
    weight, other = (nn.Parameter(torch.ones(3, 3)) for _ in range(2))
    theirs, ours = torch.optim.Adam([weight]), torch.optim.Adam([other])
    captured = CapturedUpdate(ours, recorder := PlayedRecorder(ours))
    places = {id(p): torch.zeros(3, 3) for p in (weight, other)}
    for number in range(12):
        for p, optimizer, own in ((weight, theirs, None), (other, ours, captured)):
            grad = places[id(p)].copy_(torch.arange(9.0).view(3, 3) + number)
            p.grad = grad.t() if number > 7 else grad
            own.step(optimizer.step) if own else optimizer.step()
    assert torch.equal(weight, other) and recorder.recorded == 2, "a recording knows one layout"


@pytest.mark.parametrize("change", ["weight_decay", "weight", "state", "group", "frozen"])
def test_what_the_script_changes_on_the_way(change: str) -> None:
    (plain, theirs), (model, ours, captured, _) = pair()
    extra = []
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        train(network_, optimizer, 8, captured=own)
        weight = network_[0].weight
        if change == "weight_decay":
            optimizer.param_groups[0]["weight_decay"] = 0.5
        elif change == "weight":
            weight.data = weight.data.clone() * 2
        elif change == "state":
            optimizer.state[weight]["exp_avg"] = torch.ones_like(weight)
        elif change == "group":
            extra.append(nn.Parameter(torch.ones(3)))
            extra[-1].grad = torch.ones(3)
            optimizer.add_param_group({"params": [extra[-1]], "lr": 0.5})
        else:
            weight.grad = None
        train(network_, optimizer, 8, 8, own)
    assert same(plain, model) and captured.replays > 5
    assert not extra or torch.equal(*extra)
    assert_alike(ours.state_dict(), theirs.state_dict())


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_checkpoint_goes_both_ways(kind, options) -> None:
    """Written while replaying and loaded by plain torch; written by plain torch and loaded while replaying."""
    (plain, theirs), (model, ours, captured, _) = pair(kind, **options)
    train(plain, theirs, 10), train(model, ours, 10, captured=captured)
    assert captured.replays > 0
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    saved = torch.load(file)
    assert_alike(saved, theirs.state_dict())
    assert not any(isinstance(v, Elsewhere) for state in saved["state"].values() for v in state.values())

    resumed = copy.deepcopy(plain)
    again = kind(resumed.parameters(), lr=0.7, **options)
    again.load_state_dict(saved)
    train(plain, theirs, 10, 10), train(resumed, again, 10, 10)
    assert same(plain, resumed)

    train(model, ours, 4, 90, captured)  # somewhere else, and back
    model.load_state_dict(resumed.state_dict()), ours.load_state_dict(again.state_dict())
    before = captured.replays
    train(plain, theirs, 10, 20), train(model, ours, 10, 20, captured)
    assert same(plain, model) and captured.replays > before
    assert_alike(ours.state_dict(), theirs.state_dict())


def test_a_state_put_back_in_every_step_is_still_replayed() -> None:
    """As the check of parity does it."""
    (plain, theirs), (model, ours, captured, _) = pair()
    train(plain, theirs, 8), train(model, ours, 8, captured=captured)
    for number in range(40):
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
        before = captured.replays
        train(plain, theirs, 1, number), train(model, ours, 1, number, captured)
        assert captured.replays == before + 1
    assert same(plain, model) and captured.refused == ""


def test_loading_an_empty_state_starts_anew() -> None:
    (plain, theirs), (model, ours, captured, _) = pair()
    fresh = copy.deepcopy(theirs.state_dict())
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        train(network_, optimizer, 8, captured=own)
        optimizer.load_state_dict(copy.deepcopy(fresh))
        train(network_, optimizer, 8, 8, own)
    assert same(plain, model) and captured.replays > 8


def test_undone_in_the_middle() -> None:
    (plain, theirs), (model, ours, captured, _) = pair()
    train(plain, theirs, 10), train(model, ours, 10, captured=captured)
    captured.undo()
    before = captured.replays
    train(plain, theirs, 5, 10), train(model, ours, 5, 10, captured)
    assert same(plain, model) and captured.replays == before
    assert not any(isinstance(v, Elsewhere) for state in ours.state.values() for v in state.values())
    assert not ours._optimizer_state_dict_post_hooks and not ours._optimizer_load_state_dict_pre_hooks


def test_an_error_of_a_signal_handler_amid_recording_is_the_scripts(told_to_leave) -> None:
    _, (model, ours, captured, recorder) = pair()
    recorder.record = told_to_leave
    with pytest.raises(Exception, match="save and leave"):
        train(model, ours, 10, captured=captured)
    assert captured.refused == ""


def test_a_recording_that_fails_leaves_the_step_to_torch() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    recorder.error = "operation not permitted when stream is capturing\nmore"
    train(plain, theirs, 10), train(model, ours, 10, captured=captured)
    assert same(plain, model) and captured.replays == 0
    assert (
        captured.refused
        == "the update cannot be recorded: RuntimeError: operation not permitted when stream is capturing"
    )
    assert_alike(ours.state_dict(), theirs.state_dict())


def test_settings_that_change_in_every_step_are_given_up() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    for number in range(40):
        for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
            optimizer.param_groups[0]["betas"] = (0.9 - number / 100, 0.99)
            train(network_, optimizer, 1, number, own)
    assert same(plain, model) and captured.refused and recorder.recorded == 0


def test_too_many_places_by_turns_are_given_up() -> None:
    (plain, theirs), (model, ours, captured, recorder) = pair()
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        places = [[torch.zeros_like(p) for p in network_.parameters()] for _ in range(10)]
        for number in range(120):
            for p, grad in zip(network_.parameters(), places[number % 10], strict=True):
                p.grad = grad
            train(network_, optimizer, 1, number, own)
    assert same(plain, model) and "too many places" in captured.refused
    assert recorder.recorded <= captured_update._TRIED


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.Adagrad(p), "decides on the host"),
        (lambda p: torch.optim.LBFGS(p), "decides on the host"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "differentiable"),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), "in tensors"),
    ],
)
def test_what_is_refused_from_the_start(make, reason: str) -> None:
    assert reason in CapturedUpdate(make(network().parameters()), PlayedRecorder()).refused


@pytest.mark.parametrize("what", ["sparse", "complex", "closure", "busy", "device", "settings", "tensor"])
def test_what_is_found_out_on_the_way(what: str) -> None:
    weight = nn.Parameter(torch.ones(3, 3, dtype=torch.complex64 if what == "complex" else torch.float32))
    given = [{"params": [weight], "tags": ["a"]}] if what == "settings" else [weight]
    optimizer = torch.optim.SGD(given, lr=0.1)
    captured = CapturedUpdate(optimizer, recorder := PlayedRecorder())
    recorder.is_busy = what == "busy"
    recorder.device = "cuda" if what == "device" else "cpu"
    weight.grad = torch.ones_like(weight).to_sparse() if what == "sparse" else torch.ones_like(weight)
    if what == "tensor":
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    for _ in range(captured_update._PATIENCE):
        captured.step(optimizer.step, has_closure=what == "closure")
    words = {"busy": "itself", "settings": "told apart", "closure": "closure", "tensor": "tensor"}
    assert words.get(what, what) in captured.refused and recorder.recorded == 0
    assert torch.allclose(weight, torch.full_like(weight, 1 - 0.1 * captured_update._PATIENCE), atol=1e-4)


@pytest.mark.parametrize("fused", [True, None])
def test_with_a_grad_scaler(fused) -> None:
    (plain, theirs), (model, ours, captured, _) = pair(fused=fused)
    for network_, optimizer, own in ((plain, theirs, None), (model, ours, captured)):
        if own:
            step = optimizer.step
            optimizer.step = lambda own=own, step=step: own.step(step)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=4)
        for number in range(16):
            scale = scaler.scale(torch.ones(()))  # a scaler that never scaled does not step
            fill(network_, number)
            for p in network_.parameters():
                p.grad.mul_(scale)
            if number == 9:
                network_[0].weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
    assert same(plain, model) and captured.replays > 4
    assert not hasattr(ours, "found_inf") or ours.found_inf is None


def test_autograd_still_notices_weights_that_changed_too_early() -> None:
    _, (model, ours, captured, _) = pair()
    train(model, ours, 8, captured=captured)
    version = model[0].weight._version
    for recording in captured._graphs.values():
        recording.replay = lambda: None  # a graph writes without autograd's knowledge
    train(model, ours, 1, 8, captured)
    assert model[0].weight._version > version


def test_a_dropped_optimizer_leaves_nothing_alive() -> None:
    _, (model, ours, captured, recorder) = pair()
    train(model, ours, 8, captured=captured)
    weight = weakref.ref(model[0].weight)
    recorder.optimizer = None  # which a graph does not hold
    for recording in captured._graphs.values():
        recording.replay = lambda: None
    del model, ours, recording
    gc.collect()
    assert weight() is None


def test_the_same_kinds_in_the_technique() -> None:
    assert fused_optimizer.RECORDED == update_grounds.KINDS


# Through the technique -------------------------------------------------------------------------------------------


@pytest.fixture
def patch(monkeypatch):
    """The technique, applied with the recorder that needs no device."""
    monkeypatch.setattr(captured_update, "GraphRecorder", PlayedRecorder)
    patch = Patch(Joints(), "it")
    find("fused-optimizer").apply(patch, {"kind": "captured"})
    yield patch
    patch.undo()


def close(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs)


def trained(kind, steps=12, **options):
    model = network()
    optimizer = kind(model.parameters(), lr=0.01, **options)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    train(model, optimizer, steps, scheduler=scheduler)
    return model, optimizer


class _ByItself(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        (group,) = self.param_groups
        (weight,) = group["params"]
        chosen = {name: group[name] for name in ("fused", "momentum", "lr", "dampening", "nesterov", "maximize")}
        sgd([weight], [weight.grad], [None], weight_decay=0.0, **chosen)


@pytest.mark.parametrize("kind", [torch.optim.SGD, _ByItself])
def test_a_gradient_set_by_hand_amid_replays_is_paired_with_the_right_weights(request, kind) -> None:
    """The kernel walks over memory and does not look at strides; a replay looks at them itself."""

    def trained():
        weight = nn.Parameter(torch.zeros(3, 5))
        optimizer = kind([weight], lr=0.1, momentum=0.9)
        kept = torch.zeros(3, 5)
        for number in range(24):
            values = torch.randn(3, 5, generator=torch.Generator().manual_seed(number))
            weight.grad = values.t().contiguous().t() if number % 8 == 7 else kept.copy_(values)
            optimizer.step()
        return weight.detach(), optimizer

    expected, _ = trained()
    request.getfixturevalue("patch")
    weight, optimizer = trained()
    assert captured_update.replayed(optimizer) == (kind is torch.optim.SGD), "a step of its own is not for us"
    assert optimizer.param_groups[0]["fused"] and torch.allclose(weight, expected, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_applied_under_a_scheduler(request, kind) -> None:
    plain, theirs = trained(kind)
    patch = request.getfixturevalue("patch")
    model, ours = trained(kind)
    facts = optimizer_facts(ours)
    assert facts.captured and not optimizer_facts(theirs).captured
    assert patch.joints.withdrawn == [] and close(plain, model)
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == other["param_groups"]
    for key, state in other["state"].items():
        for name, value in state.items():
            assert value is None or (type(mine["state"][key][name]) is torch.Tensor), name
    patch.undo()
    train(plain, theirs, 3, 50), train(model, ours, 3, 50)
    assert close(plain, model)


def test_hooks_run_round_a_replay(patch) -> None:
    model, calls = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    train(model, optimizer, 10)
    assert optimizer_facts(optimizer).captured and calls == ["before", "after"] * 10


def test_two_optimizers_one_of_which_cannot(patch) -> None:
    model, other = network(), network()
    one, two = torch.optim.Adam(model.parameters()), torch.optim.Adagrad(other.parameters())
    for number in range(40):
        train(model, one, 1, number), train(other, two, 1, number)
    assert optimizer_facts(one).captured and not optimizer_facts(two).captured
    assert patch.joints.withdrawn == []


def test_nothing_to_replay_is_told(patch) -> None:
    model, kept = network(), []
    optimizer = torch.optim.Adam(model.parameters())
    for number in range(40):
        train(model, optimizer, 1, number, in_place=False)
        kept += [p.grad for p in model.parameters()]
    assert patch.joints.withdrawn == ["it: gradients never come to lie where they lay before"]
    assert optimizer.param_groups[0]["fused"] is None


def test_an_optimizer_of_the_scripts_own_class(patch) -> None:
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            self.count = getattr(self, "count", 0) + 1
            return super().step(closure)

    model = network()
    optimizer = Own(model.parameters(), lr=0.1)
    train(model, optimizer, 10)
    assert optimizer.count == 10 and optimizer_facts(optimizer).captured


def test_a_closure_is_called(patch) -> None:
    model, calls = network(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(6):
        fill(model, number)
        optimizer.step(lambda: calls.append(1))
    assert len(calls) == 6 and not optimizer_facts(optimizer).captured


def test_undo_puts_back_the_step_of_each_class(patch) -> None:
    kinds = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD)
    patch.undo()
    for kind in kinds:
        kind(network().parameters(), lr=0.1)
    before = [vars(kind).get("step") for kind in kinds]
    find("fused-optimizer").apply(patch, {"kind": "captured"})
    for kind in kinds:
        kind(network().parameters(), lr=0.1)
    assert [vars(kind).get("step") for kind in kinds] != before
    patch.undo()
    assert [vars(kind).get("step") for kind in kinds] == before


@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (torch.optim.AdamW, {}, "betas"),
        (torch.optim.SGD, {"momentum": 0.9, "fused": True}, "momentum"),
        (torch.optim.SGD, {}, "lr"),
    ],
)
def test_a_setting_that_a_schedule_changes_is_named(kind, options: dict, name: str) -> None:
    """One cycle moves the momentum as well; and plain SGD does not read its rate from the device."""
    (plain, theirs), (model, ours, captured, recorder) = pair(kind, **options)
    cycles = "momentum" in options or kind is torch.optim.AdamW
    for one, other, own in ((plain, theirs, None), (model, ours, captured)):
        schedule = torch.optim.lr_scheduler.OneCycleLR(other, 0.1, total_steps=60, cycle_momentum=cycles)
        train(one, other, 40, captured=own, scheduler=schedule)
    assert same(plain, model) and recorder.recorded == 0
    assert captured.refused == f"{name} changes with each update, which a recording cannot follow"
