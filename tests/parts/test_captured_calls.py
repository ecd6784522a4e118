"""Calls are replayed where everything is as it was, and made plainly otherwise; the training is the same to the bit.
A recorder that plays by doing again stands for the device. Every trap is also shown sprung: with the guard taken out,
the same training comes out wrong."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable

import pytest
import torch
from played_graphs import PlayedGraphs
from torch import nn
from torch.utils.checkpoint import checkpoint

from hotlap.parts import captured_calls, recorded_call, replay_proof, steady_module
from hotlap.parts.captured_calls import CapturedCalls, replayed
from hotlap.parts.recorded_call import RecordedCall

STEPS = 14


class Tied(nn.Module):
    """One weight used twice, keyword arguments, more than one kind of output, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> dict:
        hidden = torch.tanh(self.first(x) * scale)
        out = self.second(hidden)
        return {"out": out, "best": out.argmax(1), "more": [hidden, None, "words", 3], "frozen": out.detach() + 1}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(2, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x.view(2, -1, 2))[0][-1])


class Halves(nn.Module):
    """Two outputs in one piece of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple:
        mean, spread = self.layer(x).chunk(2, dim=1)
        return mean, spread


class Checkpointed(nn.Module):
    """Goes through forward again in backward, running statistics included."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = layers()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(inplace=True), nn.Linear(8, 2))


def twins(kind: Callable[[], nn.Module] = layers) -> tuple[nn.Module, nn.Module, CapturedCalls, PlayedGraphs]:
    torch.manual_seed(0)
    plain = kind()
    model = copy.deepcopy(plain)
    graphs = PlayedGraphs(model)
    return plain, model, CapturedCalls(graphs), graphs


def loss_of(out) -> torch.Tensor:
    if isinstance(out, dict):
        out = out["out"]
    return sum(t.square().mean() for t in out) if isinstance(out, tuple) else out.square().mean()


def trained(model: nn.Module, call, steps: int = STEPS, accumulate: int = 1, size=lambda number: 6) -> list[float]:
    """Gradients are added up over so many batches."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for number in range(steps):
        loss = loss_of(call(torch.randn(size(number), 4)))
        loss.backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def same(first: nn.Module, second: nn.Module) -> bool:
    ones, others = first.state_dict(), second.state_dict()
    return all(torch.equal(ones[name], others[name]) for name in ones)


def through(captured: CapturedCalls, model: nn.Module):
    return lambda *args, **kwargs: captured.call(model, args, kwargs)


def warmed(model: nn.Module, captured: CapturedCalls, calls: int = 6, **kwargs) -> torch.Tensor:
    x = torch.randn(6, 4)
    for _ in range(calls):
        loss_of(captured.call(model, (x,), kwargs)).backward()
        model.zero_grad()
    return x


# the same training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [layers, Tied, Recurrent, Halves, Checkpointed])
def test_the_training_is_the_same(kind) -> None:
    plain, model, captured, graphs = twins(kind)
    losses, others = trained(plain, plain), trained(model, through(captured, model))
    assert losses == others and same(plain, model)
    assert captured.refused == "" and captured.replays == STEPS - captured_calls._STEADY and graphs.recorded == 2
    assert replayed(model) and not replayed(plain)


def test_a_smaller_last_batch_is_recorded_as_well_when_it_comes_often() -> None:
    plain, model, captured, graphs = twins()
    sizes = lambda number: 6 if number % 3 else 4  # noqa: E731
    losses, others = trained(plain, plain, 24, size=sizes), trained(model, through(captured, model), 24, size=sizes)
    assert losses == others and same(plain, model)
    assert captured.replays == 24 - 2 * captured_calls._STEADY and graphs.recorded == 4


def test_every_step_is_carried_out_once(monkeypatch) -> None:
    plain, model, captured, _ = twins()
    trained(plain, plain), trained(model, through(captured, model))
    assert int(model[1].num_batches_tracked) == STEPS
    plain, model, captured, _ = twins()
    monkeypatch.setattr(recorded_call.State, "put_back", lambda state: None)  # the comparison leaves its traces
    trained(plain, plain), trained(model, through(captured, model))
    assert int(model[1].num_batches_tracked) > STEPS and not same(plain, model)


def test_outputs_are_packed_as_ever_and_parameters_without_gradient_stay_so() -> None:
    plain, model, captured, _ = twins(Tied)
    x = warmed(model, captured, scale=0.5)
    theirs, ours = plain(x, scale=0.5), captured.call(model, (x,), {"scale": 0.5})
    assert captured.replays == 4 and list(ours) == list(theirs)
    assert torch.equal(ours["best"], theirs["best"]) and ours["more"][1:] == [None, "words", 3]
    assert not ours["frozen"].requires_grad and ours["more"][0].requires_grad
    loss_of(ours).backward(), loss_of(theirs).backward()
    assert model.unused.grad is None and torch.equal(model.first.weight.grad, plain.first.weight.grad)


def test_inputs_get_their_gradients() -> None:
    plain, model, captured, _ = twins()
    for number in range(8):
        x = torch.randn(6, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        torch.manual_seed(number)
        loss_of(plain(x)).backward()
        torch.manual_seed(number)
        loss_of(captured.call(model, (y,), {})).backward()
        assert torch.equal(x.grad, y.grad)
    assert captured.replays == 5


class Attends(nn.Module):
    """Takes another way where it is given one tensor three times."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2)
        self.ways: list[bool] = [False, False]

    def forward(self, query, key, value):
        self.ways[query is key] = True
        return self.inner(query, key, value, need_weights=False)[0]


def test_one_tensor_given_several_times_is_one_place() -> None:
    plain, model, captured, _ = twins(Attends)
    plain.ways, model.ways = [False, True], [False, True]
    for number in range(8):
        x = torch.randn(3, 4, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        plain(x, x, x).square().sum().backward()
        captured.call(model, (y, y, y), {}).square().sum().backward()
        assert torch.equal(x.grad, y.grad), number
    assert captured.replays == 5 and model.ways == [False, True]
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))


# what the script holds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sprung", [False, True])
def test_gradients_that_are_added_up(monkeypatch, is_sprung) -> None:
    if is_sprung:
        monkeypatch.setattr(recorded_call, "_holders", lambda tensor: 0)
    plain, model, captured, _ = twins()
    losses = trained(plain, plain, accumulate=2)
    others = trained(model, through(captured, model), accumulate=2)
    assert captured.replays > 8
    assert (losses == others and same(plain, model)) is not is_sprung


@pytest.mark.parametrize("is_sprung", [False, True])
def test_gradients_that_are_set_to_zero_where_they_are(monkeypatch, is_sprung) -> None:
    """They were lent, since there were none when they first came."""
    if is_sprung:
        monkeypatch.setattr(recorded_call, "_holders", lambda tensor: 0)
    plain, model, captured, _ = twins(lambda: nn.Linear(4, 2))
    xs = [torch.randn(6, 4) for _ in range(10)]
    for one, call in ((plain, plain), (model, through(captured, model))):
        for number, x in enumerate(xs):
            one.zero_grad(set_to_none=number < 6)
            loss_of(call(x)).backward()
            place = one.weight.grad.data_ptr()
            loss_of(call(2 * x)).backward()
            assert one.weight.grad.data_ptr() == place, "what is added up stays where it is"
    assert captured.replays == 17 and torch.equal(plain.weight.grad, model.weight.grad) is not is_sprung


@pytest.mark.parametrize("is_sprung", [False, True])
def test_gradients_that_the_script_keeps(monkeypatch, is_sprung) -> None:
    if is_sprung:
        monkeypatch.setattr(recorded_call, "_holders", lambda tensor: 0)
    _, model, captured, _ = twins()
    x = warmed(model, captured)
    loss_of(captured.call(model, (x,), {})).backward()
    kept, part = model[0].weight.grad, model[4].weight.grad.view(-1)[:3]
    values = kept.clone(), part.clone()
    model.zero_grad()
    loss_of(captured.call(model, (2 * x,), {})).backward()
    assert (torch.equal(kept, values[0]) and torch.equal(part, values[1])) is not is_sprung
    assert not torch.equal(model[0].weight.grad, values[0])


def test_gradients_are_lent_so_that_they_come_to_lie_where_they_lay() -> None:
    _, model, captured, _ = twins()
    places = []
    x = warmed(model, captured)
    for _ in range(3):
        loss_of(captured.call(model, (x,), {})).backward()
        places.append([p.grad.data_ptr() for p in model.parameters()])
        model.zero_grad()
    assert places[0] == places[1] == places[2]


@pytest.mark.parametrize("is_sprung", [False, True])
def test_outputs_are_the_scripts_to_keep(monkeypatch, is_sprung) -> None:
    _, model, captured, _ = twins()
    x = warmed(model, captured)
    if is_sprung:
        own, lent = RecordedCall.forward, lambda call: [t.detach() for t in call._outs]
        monkeypatch.setattr(RecordedCall, "forward", lambda call, tensors: own(call, tensors) and lent(call))
    first = captured.call(model, (x,), {}).detach()
    values = first.clone()
    captured.call(model, (3 * x,), {})
    assert torch.equal(first, values) is not is_sprung


# several forwards and backwards -------------------------------------------------------------------------------------


def both(call, x: torch.Tensor) -> torch.Tensor:
    return loss_of(call(x)) + 2 * loss_of(call(-3 * x))


def test_two_forwards_before_one_backward(monkeypatch) -> None:
    plain, model, captured, graphs = twins()
    for one, call in ((plain, plain), (model, through(captured, model))):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(10):
            both(call, torch.randn(6, 4)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert same(plain, model) and captured.replays > 10 and graphs.recorded == 4
    monkeypatch.setattr(RecordedCall, "is_free", True)
    with pytest.raises(RuntimeError, match="a second time"):  # a graph would silently use what the second one left
        both(through(captured, model), torch.randn(6, 4)).backward()


def test_more_forwards_than_are_recorded_run_plainly() -> None:
    plain, model, captured, graphs = twins(lambda: nn.Linear(4, 2))
    warmed(model, captured)
    xs = [torch.randn(6, 4) for _ in range(7)]
    sum(loss_of(captured.call(model, (x,), {})) for x in xs).backward()
    sum(loss_of(plain(x)) for x in xs).backward()
    assert graphs.recorded == 2 * captured_calls._PENDING
    torch.testing.assert_close(model.weight.grad, plain.weight.grad)


def test_a_forward_whose_backward_never_comes_frees_its_place() -> None:
    _, model, captured, graphs = twins()
    x = warmed(model, captured)
    for _ in range(5):
        captured.call(model, (x,), {})
    assert graphs.recorded == 2 and captured.replays == 8


def test_a_second_backward_that_nobody_foresaw() -> None:
    plain, model, captured, _ = twins()
    x = warmed(model, captured)
    plain.load_state_dict(model.state_dict())
    for one, call in ((plain, plain), (model, through(captured, model))):
        torch.manual_seed(5)
        loss = loss_of(call(x))
        torch.rand(3)  # the generator has moved on when the forward is repeated
        loss.backward(retain_graph=True)
        loss.backward()
        one.after = torch.rand(3)
    assert captured.replays == 4
    torch.testing.assert_close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
    assert torch.equal(plain.after, model.after) and same(plain, model)


def test_gradients_of_gradients_that_nobody_foresaw() -> None:
    plain, model, captured, _ = twins(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    x = torch.randn(6, 4, requires_grad=True)
    for _ in range(6):
        loss_of(captured.call(model, (x,), {})).backward()
        model.zero_grad()
    found = []
    for one, call in ((plain, plain), (model, through(captured, model))):
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append([one[0].weight.grad, one[2].weight.grad])
    assert captured.replays == 4
    torch.testing.assert_close(*found)


def test_what_is_differentiated_twice_or_gone_through_twice_is_not_recorded() -> None:
    _, model, captured, graphs = twins(lambda: nn.Linear(4, 1))
    for _ in range(8):
        x = torch.randn(6, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(captured.call(model, (x,), {}).sum(), x, create_graph=True)
        slope.square().sum().backward()
    _, other, again, _ = twins(lambda: nn.Linear(4, 1))
    for _ in range(8):
        loss = loss_of(again.call(other, (torch.randn(6, 4),), {}))
        loss.backward(retain_graph=True)
        loss.backward()
    assert graphs.recorded == captured.replays == again.replays == 0


def test_a_loss_of_other_outputs() -> None:
    plain, model, captured, _ = twins(Halves)
    x = warmed(model, captured)
    plain(x)[0].sum().backward()
    captured.call(model, (x,), {})[0].sum().backward()
    assert captured.replays == 4 and torch.equal(model.layer.weight.grad, plain.layer.weight.grad)


def test_a_backward_that_cannot_be_repeated_says_so() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.mean.mul_(0.9).add_(x.detach().mean(0))
            return self.layer(x - self.mean)

    plain, model, captured, _ = twins(Remembers)
    assert trained(plain, plain) == trained(model, through(captured, model)) and captured.replays
    loss = loss_of(captured.call(model, (torch.randn(6, 4),), {}))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="not recorded"):
        loss.backward()


# guards ----------------------------------------------------------------------------------------------------------


def freeze(model) -> None:
    model[0].weight.requires_grad_(False)


def move(model) -> None:
    model[4].weight.data = model[4].weight.data.clone() * 2


def drop_more(model) -> None:
    model[2].p = 0.9


def evaluate_a_part(model) -> None:
    model[1].eval()


def replace_a_part(model) -> None:
    torch.manual_seed(7)
    model[4] = nn.Linear(8, 2)


def hook(model) -> None:
    model[3].register_forward_hook(lambda module, args, out: out * 2)


CHANGES = [freeze, move, drop_more, evaluate_a_part, replace_a_part, hook]


@pytest.mark.parametrize("change", CHANGES)
def test_a_module_that_was_changed(change) -> None:
    plain, model, captured, _ = twins()
    x = warmed(model, captured)
    plain.load_state_dict(model.state_dict())
    change(plain), change(model)
    for one, call in ((plain, plain), (model, through(captured, model))):
        torch.manual_seed(5)
        one.zero_grad()
        loss_of(call(x)).backward()
    grads = [[p.grad for p in one.parameters()] for one in (plain, model)]
    alike = [(a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(*grads, strict=True)]
    assert all(alike) and same(plain, model) and captured.replays == 3


@pytest.mark.parametrize("change", CHANGES[1:])
def test_a_module_that_was_changed_and_nobody_looked(monkeypatch, change) -> None:
    _, model, captured, _ = twins()
    x = warmed(model, captured)
    change(model)
    monkeypatch.setattr(steady_module.SteadyModule, "holds", lambda steady: True)
    with pytest.raises(AssertionError, match="gone on as before"):
        captured.call(model, (x,), {})


def test_a_module_that_changed_once_is_recorded_again_and_one_that_keeps_changing_is_left_alone() -> None:
    _, model, captured, graphs = twins()
    warmed(model, captured)
    drop_more(model)
    warmed(model, captured)
    assert graphs.recorded == 4 and captured.replays == 6
    for number in range(12):
        model[2].p = 0.1 + number / 100
        warmed(model, captured, 1)
    assert "change between calls" in captured.refused


def test_a_hook_that_comes_for_a_while() -> None:
    _, model, captured, _ = twins()
    x = warmed(model, captured)
    handle = model[3].register_forward_hook(lambda module, args, out: None)
    captured.call(model, (x,), {})
    assert captured.replays == 3 and captured.refused == ""
    handle.remove()
    warmed(model, captured)
    assert captured.replays == 6


def test_settings_of_the_process_are_part_of_the_kind() -> None:
    _, model, captured, _ = twins(lambda: nn.Linear(4, 2))
    x = warmed(model, captured)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert captured.call(model, (x,), {}).dtype is torch.bfloat16
    assert captured.call(model, (x,), {}).dtype is torch.float32 and captured.replays == 4


def test_under_autocast_the_casts_are_part_of_the_recording() -> None:
    plain, model, captured, _ = twins(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))

    def narrow(call):
        def cast(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return call(x).float()

        return cast

    assert trained(plain, narrow(plain)) == trained(model, narrow(through(captured, model)))
    assert same(plain, model) and captured.replays == STEPS - 3


def test_evaluation_runs_as_it_is() -> None:
    _, model, captured, graphs = twins()
    x = warmed(model, captured)
    with torch.no_grad():
        captured.call(model, (x,), {})
    model.eval()
    captured.call(model, (x,), {})
    assert captured.replays == 3 and graphs.recorded == 2


def test_a_module_inside_another_ones_call_is_part_of_it() -> None:
    _, model, captured, _ = twins()
    inner = CapturedCalls(PlayedGraphs(model[0]))
    vars(model[0])["_compiled_call_impl"] = lambda x: inner.call(model[0], (x,), {}, _call_impl)
    vars(model[0])["_compiled_call_impl"].old = None
    warmed(model, captured)
    assert captured.replays == 3 and inner.replays == 0


def _call_impl(root, args, kwargs):
    return root._call_impl(*args, **kwargs)


# what is left alone ---------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Does one thing that a graph cannot repeat."""

    def __init__(self, what: Callable) -> None:
        super().__init__()
        self.layer, self.what = nn.Linear(4, 2), [what]

    def forward(self, x):
        return self.what[0](self, x)


def prints(model, x):
    print("hello")
    return model.layer(x)


def draws_on_the_host(model, x):
    return model.layer(x) * (1 + random.random())


def counts(model, x):
    model.calls = getattr(model, "calls", 0) + 1
    return model.layer(x) * model.calls


def keeps(model, x):
    model.hidden = model.layer(x)
    return model.hidden * 2


def collects(model, x):
    model.what.append(len(model.what))
    return model.layer(x)


def changes_its_input(model, x):
    return model.layer(x.mul_(1.0))


def changes_its_weights(model, x):
    model.layer.weight.data.mul_(0.9)
    return model.layer(x)


def gives_its_input(model, x):
    return model.layer(x), x


def gives_one_thing_twice(model, x):
    out = model.layer(x)
    return out, out[:2]


def gives_an_object(model, x):
    return model.layer(x), object()


def gives_a_number_that_changes(model, x):
    return model.layer(x), random.SystemRandom().random()


def changes_what_it_keeps(model, x):
    if not hasattr(model, "seen"):
        model.seen = torch.zeros(4)
    model.seen.mul_(0.9).add_(x.detach().mean(dim=0))
    return model.layer(x + model.seen)


FOREIGN, ANOTHER = torch.ones(2, requires_grad=True), torch.full((2,), 2.0)


def trains_a_foreign_tensor(model, x):
    return model.layer(x) * FOREIGN


def reads_a_foreign_tensor(model, x):
    return model.layer(x) * ANOTHER


ODD = [
    (prints, "prints"),
    (draws_on_the_host, "random numbers on the host"),
    (counts, "change between calls"),
    (keeps, "keeps what was made of weights"),
    (collects, "change between calls"),
    (changes_its_input, "in place"),
    (changes_its_weights, "changes its parameters"),
    (changes_what_it_keeps, "what else it keeps"),
    (gives_its_input, "shares memory"),
    (gives_one_thing_twice, "shares memory"),
    (gives_an_object, "plain values"),
    (gives_a_number_that_changes, "not always alike"),
    (trains_a_foreign_tensor, "neither given to it nor its own"),
    (reads_a_foreign_tensor, "neither given to it nor its own"),
]


@pytest.mark.parametrize(("what", "words"), ODD)
def test_what_a_graph_cannot_repeat_is_not_recorded(monkeypatch, what, words) -> None:
    monkeypatch.setattr(captured_calls, "_PATIENCE", 10)
    plain, model, captured, _ = twins(lambda: Odd(what))
    losses = []
    for one, call in ((plain, plain), (model, through(captured, model))):
        random.seed(0)
        FOREIGN.grad = None
        first = lambda *args, call=call: out[0] if isinstance(out := call(*args), tuple) else out  # noqa: E731
        losses.append((trained(one, first), FOREIGN.grad))
    assert losses[0][0] == losses[1][0] and captured.replays == 0 and words in captured.refused
    assert what is not trains_a_foreign_tensor or torch.equal(losses[0][1], losses[1][1])


class Filling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        batch["logits"] = self.layer(batch["x"])
        return batch["logits"].square().mean()


def test_a_dict_that_is_given_is_filled_in_each_call() -> None:
    plain, model, captured, _ = twins(Filling)
    for _ in range(12):
        mine, theirs = {"x": (x := torch.randn(3, 4))}, {"x": x}
        captured.call(model, (mine,), {}).backward()
        plain(theirs).backward()
        assert torch.equal(mine["logits"], theirs["logits"])
    assert captured.replays == 0


def makes_a_constant(model, x):
    return model.layer(x) * torch.tensor([0.5, 2.0])


def reads_an_attribute(model, x):
    if not hasattr(model, "mask"):
        model.mask = torch.tensor([0.5, 2.0])
    return model.layer(x) * model.mask


@pytest.mark.parametrize("what", [makes_a_constant, reads_an_attribute])
def test_what_looks_odd_and_can_be_repeated(what) -> None:
    plain, model, captured, _ = twins(lambda: Odd(what))
    assert trained(plain, plain) == trained(model, through(captured, model)) and captured.replays >= STEPS - 4


def test_a_backward_that_leads_elsewhere_is_not_recorded() -> None:
    model = nn.Linear(4, 2)
    out = model(torch.randn(3, 4))
    recorded_call._check_leaves([out], list(model.parameters()))
    with pytest.raises(recorded_call.CannotRecord, match="none of its parameters"):
        recorded_call._check_leaves([out * FOREIGN], list(model.parameters()))


def hooked() -> nn.Module:
    model = nn.Linear(4, 2)
    model.register_forward_hook(lambda *args: None)
    return model


def spread() -> nn.Module:
    model = nn.DataParallel(nn.Linear(4, 2))
    model.device_ids = [0, 1]
    return model


def compiled_inside() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 2))
    vars(model[0])["_compiled_call_impl"] = model[0]._call_impl
    return model


def complex_inside() -> nn.Module:
    model = nn.Linear(4, 2)
    model.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    return model


NOT_RECORDED = [
    (hooked, "hook"),
    (spread, "DataParallel"),
    (compiled_inside, "compiled"),
    (complex_inside, "plain tensors"),
    (lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), "sparse"),
    (lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 2))), "scripted"),
    (lambda: nn.Linear(4, 2, device="meta"), "one cpu device"),
]


@pytest.mark.parametrize(("kind", "words"), NOT_RECORDED)
def test_modules_that_are_not_recorded(kind, words) -> None:
    assert words in steady_module.why_not_recorded(kind(), "cpu")
    assert steady_module.why_not_recorded(layers(), "cpu") == ""


def test_an_error_of_a_signal_handler_amid_recording_is_the_scripts(told_to_leave, monkeypatch) -> None:
    _, model, captured, graphs = twins()
    monkeypatch.setattr(type(graphs()), "record", told_to_leave)
    with pytest.raises(Exception, match="save and leave"):
        trained(model, through(captured, model))
    assert captured.refused == ""


def test_an_error_in_recording_costs_nothing_but_the_recording() -> None:
    plain, model, captured, graphs = twins()
    graphs.error = "operation not permitted when stream is capturing\nand so on"
    assert trained(plain, plain) == trained(model, through(captured, model)) and same(plain, model)
    assert captured.refused == (
        "its calls cannot be recorded: RuntimeError: operation not permitted when stream is capturing"
    )


def test_objects_and_shapes_without_end(monkeypatch) -> None:
    monkeypatch.setattr(captured_calls, "_PATIENCE", 20)
    plain, model, captured, graphs = twins()
    size = lambda number: 2 + number  # noqa: E731
    assert trained(plain, plain, 24, size=size) == trained(model, through(captured, model), 24, size=size)
    assert graphs.recorded == 0 and "never alike" in captured.refused


def test_an_object_now_and_then() -> None:
    """Its calls run as they are, and the others go on."""

    class Takes(nn.Linear):
        def forward(self, x: torch.Tensor, how: object = None) -> torch.Tensor:
            return super().forward(x)

    _, model, captured, _ = twins(lambda: Takes(4, 2))
    x = warmed(model, captured)
    captured.call(model, (x, object()), {})
    captured.call(model, (x.double().float().to_sparse().to_dense(), None), {})
    assert captured.replays == 3 and captured.refused == ""
    captured.call(model, (x,), {})
    assert captured.replays == 4


def test_no_memory_for_the_proof_is_no_error(monkeypatch) -> None:
    plain, model, captured, _ = twins()

    def full(*args):
        torch.rand(3)
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(replay_proof, "Reference", full)
    assert trained(plain, plain) == trained(model, through(captured, model)) and same(plain, model)
    assert captured.replays == 0 and "no memory left" in captured.refused


def test_no_recording_without_room(monkeypatch) -> None:
    monkeypatch.setattr(captured_calls, "has_room", lambda device: False)
    monkeypatch.setattr(captured_calls, "_PATIENCE", 10)
    _, model, captured, graphs = twins()
    trained(model, through(captured, model))
    assert graphs.recorded == 0 and "memory left" in captured.refused


# proof -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["forward", "backward", "random", "buffers"])
def test_a_replay_that_differs_ends_it_and_harms_no_step(monkeypatch, which) -> None:
    plain, model, captured, _ = twins()
    own = RecordedCall.forward if which != "backward" else RecordedCall.backward

    def wrong(call, tensors):
        found = own(call, tensors)
        if which == "random":
            torch.rand(1)
        elif which == "buffers":
            call.plain.buffers[0].data.add_(1)
        else:
            found[-1] = found[-1] * 1.2
        return found

    monkeypatch.setattr(RecordedCall, "backward" if which == "backward" else "forward", wrong)
    assert trained(plain, plain) == trained(model, through(captured, model)) and same(plain, model)
    assert captured._proof.failed and captured.replays <= 1


@pytest.mark.parametrize("overflows", [0, 6, 64])
def test_gradients_that_overflow_prove_nothing(monkeypatch, overflows: int) -> None:
    """A fault in backward, behind steps that a GradScaler would leave out."""
    plain, model, captured, _ = twins(lambda: nn.Linear(4, 2))
    own = RecordedCall.backward

    def wrong(call, given):
        found = own(call, given)
        return [*found[:-1], found[-1] * 1.2]

    def trained(model, call) -> None:
        torch.manual_seed(1)
        for number in range(48):
            loss = call(torch.randn(6, 4)).square().mean()
            (loss * (float("inf") if number < overflows else 1.0)).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad.nan_to_num(0.0, 0.0, 0.0), alpha=0.1)
            model.zero_grad()

    monkeypatch.setattr(RecordedCall, "backward", wrong)
    trained(plain, plain), trained(model, through(captured, model))
    assert same(plain, model)
    assert captured._proof.failed if overflows < 64 else "not finite" in captured.refused


def test_the_difference_is_taken_down_and_what_is_not_finite_is_no_difference() -> None:
    from hotlap.parts.replay_proof import distance

    one, inf = torch.tensor([3.0, 4.0]), torch.tensor([1.0, float("inf"), float("nan")])
    assert distance([one], [one]) == 0 and distance([one * 1.1], [one]) == pytest.approx(0.1)
    assert distance([inf], [inf]) == 0 and distance([inf], [torch.ones(3)]) == float("inf")
    noise = torch.full((2,), 1e-6)
    assert distance([one, noise], [one, -noise]) < 1e-3, "what rounding alone makes is not held against itself"
    assert distance([one, noise + 1], [one, noise]) > 0.1


def test_nothing_is_kept_alive() -> None:
    model = nn.Linear(4, 2)
    captured = CapturedCalls(PlayedGraphs())
    warmed(model, captured)
    assert captured.replays == 3
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
