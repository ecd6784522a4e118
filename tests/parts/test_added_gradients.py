"""Passes that add to gradients which are there already: of several passes that make one update, of another network's
pass in the same step, of gradients that are set to zero where they lie. The recorder is as blind as a graph."""

from __future__ import annotations

import pytest
import torch
from taped_recorder import TapedRecorder
from torch import nn
from torch.nn import functional as F

from hotlap.parts import added_gradients, pass_recording
from hotlap.parts.recorded_pass import RecordedPass

STEPS = 60


def network(inputs: int = 4, outputs: int = 2) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def batch(number: int, size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(size, 4, generator=generator), torch.randint(0, 2, (size,), generator=generator)


def taped() -> RecordedPass:
    return RecordedPass(TapedRecorder())


class Plain:
    """Nobody's: the passes as they are."""

    replays, refused = 0, ""

    def run(self, function, inputs):
        return function(*inputs)


def same(ones: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return len(ones) == len(others) and all(map(torch.equal, ones, others))


def added_up(
    own, passes: int, to_none: bool = True, inside: bool = False, sizes=lambda number: 6
) -> list[torch.Tensor]:
    """`passes` to an update. Returns every loss, every gradient before its update, and the weights."""
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    seen = []
    for number in range(STEPS):
        is_first, is_last = number % passes == 0, number % passes == passes - 1
        x, y = batch(number, sizes(number))
        if is_first and not inside:
            optimizer.zero_grad(set_to_none=to_none)

        def one_pass(x, y, passes):
            if inside:
                optimizer.zero_grad(set_to_none=to_none)
            loss = F.cross_entropy(model(x), y) / passes
            loss.backward()
            return loss

        seen.append(own.run(one_pass, (x, y, passes)).detach().clone())
        if is_last:
            seen += [p.grad.clone() for p in model.parameters()]
            optimizer.step()
    return [*seen, *model.parameters()]


@pytest.mark.parametrize("passes", [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize("to_none", [True, False])
def test_passes_that_add_up_to_one_update(passes: int, to_none: bool) -> None:
    own = taped()
    assert same(added_up(Plain(), passes, to_none), added_up(own, passes, to_none))
    assert own.refused == "" and own.replays >= STEPS / 2 - 6, (own.refused, own.replays)


@pytest.mark.parametrize("inside", [True, False])
def test_gradients_that_are_set_to_zero_where_they_lie(inside: bool) -> None:
    own = taped()
    assert same(added_up(Plain(), 1, False, inside), added_up(own, 1, False, inside))
    assert own.refused == "" and own.replays > STEPS - 12


def test_a_smaller_batch_among_those_that_add_up() -> None:
    def sizes(number: int) -> int:
        return 3 if number % 10 == 9 else 6

    own = taped()
    assert same(added_up(Plain(), 2, sizes=sizes), added_up(own, 2, sizes=sizes))
    assert own.replays > STEPS / 3, own.refused


def adversaries(
    runs, steps: int = STEPS, kept: list[torch.Tensor] | None = None, alone: bool = False
) -> list[torch.Tensor]:
    """Two networks in turns: what the first goes back through adds to the second's gradients, which nobody wants."""
    torch.manual_seed(0)
    maker, judge = network(4, 4), network(4, 1)
    updates = [torch.optim.Adam(one.parameters(), lr=0.01) for one in (maker, judge)]
    seen = []
    for number in range(steps):
        x, _ = batch(number)
        updates[0].zero_grad()

        def fooling(x):
            made = maker(x)
            loss = F.softplus(-judge(made)).mean()
            loss.backward()
            return made, loss

        made, fooled = runs[0].run(fooling, (x,))
        seen += [p.grad.clone() for p in [*maker.parameters(), *judge.parameters()]]
        updates[0].step()

        def telling(x, made):
            updates[1].zero_grad()
            loss = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
            loss.backward()
            return loss

        told = runs[1].run(telling, (x, made.detach()))
        if kept is not None and number == 40:
            kept += [p.grad for p in judge.parameters()]
        updates[1].step()
        seen += [fooled.detach().clone(), told.detach().clone()]
    return [*seen, *maker.parameters(), *judge.parameters()]


def test_two_networks_in_turns() -> None:
    runs = [taped(), taped()]
    assert same(adversaries([Plain(), Plain()]), adversaries(runs))
    assert all(run.refused == "" and run.replays > STEPS - 25 for run in runs), [(r.refused, r.replays) for r in runs]


def test_gradients_of_a_pass_that_is_not_recorded_are_another_each_time() -> None:
    runs = [taped(), Plain()]
    assert same(adversaries([Plain(), Plain()], 150), adversaries(runs, 150))
    assert runs[0].replays == 0 and "lie elsewhere" in runs[0].refused


def test_a_gradient_that_the_script_keeps_stays_what_it_was() -> None:
    theirs: list[torch.Tensor] = []
    ours: list[torch.Tensor] = []
    runs = [taped(), taped()]
    assert same(adversaries([Plain(), Plain()], kept=theirs), adversaries(runs, kept=ours))
    assert same(theirs, ours) and all(run.replays > 10 for run in runs)


def exchanged(own) -> list[torch.Tensor]:
    """Gradients that nobody drops, until the script puts others in their place."""
    torch.manual_seed(0)
    model = network()
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    seen, old = [], []
    for number in range(STEPS):
        if number in (20, 40, 41):
            old += [weight.grad for weight in model.parameters()]
            for weight in model.parameters():
                weight.grad = torch.full_like(weight, float(number))

        def one_pass(x, y):
            F.cross_entropy(model(x), y).backward()

        own.run(one_pass, batch(number))
        seen += [p.grad.clone() for p in model.parameters()]
    return [*seen, *old]


def test_a_gradient_that_is_exchanged_is_not_added_to_where_the_old_one_lay() -> None:
    own = taped()
    assert same(exchanged(Plain()), exchanged(own))
    assert own.replays > 10, own.refused


@pytest.mark.parametrize(
    ("where", "fault", "loop"),
    [
        (pass_recording.Recording, "begins_alike", lambda own: added_up(own, 2)),
        (added_gradients.Added, "are_there", exchanged),
    ],
)
def test_where_nobody_asks_what_gradients_it_began_with_it_shows(
    where, fault: str, loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, own = loop(Plain()), taped()
    monkeypatch.setattr(where, fault, property(lambda self: True))
    assert not same(theirs, loop(own)) or own.refused


def test_a_proof_that_forgets_what_it_added_to_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = pass_recording.Recording.compared

    def forgetful(recording, *args):
        own, recording.added = recording.added, added_gradients.Added([])
        try:
            return compared(recording, *args)
        finally:
            recording.added = own

    theirs, own = added_up(Plain(), 2), taped()
    monkeypatch.setattr(pass_recording.Recording, "compared", forgetful)
    assert not same(theirs, added_up(own, 2))
