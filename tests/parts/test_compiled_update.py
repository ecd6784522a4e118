"""A compiled update is the plain one, done once; whatever goes wrong with the compiler, the script's own result stands.
Mostly with the compiler's last part left out: what dynamo traces runs as it is, which takes no seconds."""

from __future__ import annotations

import copy
import gc
import shutil
import threading
import weakref

import numpy
import pytest
import torch
from played_recorder import PlayedRecorder
from torch import nn

from hotlap.catalogue import fused_optimizer
from hotlap.parts import captured_update, compiled_form, compiled_update
from hotlap.parts.captured_update import CapturedUpdate, replayed
from hotlap.parts.compilable import interpreted
from hotlap.parts.compiled_form import CompiledForm
from hotlap.parts.compiled_update import CompiledUpdate
from hotlap.parts.update_grounds import KINDS as RECORDED_KINDS

KINDS = [
    (torch.optim.Adadelta, {"weight_decay": 0.1}),
    (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    (torch.optim.Adamax, {"foreach": False}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.ASGD, {"foreach": True}),
    (torch.optim.Rprop, {}),
]


def traced(function, fullgraph, dynamic):
    return torch._dynamo.optimize("eager", nopython=fullgraph, dynamic=dynamic)(function)


class Counted:
    """Counts how often what it makes has run."""

    runs = 0

    def __call__(self, function, fullgraph, dynamic):
        made = traced(function, fullgraph, dynamic)

        def run(*given) -> None:
            made(*given)
            self.runs += 1

        return run


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def fill(model: nn.Module, number: int) -> None:
    """The gradients of step `number`, in a new place."""
    generator = torch.Generator().manual_seed(number)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator)


def pair(kind=torch.optim.Adadelta, compile=traced, **options):
    """The script's own training, and ours."""
    plain, model = network(), network()
    theirs, ours = (kind(one.parameters(), **{"lr": 0.01, **options}) for one in (plain, model))
    return (plain, theirs, None), (model, ours, CompiledUpdate(ours, CompiledForm(ours, compile=compile)))


def train(model, optimizer, own, steps=1, start=0, scheduler=None) -> None:
    for number in range(start, start + steps):
        fill(model, number)
        own.step(optimizer.step) if own else optimizer.step()
        if scheduler:
            scheduler.step()


def assert_same(first, second) -> None:
    """To the last bit, with their states."""
    for one, two in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert torch.equal(one, two)
    torch.testing.assert_close(first[1].state_dict(), second[1].state_dict(), rtol=0, atol=0)


def assert_close(first, second, rtol=1e-4) -> None:
    """Types and keys as they are, values within rounding."""
    for one, two in zip(first[0].parameters(), second[0].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=rtol, atol=1e-5)
    mine, other = first[1].state_dict(), second[1].state_dict()
    assert mine["param_groups"] == other["param_groups"]
    assert [list(state) for state in mine["state"].values()] == [list(state) for state in other["state"].values()]
    torch.testing.assert_close(mine["state"], other["state"], rtol=rtol, atol=1e-5)


def test_the_kinds_are_those_that_are_recorded_and_have_no_kernel() -> None:
    kernels = {name.rpartition(".")[2] for name in fused_optimizer.OPTIMIZERS}
    assert set(compiled_form.KINDS) == set(RECORDED_KINDS) - kernels


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_every_kind_trains_the_same_and_is_compiled_once(kind, options) -> None:
    theirs, ours = pair(kind, **options)
    for one in (theirs, ours):
        train(*one, steps=24, scheduler=torch.optim.lr_scheduler.ExponentialLR(one[1], 0.97))
    _, optimizer, own = ours
    assert own.refused == "" and own.replays == 24 - 1 - compiled_update._STEADY and own._form.graphs == 1
    assert type(optimizer.param_groups[0]["lr"]) is float and replayed(optimizer)
    assert_close(ours, theirs)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_in_earnest_with_two_groups() -> None:
    def made(model):
        groups = [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[2].parameters(), "weight_decay": 0.1}]
        optimizer = torch.optim.Adadelta(groups, lr=0.1)
        return optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)

    plain, model = network(), network()
    (theirs, their_schedule), (ours, our_schedule) = made(plain), made(model)
    own = CompiledUpdate(ours)
    train(plain, theirs, None, 20, scheduler=their_schedule)
    train(model, ours, own, 19, scheduler=our_schedule)
    version = model[0].weight._version
    train(model, ours, own, 1, 19, scheduler=our_schedule)
    assert own.refused == "" and own.replays == 16 and own._form.graphs == 1
    assert model[0].weight._version > version, "autograd's guard against weights that change too early"
    kept = [value for state in ours.state.values() for value in state.values()]
    assert not any(map(vars, [*model.parameters(), *kept])), "a mark of the compiler's would go into checkpoints"
    assert_close((model, ours), (plain, theirs), rtol=1e-5)


@pytest.mark.parametrize("change", ["weight", "state", "group", "frozen", "loaded", "emptied", "decay"])
def test_what_the_script_changes_on_the_way(change: str) -> None:
    theirs, ours = pair()
    extra = []
    for model, optimizer, own in (theirs, ours):
        fresh = copy.deepcopy(optimizer.state_dict())
        train(model, optimizer, own, 8)
        if change == "weight":
            model[0].weight.data = model[0].weight.data.clone() * 2
        elif change == "state":
            optimizer.state[model[0].weight]["square_avg"] = torch.ones_like(model[0].weight)
        elif change == "group":
            extra.append(nn.Parameter(torch.ones(3)))
            extra[-1].grad = torch.ones(3)
            optimizer.add_param_group({"params": [extra[-1]], "lr": 0.5})
        elif change in ("loaded", "emptied"):
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict() if change == "loaded" else fresh))
        elif change == "decay":
            optimizer.param_groups[0]["weight_decay"] = 0.5
        for number in range(8, 20):
            fill(model, number)
            if change == "frozen" and number < 10:
                model[0].weight.grad = None
            own.step(optimizer.step) if own else optimizer.step()
    own = ours[2]
    assert own.refused == "" and own.replays >= 12, "and compiled code did it again"
    assert own._form.graphs == (2 if change in ("group", "decay") else 1), "only what is another update is made anew"
    assert not extra or torch.allclose(*extra)
    assert_close(ours, theirs)


def test_a_state_put_back_in_every_step_compiles_nothing() -> None:
    theirs, ours = pair()
    train(*theirs, steps=8), train(*ours, steps=8)
    for number in range(8, 20):
        ours[1].load_state_dict(copy.deepcopy(theirs[1].state_dict()))
        train(*theirs, start=number), train(*ours, start=number)
    assert ours[2].replays == 16 and ours[2]._form.graphs == 1
    assert_close(ours, theirs)


class _Failing:
    """Stands for a compiler. What it makes has done `deeds` to the first list of tensors when it fails, if it does."""

    def __init__(self, deeds, error: Exception | None) -> None:
        self.deeds, self.error, self.calls = deeds, error, 0

    def __call__(self, function, fullgraph, dynamic):
        def run(update, calls) -> None:
            self.calls += 1
            for lists, numbers in calls:
                self.deeds(update, lists, {**numbers, "capturable": False, "lr": float(numbers["lr"])})
            if self.error:
                raise self.error

        return run


def half(update, lists, numbers) -> None:
    update(*lists, **numbers)
    lists[0][0].add_(1)


@pytest.mark.parametrize("deeds", [lambda *given: None, half])
@pytest.mark.parametrize("error", [RuntimeError("no compiler found\nat all"), torch._dynamo.exc.Unsupported("no")])
def test_a_compiler_that_fails_leaves_the_update_to_torch(deeds, error) -> None:
    theirs, ours = pair(compile=(compiler := _Failing(deeds, error)))
    train(*theirs, steps=10), train(*ours, steps=10)
    reason = ours[2].refused
    assert reason.startswith(f"the update cannot be compiled: {type(error).__name__}: no") and "\n" not in reason
    assert compiler.calls == 1 and ours[2].replays == 0
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    "deeds", [lambda *given: None, half, lambda u, lists, n: u(*lists, **{**n, "lr": n["lr"] * 1.1})]
)
def test_code_that_does_something_else_is_not_trusted(deeds) -> None:
    theirs, ours = pair(compile=_Failing(deeds, None))
    train(*theirs, steps=10), train(*ours, steps=10)
    assert "not the same update" in ours[2].refused and ours[2].replays == 0
    assert_same(ours, theirs)


def other_rounding(update, lists, numbers) -> None:
    update(*lists, **numbers)
    for weight in lists[0]:
        weight.mul_(1 + 1e-7)


def test_where_weights_hardly_change_rounding_is_no_difference() -> None:
    _, (model, optimizer, own) = pair(lr=1e-9, compile=_Failing(other_rounding, None))
    train(model, optimizer, own, 5)
    assert own.refused == "" and own._form.is_proven


def not_a_number(update, lists, numbers) -> None:
    update(*lists, **numbers)
    lists[0][1].fill_(float("nan"))


def test_code_that_makes_what_is_no_number_is_not_trusted() -> None:
    theirs, ours = pair(compile=_Failing(not_a_number, None))
    train(*theirs, steps=10), train(*ours, steps=10)
    assert "not the same update" in ours[2].refused
    assert_same(ours, theirs)


def test_what_overflows_proves_nothing() -> None:
    _, (model, optimizer, own) = pair(compile=(compiler := _Failing(half, None)))
    for number in range(10):
        fill(model, number)
        if number > 2:
            model[0].weight.grad.fill_(float("inf"))
        own.step(optimizer.step)
    assert compiler.calls > 1 and own.replays == 0 and own.refused == ""


class _WrongInItsSecond:
    """A compiler whose second code does more than it should."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, function, fullgraph, dynamic):
        def backend(graph, inputs):
            self.made += 1
            return graph if self.made == 1 else lambda *given: (graph(*given), given[-1].mul_(1.5))[0]

        return torch._dynamo.optimize(backend, nopython=fullgraph, dynamic=dynamic)(function)


def test_code_that_was_made_while_all_overflowed_is_not_used_before_it_is_compared() -> None:
    theirs, ours = pair(compile=(compiler := _WrongInItsSecond()))
    for model, optimizer, own in (theirs, ours):
        train(model, optimizer, own, 8)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        for number in range(8, 20):
            fill(model, number)
            before = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in model.parameters()]
            if number < 12:
                model[0].weight.grad.fill_(float("inf"))
            own.step(optimizer.step) if own else optimizer.step()
            if number < 12:  # the script mends what overflowed
                optimizer.load_state_dict(before[0])
                for p, value in zip(model.parameters(), before[1], strict=True):
                    p.data.copy_(value)
    assert compiler.made == 2 and "not the same update" in ours[2].refused and ours[2].replays == 4
    assert_close(ours, theirs)


def test_updates_in_several_threads_leave_the_compiler_as_it_was() -> None:
    ones = [pair()[1] for _ in range(3)]
    for one in ones:
        train(*one, steps=8)
    workers = [threading.Thread(target=train, args=one, kwargs={"steps": 300, "start": 8}) for one in ones]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [own.replays for _, _, own in ones] == [304] * 3
    assert torch._dynamo.eval_frame._stance.stance == "default"


@pytest.mark.parametrize("how", ["as it is", "wrapped"])
def test_an_error_of_a_signal_handler_amid_compiling_is_the_scripts(how: str, told_to_leave) -> None:
    def deeds(*given) -> None:
        half(*given)
        try:
            told_to_leave()
        except Exception as error:
            if how == "wrapped":
                raise RuntimeError("the backend failed") from error
            raise

    theirs, ours = pair(compile=_Failing(deeds, None))
    train(*theirs, steps=3), train(*ours, steps=3)
    with pytest.raises(Exception, match="save and leave"):
        train(*ours, start=3)
    assert_same(ours, theirs)


@pytest.mark.parametrize("rate", [numpy.array(0.01), numpy.float32(0.01), "0.01"])
def test_a_learning_rate_of_another_kind_is_torchs_affair(rate) -> None:
    endings = []
    for model, optimizer, own in pair():
        ending = None
        try:
            train(model, optimizer, own, 6)
            optimizer.param_groups[0]["lr"] = rate
            train(model, optimizer, own, 4, 6)
        except Exception as error:
            ending = type(error), str(error)
        endings.append((ending, model[0].weight.detach().clone()))
    assert endings[0][0] == endings[1][0]
    torch.testing.assert_close(endings[0][1], endings[1][1])


def test_kinds_that_count_leave_double_precision_alone() -> None:
    for kind, _ in KINDS:
        weights = [nn.Parameter(torch.ones(2, 2, dtype=torch.float64))]
        assert bool(CompiledForm(kind(weights)).refused) is (
            kind in (torch.optim.NAdam, torch.optim.Adamax, torch.optim.ASGD)
        )


def test_want_of_memory(monkeypatch) -> None:
    theirs, ours = pair()
    train(*theirs, steps=10), train(*ours, steps=3)
    with monkeypatch.context() as context:
        context.setattr(torch.Tensor, "clone", lambda self: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
        train(*ours, start=3)
    train(*ours, steps=6, start=4)
    assert "no memory" in ours[2].refused
    assert_same(ours, theirs)


def test_an_error_of_the_update_itself_is_the_scripts() -> None:
    _, (model, optimizer, own) = pair()
    train(model, optimizer, own, 3)

    def broken() -> None:
        raise KeyError("of the script")

    before = model[0].weight.clone()
    with pytest.raises(KeyError, match="of the script"):
        own.step(broken)
    assert torch.equal(model[0].weight, before)


def test_settings_that_change_in_every_step_are_never_compiled() -> None:
    theirs, ours = pair()
    for number in range(40):
        for model, optimizer, own in (theirs, ours):
            optimizer.param_groups[0]["rho"] = 0.9 - number / 100
            train(model, optimizer, own, start=number)
    assert ours[2].refused == "updates never come the same way three times" and ours[2]._form.graphs == 0
    assert_same(ours, theirs)


def test_settings_that_change_again_and_again_are_given_up() -> None:
    theirs, ours = pair()
    for number in range(60):
        for model, optimizer, own in (theirs, ours):
            optimizer.param_groups[0]["rho"] = 0.9 - number // 8 / 100
            train(model, optimizer, own, start=number)
    assert "again and again" in ours[2].refused and ours[2]._form.graphs == compiled_form._VARIANTS + 1
    assert ours[2].replays > 8
    assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.AdamW(p), "has a fused kernel"),
        (lambda p: torch.optim.LBFGS(p), "decides on the host"),
        (lambda p: torch.optim.RAdam(p), "decides on the host"),
        (lambda p: torch.optim.RMSprop(p, differentiable=True), "differentiable"),
        (lambda p: torch.optim.RMSprop(p, lr=torch.tensor(0.1)), "in tensors"),
    ],
)
def test_what_is_refused_from_the_start(make, reason: str) -> None:
    optimizer = make(network().parameters())
    assert reason in CompiledUpdate(optimizer).refused
    assert reason in CapturedUpdate(optimizer, Recorder(), CompiledForm(optimizer)).refused


@pytest.mark.parametrize("what", ["sparse", "complex", "closure", "tensor", "settings", "device"])
def test_what_is_found_out_on_the_way(what: str) -> None:
    dtype = torch.complex64 if what == "complex" else torch.float32
    weight = nn.Parameter(torch.ones(3, 3, dtype=dtype, device="meta" if what == "device" else "cpu"))
    optimizer = torch.optim.RMSprop([{"params": [weight], "tags": ["a"]}] if what == "settings" else [weight])
    own = CompiledUpdate(optimizer, CompiledForm(optimizer, compile=traced))
    weight.grad = torch.ones_like(weight).to_sparse() if what == "sparse" else torch.ones_like(weight)
    if what == "tensor":
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    steps = []
    for _ in range(compiled_update._PATIENCE):
        own.step(lambda: steps.append(1), has_closure=what == "closure")
    words = {"settings": "the same way", "device": "main memory"}
    assert words.get(what, what) in own.refused and own._form.graphs == 0
    assert len(steps) == compiled_update._PATIENCE


def test_nothing_compiled_runs_where_somebody_looks_at_each_operation() -> None:
    theirs, ours = pair()
    train(*theirs, steps=8), train(*ours, steps=8)
    with interpreted():
        train(*theirs, start=8), train(*ours, start=8)
    assert ours[2].replays == 4
    train(*theirs, start=9), train(*ours, start=9)
    assert ours[2].replays == 5 and ours[2].refused == ""
    assert_close(ours, theirs)


def test_a_dropped_optimizer_leaves_nothing_alive() -> None:
    _, (model, optimizer, own) = pair()
    train(model, optimizer, own, 8)
    assert own.replays == 4
    weight = weakref.ref(model[0].weight)
    del model, optimizer, _
    gc.collect()
    assert weight() is None


def test_undone_in_the_middle() -> None:
    theirs, ours = pair()
    train(*theirs, steps=12), train(*ours, steps=8)
    ours[2].undo()
    train(*ours, steps=4, start=8)
    assert ours[2].replays == 4 and not replayed(ours[1])
    assert_close(ours, theirs)


# Recorded --------------------------------------------------------------------------------------------------------


class Recorder(PlayedRecorder):
    """Numbers of a class of their own are not traced: these stay torch's."""

    def scalar(self, value, device):
        return value.detach().clone() if isinstance(value, torch.Tensor) else super().scalar(value, device)


def recorded(kind=torch.optim.Adadelta, compile=traced, **options):
    plain, model = network(), network()
    theirs, ours = (kind(one.parameters(), lr=0.01, **options) for one in (plain, model))
    for p in (*plain.parameters(), *model.parameters()):
        p.grad = torch.zeros_like(p)
    form = CompiledForm(ours, compile=compile)
    return (plain, theirs, None), (model, ours, CapturedUpdate(ours, recorder := Recorder(ours), form)), form, recorder


def refill(model, optimizer, own, steps, start=0, scheduler=None) -> None:
    """Gradients stay where they are."""
    for number in range(start, start + steps):
        generator = torch.Generator().manual_seed(number)
        for p in model.parameters():
            p.grad.copy_(torch.randn(p.shape, generator=generator))
        own.step(optimizer.step) if own else optimizer.step()
        if scheduler:
            scheduler.step()


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_recording_holds_the_compiled_update(kind, options) -> None:
    theirs, ours, form, recorder = recorded(kind, counted := Counted(), **options)
    for one in (theirs, ours):
        refill(*one, 24, scheduler=torch.optim.lr_scheduler.ExponentialLR(one[1], 0.97))
    assert (
        ours[2].refused == ""
        and ours[2].replays == 24 - captured_update._STEADY
        and recorder.recorded == form.graphs == 1
    )
    assert counted.runs == ours[2].replays + 1, "each replay, and the first, which was held against the plain update"
    assert type(ours[1].param_groups[0]["lr"]) is float and not ours[1].param_groups[0]["capturable"]
    assert_close(ours, theirs)


def test_a_state_put_back_in_every_step_is_still_replayed() -> None:
    theirs, ours, form, _ = recorded()
    refill(*theirs, 8), refill(*ours, 8)
    for number in range(8, 40):
        ours[1].load_state_dict(copy.deepcopy(theirs[1].state_dict()))
        refill(*theirs, 1, number), refill(*ours, 1, number)
    assert ours[2].replays == 40 - captured_update._STEADY and form.graphs == 1
    assert_close(ours, theirs)


def test_another_manner_is_proven_and_recorded_anew() -> None:
    theirs, ours, form, recorder = recorded()
    for model, optimizer, own in (theirs, ours):
        refill(model, optimizer, own, 8)
        optimizer.param_groups[0]["weight_decay"] = 0.5
        refill(model, optimizer, own, 12, 8)
    assert form.graphs == recorder.recorded == 2 and ours[2].replays == 20 - 2 * captured_update._STEADY
    assert_close(ours, theirs)


@pytest.mark.parametrize("deeds", [half, lambda *given: None])
@pytest.mark.parametrize("error", [RuntimeError("no compiler found\nat all"), None])
def test_a_form_that_fails_is_never_recorded(deeds, error) -> None:
    theirs, ours, _, recorder = recorded(compile=_Failing(deeds, error))
    refill(*theirs, 10), refill(*ours, 10)
    assert ("cannot be compiled" if error else "not the same update") in ours[2].refused
    assert recorder.recorded == ours[2].replays == 0
    assert_same(ours, theirs)
