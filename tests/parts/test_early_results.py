"""What a replay has made can be read aside, as long as nothing else takes part."""

from __future__ import annotations

import threading
import types
from contextlib import contextmanager, nullcontext

import pytest
import torch
from played_recorder import PlayedPasses
from torch import nn
from torch.nn import functional as F

from hotlap.parts import graph_recorder, pass_recording, recorded_pass
from hotlap.parts.early_results import Made
from hotlap.parts.late_reads import Later
from hotlap.parts.pass_look import tensors
from hotlap.parts.recorded_pass import RecordedPass, read_early, reading_early


class Noted:
    """A moment that notes what is done aside; work on a CPU is in order by itself."""

    def __init__(self) -> None:
        self.queue, self.entered, self.spared, self.read_from = "main", 0, [], []

    @contextmanager
    def aside(self):
        self.entered += 1
        before, self.queue = self.queue, "aside"
        yield
        self.queue = before

    def spare(self, tensors) -> None:
        self.spared += tensors

    def read(self, result) -> float:
        self.read_from.append(result)
        return result.item()


class Recorder(PlayedPasses):
    def __init__(self, model) -> None:
        super().__init__(model)
        self.noted = Noted()

    def moment(self) -> Noted:
        return self.noted


@pytest.fixture
def made():
    moment, loss, x = Noted(), torch.tensor(2.0), torch.ones(3)
    return Made(moment, [loss], [x]), moment, loss, x


def is_aside(made: Made, moment: Noted, *values) -> bool:
    with made.reading(values):
        return moment.queue == "aside"


def test_results_inputs_and_numbers_are_read_aside(made) -> None:
    own, moment, loss, x = made
    assert is_aside(own, moment, loss, 1, 2.5, True, x)
    assert [one is other for one, other in zip(moment.spared, (loss, x), strict=True)] == [True, True]


def test_anything_else_is_not(made) -> None:
    own, moment, loss, _ = made
    for stranger in (torch.ones(3), nn.Parameter(torch.ones(3)), [1], None, "text", loss.detach()):
        assert not is_aside(own, moment, loss, stranger)


def test_nobody_touches_a_batch_that_is_still_to_be_moved() -> None:
    asked = []

    class Waiting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    moment, loss, batch = Noted(), torch.tensor(1.0), torch.ones(2).as_subclass(Waiting)
    asked.clear()
    own = Made(moment, [loss], [batch])
    assert is_aside(own, moment, loss) and not is_aside(own, moment, loss, batch)
    assert asked == []


def test_what_was_changed_since_is_not(made) -> None:
    own, moment, loss, x = made
    x.add_(1)
    assert is_aside(own, moment, loss) and not is_aside(own, moment, loss, x)


def test_other_queues_and_threads_are_not(made) -> None:
    own, moment, loss, _ = made
    moment.queue = "another"
    assert not is_aside(own, moment, loss)
    moment.queue, seen = "main", []
    thread = threading.Thread(target=lambda: seen.append(is_aside(own, moment, loss)))
    thread.start()
    thread.join()
    assert seen == [False] and is_aside(own, moment, loss)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch):
    """Trains, and adds up what is read: plainly, or by a recording whose results are read early."""

    def train(is_recorded: bool, reads=True, steps: int = 16):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        optimizer, recorder = torch.optim.SGD(model.parameters(), lr=0.1), Recorder(model)
        passes: dict = {}
        monkeypatch.setattr(recorded_pass, "_passes", passes)
        total, right, losses = 0.0, 0, []
        for number in range(steps):
            generator = torch.Generator().manual_seed(number)
            x, y = torch.randn(6, 4, generator=generator), torch.randint(0, 2, (6,), generator=generator)

            def one_pass(x, y):
                optimizer.zero_grad()
                out = model(x)
                loss = F.cross_entropy(out, y)
                loss.backward()
                return out, loss

            if is_recorded:
                own = passes.setdefault(one_pass.__code__, RecordedPass(recorder))
                out, loss = own.run(one_pass, (x, y))
            else:
                out, loss = one_pass(x, y)
            optimizer.step()
            if reads:
                with reading_early(one_pass, total, right, loss, out, y):
                    total += loss.item()
                    right += (out.argmax(1) == y).sum().item()
                losses.append(read_early(one_pass, loss))
        return (total, right, losses), recorder, next(iter(passes.values()), None)

    return train


def test_what_is_read_is_the_same(trained) -> None:
    theirs, _, _ = trained(False)
    ours, recorder, own = trained(True)
    assert ours == theirs
    assert own.replays > 5
    # a copy of the results and two readings each step; both replays that were held against the pass made copies too
    assert recorder.noted.entered == 3 * own.replays + 2


def test_an_input_that_the_update_changes_is_read_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`weight.data` has a version of its own, which tells nothing of the update."""
    model = nn.Linear(4, 2)
    optimizer, passes = torch.optim.SGD(model.parameters(), lr=0.1), {}
    monkeypatch.setattr(recorded_pass, "_passes", passes)
    recorder, x, seen = Recorder(model), torch.ones(6, 4), []

    def one_pass(x, weight):
        optimizer.zero_grad()
        loss = (model(x) * weight.sum()).square().mean()
        loss.backward()
        return loss

    own = passes[one_pass.__code__] = RecordedPass(recorder)
    for _ in range(16):
        weight = model.weight.data
        loss = own.run(one_pass, (x, weight))
        optimizer.step()
        for values in ((loss, x), (loss, weight)):
            with reading_early(one_pass, *values):
                seen.append(recorder.noted.queue)
    assert own.replays > 5 and seen[-2:] == ["aside", "main"]


def test_results_nobody_reads_in_every_step_are_not_hurried(trained) -> None:
    _, recorder, own = trained(True, reads=False)
    assert own.replays > 5 and own.made is None
    assert recorder.noted.entered == 2


def now_and_then(monkeypatch: pytest.MonkeyPatch, is_recorded: bool, changed=lambda loss: loss, read=read_early):
    """Asks for every third loss alone, as scripts do that print now and then."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer, recorder, passes, seen = torch.optim.SGD(model.parameters(), lr=0.1), Recorder(model), {}, []
    monkeypatch.setattr(recorded_pass, "_passes", passes)
    for number in range(24):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))

        def one_pass(x):
            optimizer.zero_grad()
            out = model(x)
            loss = out.square().mean()
            loss.backward()
            return out, loss

        own = passes.setdefault(one_pass.__code__, RecordedPass(recorder))
        _, loss = own.run(one_pass, (x,)) if is_recorded else one_pass(x)
        optimizer.step()
        if number % 3 == 2:
            seen.append(read(one_pass, changed(loss.detach() if loss.requires_grad else loss)))
    return seen, recorder.noted, own


def test_a_single_number_is_read_where_the_replay_has_put_it(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, _, _ = now_and_then(monkeypatch, False)
    ours, noted, own = now_and_then(monkeypatch, True)
    assert ours == theirs and own.replays > 10 and len(noted.read_from) > 3
    (recording,) = own._graphs.values()
    assert all(one is recording.results[1] for one in noted.read_from)
    assert own.made is None and noted.entered == 2, "copies are hurried only where they are held against the pass"


def in_a_thread(function, result):
    found = []
    thread = threading.Thread(target=lambda: found.append(read_early(function, result)))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize(
    ("changed", "read"),
    [
        (lambda loss: loss.add_(1), read_early),
        (lambda loss: loss * 2, read_early),
        (lambda loss: loss.detach(), read_early),
        (lambda loss: loss, in_a_thread),
    ],
)
def test_any_other_number_is_waited_for(changed, read, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, _, _ = now_and_then(monkeypatch, False, changed)
    ours, noted, own = now_and_then(monkeypatch, True, changed, read)
    assert ours == theirs and own.replays > 10 and noted.read_from == []


def test_a_pass_that_is_not_replayed_has_made_nothing(trained) -> None:
    _, recorder, own = trained(True)
    own._drop(next(iter(own._graphs)))
    entered = recorder.noted.entered
    own.run(lambda x: x, (torch.ones(6, 4),))
    assert own.made is None and recorder.noted.entered == entered


def test_numbers_that_are_read_late_hurry_nobody(trained) -> None:
    _, _, own = trained(True, reads=False)
    function = types.SimpleNamespace(__code__=next(iter(recorded_pass._passes)))
    with reading_early(function, Later(torch.tensor(1.0)), torch.tensor(2.0)):
        assert not own.is_read
    with reading_early(function, 1.0, torch.tensor(2.0)):
        assert own.is_read


class Meanwhile(Noted):
    """A moment at which results are others than when the pass has gone back, until somebody has waited for that."""

    def __init__(self, own: RecordedPass) -> None:
        super().__init__()
        self._own, self.is_over = own, True

    @contextmanager
    def aside(self):
        results = [one for recording in self._own._graphs.values() for one in tensors(recording.results)]
        by = 0 if self.is_over else 1
        for one in results:
            one.add_(by)
        with super().aside():
            yield
        for one in results:
            one.sub_(by)


def test_results_that_going_back_changes_are_read_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 1)
    optimizer, recorder = torch.optim.SGD(model.parameters(), lr=0.0), Recorder(model)
    own, waits = RecordedPass(recorder), pass_recording._overflow
    recorder.noted = moment = Meanwhile(own)
    recorder.spoil = lambda: setattr(moment, "is_over", False)
    monkeypatch.setattr(pass_recording, "_overflow", lambda *given: setattr(moment, "is_over", True) or waits(*given))
    own.is_read, x, found = True, torch.ones(6, 4), []
    for _ in range(12):

        def one_pass(x):
            optimizer.zero_grad()
            out = model(x).round()
            loss = model(x).square().mean()
            loss.backward()
            return out, loss

        out, _ = own.run(one_pass, (x,))
        optimizer.step()
        found.append(out.tolist())
    assert own.replays > 3 and own.made is None
    assert all(one == found[0] for one in found)


def test_a_tensor_without_a_version_is_not_read_aside() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    moment, loss = Noted(), torch.tensor(2.0)
    own = Made(moment, [loss], [x])
    assert is_aside(own, moment, loss) and not is_aside(own, moment, loss, x)


def test_an_error_aside_stays_the_scripts_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is lost fails whatever is asked of it, also what comes after the script's own error."""

    class Lost:
        def wait_event(self, event) -> None: ...

        def wait_stream(self, stream) -> None:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(graph_recorder._GraphMoment, "_streams", {None: Lost()})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Lost())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    moment = object.__new__(graph_recorder._GraphMoment)
    moment._event, moment._device = None, None
    with pytest.raises(ValueError, match="the script's") as caught, moment.aside():
        raise ValueError("the script's")
    assert caught.value.__context__ is None
    with pytest.raises(RuntimeError, match="device-side"), moment.aside():
        pass


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_torch_without_such_events_records_all_the_same(error, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older ones do not know them; those for AMD's devices say when they are recorded that they do not."""

    def refuses(**options) -> None:
        raise error("External events are disallowed")

    monkeypatch.setattr(torch.cuda, "Event", refuses)
    assert graph_recorder.GraphRecorder().moment() is None


def test_a_function_that_was_never_run_is_read_as_it_is() -> None:
    loss = torch.tensor(3.0)
    assert read_early(lambda: None, loss) == 3.0
