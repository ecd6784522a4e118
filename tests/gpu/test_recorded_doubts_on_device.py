"""Doubts about recorded graphs that only a device can settle, each as small as it can be."""

from __future__ import annotations

import copy
import gc
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotlap.parts.captured_calls import CapturedCalls
from hotlap.parts.compiled_call import CompiledCall
from hotlap.parts.cuda_copier import CudaCopier
from hotlap.parts.early_copies import copy_early
from hotlap.parts.graph_recorder import GraphRecorder
from hotlap.parts.recorded_pass import RecordedPass

pytestmark = pytest.mark.gpu

STEPS = 24


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Tanh(), nn.Linear(32, 4)).cuda()


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(number)
    x = torch.randn(32, 16, generator=generator, device="cuda")
    return x, torch.randint(0, 4, (32,), generator=generator, device="cuda")


def one_by_one(model: nn.Module, call, steps: int = STEPS, accumulate: int = 1) -> list[torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        x, y = batch(number)
        F.cross_entropy(call(x), y).backward()
        if number % accumulate == accumulate - 1:
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


def by_passes(model: nn.Module, own: RecordedPass | None, after=lambda number: None) -> None:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):

        def one_pass(x, y):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()

        own.run(one_pass, batch(number)) if own is not None else one_pass(*batch(number))
        optimizer.step()
        after(number)


@pytest.mark.parametrize("kept", ["grad", "grad.detach()", "grad.view(-1)"])
def test_gradients_that_are_kept_in_any_form(kept: str) -> None:
    model, own, found = network(), RecordedPass(), []

    def after(number: int) -> None:
        if number in (12, 15):
            for p in model.parameters():
                one = eval(kept, {"grad": p.grad})
                found.append((one, one.clone()))

    by_passes(model, own, after)
    assert own.replays > 5 and own.refused == "" and all(torch.equal(one, value) for one, value in found)


def test_every_generator_is_where_it_would_be() -> None:
    states = []
    for kind in ("plain", "pass", "calls"):
        model = network()
        if kind == "calls":
            captured = CapturedCalls()
            one_by_one(model, lambda x, model=model, captured=captured: captured.call(model, (x,), {}))
            assert captured.replays > 10, captured.refused
        else:
            by_passes(model, RecordedPass() if kind == "pass" else None)
        states.append(torch.cuda.get_rng_state())
    assert torch.equal(states[0], states[1]) and torch.equal(states[0], states[2])


def test_heads_that_are_trained_in_turns() -> None:
    def trained(is_recorded: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        heads = nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 4)]).cuda()
        optimizer, runs = torch.optim.SGD(heads.parameters(), lr=0.1), [RecordedPass(), RecordedPass()]
        for number in range(2 * STEPS):
            head = heads[number % 2]

            def one_pass(x, y, head=head):
                optimizer.zero_grad()
                F.cross_entropy(head(x), y).backward()

            own = runs[number % 2]
            own.run(one_pass, batch(number)) if is_recorded else one_pass(*batch(number))
            optimizer.step()
        assert not is_recorded or all(own.replays > 5 for own in runs), [own.refused for own in runs]
        return list(heads.parameters())

    torch.testing.assert_close(trained(True), trained(False))


@pytest.mark.parametrize("mode", ["reduce-overhead"])
def test_compiled_graphs_and_gradients_that_are_added_up(mode: str) -> None:
    """Torch's own graphs hand out gradients that the next replay overwrites (pytorch issue 169545)."""
    plain = network()
    plain[1].p = 0.0
    model = copy.deepcopy(plain)
    call = CompiledCall(mode)
    theirs, ours = (
        one_by_one(plain, plain, accumulate=3),
        one_by_one(model, lambda x: call(model, (x,), {}), accumulate=3),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_thread_that_pins_and_copies_does_not_break_a_recording() -> None:
    """As the thread of early copies does, on a stream of its own."""
    is_over, made, errors = threading.Event(), [0], list[Exception]()

    def copy_on() -> None:
        stream = torch.cuda.Stream()
        try:
            while not is_over.is_set():
                with torch.cuda.stream(stream):
                    pinned = torch.empty(1 << 20, pin_memory=True)
                    pinned.to("cuda", non_blocking=True)
                stream.synchronize()
                made[0] += 1
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=copy_on)
    thread.start()
    try:
        for _ in range(20):
            model, captured = network(), CapturedCalls()
            one_by_one(model, lambda x, model=model, captured=captured: captured.call(model, (x,), {}), steps=8)
            assert captured.refused == "" and captured.replays == 5
    finally:
        is_over.set()
        thread.join()
    assert errors == [] and made[0] > 0


def test_memory_comes_back_when_the_model_is_gone() -> None:
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        model, captured = network(), CapturedCalls()
        one_by_one(model, lambda x, model=model, captured=captured: captured.call(model, (x,), {}))
        assert captured.replays > 10
        del model, captured
        gc.collect()
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_an_attention_that_is_made_of_operations() -> None:
    """Not every mode may watch it; whether it is recorded or not, the script must not notice."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention

    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.layer(x).view(2, 2, -1, 16)
            return flex(hidden, hidden, hidden).flatten(0, 2)

    torch.manual_seed(0)
    plain = Attends().cuda()
    model, captured = copy.deepcopy(plain), CapturedCalls()
    theirs, ours = one_by_one(plain, plain), one_by_one(model, lambda x: captured.call(model, (x,), {}))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def test_a_number_in_main_memory_that_a_schedule_lowers() -> None:
    weight, plain, model = torch.tensor(1.0), network(), network()

    def trained(model: nn.Module, own: RecordedPass | None) -> None:
        weight.fill_(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(1)
        for number in range(STEPS):

            def one_pass(x, y):
                optimizer.zero_grad()
                (F.cross_entropy(model(x), y) * weight).backward()

            own.run(one_pass, batch(number)) if own is not None else one_pass(*batch(number))
            optimizer.step()
            weight.mul_(0.8)

    own = RecordedPass()
    trained(plain, None), trained(model, own)
    assert "main memory" in own.refused
    torch.testing.assert_close(list(model.parameters()), list(plain.parameters()))


def test_an_interrupt_in_a_recording_leaves_torch_usable() -> None:
    recorder, x = GraphRecorder(), torch.ones(8, device="cuda")

    def interrupted() -> None:
        F.dropout(x, 0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        recorder.record(interrupted, x.device)
    torch.cuda.synchronize()
    assert not torch.cuda.is_current_stream_capturing()
    assert set(F.dropout(x, 0.5).tolist()) <= {0.0, 2.0}
    replay = recorder.record(lambda: x.mul_(2), x.device)
    replay()
    assert x.tolist() == [2.0] * 8


def test_a_replay_takes_the_copy_that_was_made_early() -> None:
    """The batch in main memory is spoilt once its copy is over: nobody reads it again."""
    copier, made = CudaCopier(torch.device("cuda", 0)), []

    def trained(own: RecordedPass | None) -> nn.Module:
        model = network()
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for number in range(STEPS):
            x, y = (one.cpu() for one in batch(number))
            if own is not None and number >= STEPS // 2:
                copy_early([x, y], copier, lambda: made.append(1))
                torch.cuda.synchronize()
                x.numpy()[:] = float("nan")

            def one_pass(x, y):
                optimizer.zero_grad()
                x, y = x.cuda(), y.cuda()
                F.cross_entropy(model(x), y).backward()

            own.run(one_pass, (x, y)) if own is not None else one_pass(x, y)
            optimizer.step()
        return model

    own = RecordedPass()
    ones, others = trained(None).state_dict(), trained(own).state_dict()
    assert own.refused == "" and len(made) == STEPS
    assert all(torch.allclose(ones[name], others[name]) for name in ones)


def test_a_scale_that_overflows_at_first() -> None:
    model, own = network(), RecordedPass()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cuda", init_scale=2.0**31)
    for number in range(3 * STEPS):

        def one_pass(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            return loss

        own.run(one_pass, batch(number))
        scaler.step(optimizer)
        scaler.update()
    assert own.refused == "" and own.replays > STEPS


def test_a_model_that_is_dropped_gives_its_memory_back() -> None:
    own = RecordedPass()
    by_passes(network(), own)
    assert own.replays > 0
    gc.collect()
    assert not own._graphs
