"""A pass is replayed where everything it rests on is what and where it was, and is the script's own otherwise; nobody
can tell. A recorder that plays by doing again stands for the device, so that each rule can be shown here."""

from __future__ import annotations

import copy
import gc
import logging
import random
import weakref

import pytest
import torch
from played_recorder import PlayedPasses
from torch import nn
from torch.nn import functional as F

from hotlap.parts import pass_recording, recorded_pass
from hotlap.parts.recorded_pass import RecordedPass

STEPS = 24
FIRST = recorded_pass._UNRECORDED + 1  # the pass that is recorded
counted, told = 0, logging.getLogger("told")


class Network(nn.Module):
    def __init__(self, normed: bool = True, dropped: float = 0.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.norm = nn.BatchNorm1d(8) if normed else nn.Identity()
        self.drop = nn.Dropout(dropped)
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(F.relu(self.norm(self.first(x))))) * self.scale


def network(**options) -> Network:
    torch.manual_seed(0)
    return Network(**options)


def batch(number: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 4, generator=generator), torch.randint(0, 2, (size,), generator=generator)


def train(
    model, own=None, steps=STEPS, before=lambda number, model: None, kept=None, forward=None, size=lambda number: 6
):
    """The losses; `own` does the passes, or nobody."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = own.run if own is not None else lambda function, inputs: function(*inputs)
    losses = []
    torch.manual_seed(1)
    for number in range(steps):
        before(number, model)
        x, y = batch(number, size(number))

        def one_pass(x, y):
            optimizer.zero_grad()
            output = model(x) if forward is None else forward(model, x)
            loss = F.cross_entropy(output, y)
            loss.backward()
            return output, loss

        output, loss = run(one_pass, (x, y))
        optimizer.step()
        losses.append(loss.detach())
        if kept is not None:
            kept.append(output)
    return losses


def pair(**options):
    plain, model = network(**options), network(**options)
    recorder = PlayedPasses(model)
    return plain, model, RecordedPass(recorder), recorder


def same(first: nn.Module, second: nn.Module) -> bool:
    ones, others = first.state_dict(), second.state_dict()
    return all(torch.equal(ones[key], others[key]) for key in ones)


def trained_alike(plain, model, own, steps=STEPS, **wishes) -> bool:
    theirs, ours = train(plain, steps=steps, **wishes), train(model, own, steps, **wishes)
    return same(plain, model) and all(map(torch.equal, theirs, ours))


@pytest.mark.parametrize("dropped", [0.0, 0.5])
def test_it_trains_the_same(dropped: float) -> None:
    plain, model, own, recorder = pair(dropped=dropped)
    assert trained_alike(plain, model, own)
    assert own.refused == "" and recorder.recorded == 1
    assert own.replays == STEPS - FIRST - recorded_pass._PROVEN + 1


def test_what_is_handed_back_is_the_scripts_to_keep() -> None:
    plain, model, own, _ = pair()
    theirs, ours = [], []
    first, second = train(plain, kept=theirs), train(model, own, kept=ours)
    assert all(map(torch.equal, theirs, ours)) and all(map(torch.equal, first, second))
    assert own.replays > 0 and not ours[-1].requires_grad


def test_results_that_are_not_copied_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_recording, "copied", lambda results: results)
    plain, model, own, _ = pair()
    theirs, ours = [], []
    train(plain, kept=theirs), train(model, own, kept=ours)
    assert not all(map(torch.equal, theirs, ours))


@pytest.mark.parametrize("fault", ["input", "gradient", "statistics", "loss", "result"])
def test_a_replay_that_is_not_the_pass_ends_it(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults planted in the graph: the script's own training goes on, and not one step is lost."""
    plain, model, own, recorder = pair()
    if fault == "input":
        play = pass_recording.Recording.play

        def stale(self, inputs):
            play(self, [one.clone() for one in self.inputs])

        monkeypatch.setattr(pass_recording.Recording, "play", stale)
    else:

        def spoil() -> None:
            recording = next(iter(own._graphs.values()))
            if fault == "gradient":
                recording.grads[0].mul_(1.01)
            elif fault == "statistics":
                model.norm.running_mean.zero_()
            elif fault == "result":
                recording.results[0].zero_()
            else:
                recording.loss.add_(0.1)

        recorder.spoil = spoil
    assert trained_alike(plain, model, own)
    assert own.replays == 0 and "not the same" in own.refused


def test_a_smaller_last_batch_runs_as_it_is() -> None:
    plain, model, own, recorder = pair()
    assert trained_alike(plain, model, own, size=lambda number: 3 if number % 8 == 7 else 6)
    assert recorder.recorded == 1 and own.replays == STEPS - FIRST - recorded_pass._PROVEN + 1 - 3


def test_a_setting_of_the_model_that_changes_ends_a_recording() -> None:
    plain, model, own, recorder = pair()

    def before(number: int, model: Network) -> None:
        model.scale = 2.0 if number >= 12 else 1.0

    assert trained_alike(plain, model, own, before=before)
    assert recorder.recorded == 2 and own.refused == ""


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: model.first.requires_grad_(False),
        lambda model: setattr(model.last, "weight", nn.Parameter(model.last.weight.detach().clone())),
        lambda model: setattr(model.norm, "momentum", 0.5),
        lambda model: setattr(model, "drop", nn.Dropout(0.9)),
        lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
        lambda model: model.first.register_forward_hook(lambda *given: None),
    ],
)
def test_a_model_that_is_changed_is_not_replayed_as_it_was(change) -> None:
    plain, model, own, _ = pair()

    def before(number: int, model: Network) -> None:
        if number == 12:
            change(model)

    assert trained_alike(plain, model, own, before=before)


class Schedule:
    def __init__(self) -> None:
        self.time = 0

    @property
    def rate(self) -> float:
        return 1.0 + (self.time >= 12)


class Scheduled(Network):
    """What changes is behind a method, a property and a private name."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.schedule, self._own = Schedule(), 1.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.schedule.rate * self._own

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(super().forward(x))


@pytest.mark.parametrize("private", [False, True])
def test_a_setting_behind_methods_that_changes_ends_a_recording(private: bool) -> None:
    torch.manual_seed(0)
    plain = Scheduled()
    model = copy.deepcopy(plain)
    recorder = PlayedPasses(model)
    own = RecordedPass(recorder)

    def before(number: int, model: Scheduled) -> None:
        if private:
            model._own = 2.0 if number >= 12 else 1.0
        else:
            model.schedule.time = 12 if number >= 12 else 0

    assert trained_alike(plain, model, own, before=before)
    assert recorder.recorded == 2 and own.refused == ""


def test_a_rate_that_changes_is_none_of_its_business() -> None:
    model = network()
    own, optimizer = RecordedPass(PlayedPasses(model)), torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for number in range(STEPS):
        x, y = batch(number)

        def one_pass(x, y):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()

        own.run(one_pass, (x, y))
        optimizer.step()
        scheduler.step()
    assert own.replays > 10


def test_gradients_cleared_outside_and_gradients_that_are_kept() -> None:
    def trained(model, own, kept):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = own.run if own is not None else lambda function, inputs: function(*inputs)
        for number in range(STEPS):
            x, y = batch(number)

            def one_pass(x, y):
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            run(one_pass, (x, y))
            optimizer.step()
            if number == 15:
                kept += [p.grad for p in model.parameters()]
            optimizer.zero_grad()

    plain, model, own, _ = pair()
    theirs, ours = [], []
    trained(plain, None, theirs), trained(model, own, ours)
    assert same(plain, model) and all(map(torch.equal, theirs, ours))
    assert own.replays > 0


def counting(model: Network, x: torch.Tensor) -> torch.Tensor:
    global counted
    counted += 1
    return model(x)


def printing(model: Network, x: torch.Tensor) -> torch.Tensor:
    print("forward")
    return model(x)


def logging_it(model: Network, x: torch.Tensor) -> torch.Tensor:
    told.warning("forward")
    return model(x)


def drawing(model: Network, x: torch.Tensor) -> torch.Tensor:
    return model(x) * random.uniform(0.5, 1.5)


def reading(model: Network, x: torch.Tensor) -> torch.Tensor:
    return model(x) * (1.0 + x.mean().item())


hidden = [torch.ones(2)]


def noting(model: Network, x: torch.Tensor) -> torch.Tensor:
    hidden.append(x)
    return model(x)


def picking(model: Network, x: torch.Tensor) -> torch.Tensor:
    return model(x) + x[x > 0].sum()


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (counting, "counted changes"),
        (printing, "prints"),
        (logging_it, "prints"),
        (drawing, "random numbers on the host"),
        (reading, "waits for the device"),
        (noting, "grows"),
        (picking, "waits for the device"),
    ],
)
def test_what_only_python_does_is_not_recorded(forward, reason: str) -> None:
    plain, model, own, recorder = pair()
    random.seed(0)
    theirs = train(plain, forward=forward)
    random.seed(0)
    ours = train(model, own, forward=forward)
    assert same(plain, model) and all(map(torch.equal, theirs, ours))
    assert recorder.recorded == own.replays == 0 and reason in own.refused


class Judging:
    """A loss that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, output: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return output


judging = Judging()


def test_a_counter_in_an_object_counts_every_step() -> None:
    _, model, own, _ = pair()
    train(model, own, forward=lambda model, x: judging(model(x)))
    assert judging.calls == STEPS and "calls changes" in own.refused


def test_frozen_weights_are_not_copied_for_the_proof() -> None:
    model = network()
    model.first.requires_grad_(False)
    known = [*model.parameters(), *model.buffers()]
    assert len(pass_recording._State(known, torch.device("cpu")).values) == len(list(model.buffers()))


def test_a_counter_in_the_model_counts_every_step() -> None:
    class Counting(Network):
        def forward(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            return super().forward(x)

    torch.manual_seed(0)
    model = Counting()
    own = RecordedPass(PlayedPasses(model))
    train(model, own)
    assert model.calls == STEPS and "calls changes" in own.refused


def test_an_error_of_a_signal_handler_amid_recording_is_the_scripts(told_to_leave) -> None:
    _, model, own, recorder = pair()
    recorder.record = told_to_leave
    with pytest.raises(Exception, match="save and leave"):
        train(model, own)
    assert own.refused == ""


def test_a_recording_that_breaks_leaves_the_step_to_the_script() -> None:
    plain, model, own, recorder = pair(dropped=0.5)
    recorder.error = "operation not permitted when stream is capturing\nand more"
    assert trained_alike(plain, model, own)
    assert own.refused == "it cannot be recorded: RuntimeError: operation not permitted when stream is capturing"


def test_an_error_in_forward_is_the_scripts() -> None:
    _, model, own, _ = pair()

    def broken(model, x):
        raise ValueError("mine")

    for _ in range(8):
        with pytest.raises(ValueError, match="mine"):
            train(model, own, 1, forward=broken)


def test_each_place_in_the_text_has_its_own() -> None:
    def one(x):
        return x + 1

    def other(x):
        return x + 2

    before = dict(recorded_pass._passes)
    assert recorded_pass.recorded(one, torch.ones(1)) == 2 and recorded_pass.recorded(other, torch.ones(1)) == 3
    assert len(recorded_pass._passes) == len(before) + 2


def test_inputs_of_many_kinds_are_given_up_in_the_end() -> None:
    plain, model, own, recorder = pair()
    steps = recorded_pass._PATIENCE + 4
    assert trained_alike(plain, model, own, steps, size=lambda number: 2 + number)
    assert recorder.recorded == 0 and own.refused


def test_sparse_gradients_are_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(8, 4, sparse=True)
    own = RecordedPass(PlayedPasses(model))
    for number in range(8):
        model.zero_grad()

        def one_pass(x):
            model(x).mean().backward()

        own.run(one_pass, (torch.tensor([number % 8, 1]),))
    assert "sparse" in own.refused


def test_inputs_that_are_handed_back() -> None:
    _, model, own, _ = pair()
    for number in range(STEPS):
        x, y = batch(number)
        model.zero_grad()

        def one_pass(x, y):
            x, y = x.to("cpu"), y.to("cpu")
            F.cross_entropy(model(x), y).backward()
            return y, x[1:]

        labels, rest = own.run(one_pass, (x, y))
        assert torch.equal(labels, y) and torch.equal(rest, x[1:])
    assert own.replays > 10


def test_inputs_in_lists_and_dicts() -> None:
    model = network()
    recorder = PlayedPasses(model)
    own, losses = RecordedPass(recorder), []
    for number in range(STEPS):
        x, y = batch(number)
        model.zero_grad()

        def one_pass(given):
            loss = F.cross_entropy(model(given["x"][0]), given["y"])
            loss.backward()
            return {"loss": loss, "size": len(given)}

        out = own.run(one_pass, ({"x": [x], "y": y},))
        losses.append((out["loss"].item(), F.cross_entropy(copy.deepcopy(model)(x), y).item(), out["size"]))
    assert own.replays > 10 and all(one == pytest.approx(other) and size == 2 for one, other, size in losses)


def test_a_model_that_the_script_drops_is_let_go() -> None:
    """A graph holds nothing of Python's, so neither may the player."""
    own = RecordedPass(recorder := PlayedPasses(None))

    def fold() -> weakref.ref:
        model = recorder.model = network()

        def total(output, y):
            return F.cross_entropy(output, y) + 0.01 * model.last.weight.square().sum()

        class Trainer:
            def __init__(self) -> None:
                self.model, self.optimizer = model, torch.optim.SGD(model.parameters(), lr=0.1)

        trainer = Trainer()
        for number in range(STEPS):

            def one_pass(x, y):
                trainer.optimizer.zero_grad()
                loss = total(trainer.model(x), y)
                loss.backward()
                return loss

            own.run(one_pass, batch(number))
            trainer.optimizer.step()
        recorder.let_go()
        return weakref.ref(model)

    for _ in range(2):
        before = own.replays
        gone = fold()
        gc.collect()
        assert own.replays - before > 10 and own.refused == ""
        assert gone() is None and not own._graphs


@pytest.mark.parametrize("is_teacher", [False, True])
def test_tensors_of_inference_mode_are_left_alone(is_teacher: bool) -> None:
    """They have no version, and asking for it is an error."""

    def trained(is_recorded: bool):
        model = network()
        optimizer, losses, own = torch.optim.SGD(model.parameters(), lr=0.1), [], RecordedPass(PlayedPasses(model))
        with torch.inference_mode():
            teacher = nn.Linear(4, 2).requires_grad_(False)
        for number in range(STEPS):
            x, _ = batch(number)
            with torch.set_grad_enabled(is_teacher), torch.inference_mode(not is_teacher):
                goal = x[:, :2].clone()

            def one_pass(x, goal):
                optimizer.zero_grad()
                loss = (model(x) - goal - (teacher(x) if is_teacher else 0)).abs().mean()
                loss.backward()
                return loss

            losses.append((own.run(one_pass, (x, goal)) if is_recorded else one_pass(x, goal)).item())
            optimizer.step()
        return losses, own

    (theirs, _), (ours, own) = trained(False), trained(True)
    assert ours == theirs and own.replays == 0 and "inference" in own.refused


def test_a_pass_whose_batch_lies_outside_the_loop_has_no_inputs() -> None:
    x, y = batch(0)

    def trained(own=None):
        model = network()
        optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        recorder = PlayedPasses(model)
        recorder.number = 0  # of the one device there is
        own = own and RecordedPass(recorder)
        for _ in range(STEPS):

            def one_pass():
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            losses.append(own.run(one_pass, ()) if own else one_pass())
            optimizer.step()
        return [loss.item() for loss in losses], own

    (theirs, _), (ours, own) = trained(), trained(True)
    assert ours == theirs and own.refused == "" and own.replays > STEPS - 10
