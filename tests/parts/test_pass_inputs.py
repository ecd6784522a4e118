"""A replayed pass takes what lies on the device already: copies made early, and images that were made there."""

from __future__ import annotations

import torch
from clone_copier import CloneCopier
from played_recorder import PlayedPasses
from torch import nn
from torch.nn import functional as F

from hotlap.parts.batch_habits import Habits
from hotlap.parts.early_copies import copy_early
from hotlap.parts.recorded_pass import RecordedPass
from hotlap.parts.waiting_tensor import Waiting

STEPS = 24
REPLAYED = 12  # a step from which on all are
CPU = torch.device("cpu")  # stands for the device, so that passes can be played


class CopierHere(CloneCopier):
    device = CPU


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 4, generator=generator), torch.randint(0, 2, (6,), generator=generator)


def trained(given) -> tuple[nn.Module, RecordedPass]:
    """`given(number)` is the batch of a step, as a loader hands it out."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    own = RecordedPass(PlayedPasses(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(STEPS):
        x, y = given(number)

        def one_pass(x, y):
            optimizer.zero_grad()
            x, y = x.to(CPU), y.to(CPU)
            F.cross_entropy(model(x), y).backward()

        own.run(one_pass, (x, y))
        optimizer.step()
    return model, own


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_a_replay_takes_the_early_copy() -> None:
    copier = CopierHere()

    def given(number: int):
        x, y = batch(number)
        copy_early([x, y], copier)
        if number >= REPLAYED:
            x.numpy()[:] = float("nan")  # torch does not count it: what lies on the device is still right
        return x, y

    plain, _ = trained(batch)
    model, own = trained(given)
    assert same(plain, model) and own.refused == ""
    assert len(copier.handed) >= 2 * (STEPS - REPLAYED)


def test_a_batch_that_was_written_to_is_copied_again() -> None:
    copier = CopierHere()

    def given(number: int):
        x, y = batch(number)
        copy_early([x, y], copier)
        return x.mul_(2.0), y

    plain, _ = trained(lambda number: (batch(number)[0] * 2.0, batch(number)[1]))
    model, own = trained(given)
    assert same(plain, model) and own.replays > 10


def test_where_batches_go_is_learnt_from_replays_too() -> None:
    habits = Habits(CopierHere())

    def given(number: int):
        x, y = batch(number)
        if number >= REPLAYED and not habits.known:
            habits.learn((x, y))
        return x, y

    trained(given)
    assert habits.known and habits.refused == ""


def test_images_that_are_only_on_the_device_are_never_brought_down() -> None:
    moves: list[torch.device] = []
    handed: list[Waiting] = []

    def given(number: int):
        x, y = batch(number)
        handed.append(Waiting(x, x.clone, moves.append))
        return handed[-1], y

    plain, _ = trained(batch)
    model, own = trained(given)
    assert same(plain, model) and own.refused == "" and own.replays > 10
    assert not any(one._host is not None for one in handed[REPLAYED:]) and set(moves) == {CPU}
