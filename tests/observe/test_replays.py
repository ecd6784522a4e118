"""Replayed passes as the watch sees them: every step, with its loss, and nothing of what is only recorded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parts"))
from played_recorder import PlayedPasses

from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.replays import Replays
from hotlap.observe.watch import Watch
from hotlap.parts import recorded_pass
from hotlap.parts.recorded_pass import RecordedPass

STEPS = 30


@pytest.fixture
def patch():
    own = Patch(Joints())
    yield own
    own.undo()


def train(is_recorded: bool, calls: list[str] | None = None, spoil=None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = PlayedPasses(model)
    own = RecordedPass(recorder)
    if spoil is not None:
        recorder.spoil = lambda: spoil(own)
    data = torch.utils.data.TensorDataset(torch.randn(8 * STEPS, 4), torch.randint(0, 2, (8 * STEPS,)))
    for x, y in torch.utils.data.DataLoader(data, batch_size=8):

        def one_pass(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        own.run(one_pass, (x, y)) if is_recorded else one_pass(x, y)
        optimizer.step()
    return own


def test_the_watch_sees_every_step_and_its_loss(patch: Patch) -> None:
    records = []
    for is_recorded in (False, True):
        joined = Patch(Joints())
        Replays(joined)
        watch = Watch(joined)
        own = train(is_recorded)
        records.append(watch.record())
        joined.undo()
    plain, replayed = records
    assert own.refused == "" and own.replays > STEPS / 2
    assert replayed.steps == plain.steps and replayed.losses == plain.losses
    assert replayed.roots[0].calls == plain.roots[0].calls
    assert replayed.compared[0].difference == 0.0
    assert isinstance(recorded_pass.listeners, recorded_pass.Nobody), "undone"


def test_who_takes_part_in_backward_is_not_left_out(patch: Patch) -> None:
    """A subscriber that is no mere watcher, as fp16 scaling is, would be missing from a replay."""
    Replays(patch)
    seen = []

    def scaling(proceed, tensors, *rest, **named):
        seen.append(1)
        return proceed(tensors, *rest, **named)

    patch.at(patch.joints.loss_known, scaling)
    own = train(True)
    assert own.replays == 0 and len(seen) == STEPS


def test_watchers_do_not_see_what_is_only_recorded(patch: Patch) -> None:
    Replays(patch)
    seen = []

    def watching(proceed, tensors, *rest, **named):
        seen.append(tensors.item())
        return proceed(tensors, *rest, **named)

    patch.at(patch.joints.loss_known, watching, depth=-1)
    own = train(True)
    assert own.replays > 0 and len(seen) == STEPS and len(set(seen)) > STEPS / 2


def test_nobody_is_told_where_nobody_watches(patch: Patch) -> None:
    """What is told of a replay is a copy of its loss, which a run without a watch need not make."""
    Replays(patch)
    own = recorded_pass.listeners
    assert not own.are_there
    patch.at(patch.joints.root_called, lambda proceed, *given: proceed(*given))
    assert not own.are_there, "one that takes part does so in the recording"
    for joint in (patch.joints.root_called, patch.joints.loss_known):
        watching = Patch(patch.joints)
        watching.at(joint, lambda proceed, *given: proceed(*given), depth=-1)
        assert own.are_there
        watching.undo()
        assert not own.are_there


def test_a_technique_that_joins_later_ends_recordings(patch: Patch) -> None:
    Replays(patch)
    before = recorded_pass.listeners.changes
    patch.at(patch.joints.loss_known, lambda proceed, *given: proceed(*given), depth=-1)
    assert recorded_pass.listeners.changes == before, "one that only watches changes nothing"
    patch.at(patch.joints.loss_known, lambda proceed, *given: proceed(*given))
    assert recorded_pass.listeners.changes == before + 1


def test_a_replay_that_differs_is_told_as_a_withdrawal(patch: Patch) -> None:
    Replays(patch)

    def spoil(own: RecordedPass) -> None:
        next(iter(own._graphs.values())).grads[0].add_(1.0)

    own = train(True, spoil=spoil)
    assert own.refused and patch.joints.comparisons[0].failed and patch.joints.withdrawn == []


def test_a_pass_that_is_given_up_is_told_with_its_reason(patch: Patch) -> None:
    Replays(patch)
    own = RecordedPass()
    for _ in range(3):
        own.run(lambda x: x, (torch.empty(1, device="meta"),))
    assert patch.joints.withdrawn == ["the recorded pass: its inputs are not on one cuda device"]


def test_who_needs_no_replays_is_told_of_none_and_the_replay_tells_nobody(patch: Patch) -> None:
    told: list[str] = []

    def watching(name: str):
        def backward(proceed, *args, **kwargs):
            told.append(name)
            return proceed(*args, **kwargs)

        return backward

    replays = Replays(patch)
    leave = patch.at(patch.joints.loss_known, watching("all"), depth=-1)
    patch.at(patch.joints.loss_known, watching("plain"), depth=-1, sees_replays=False)
    own = train(True)
    assert own.replays and told.count("all") == STEPS
    assert told.count("plain") == STEPS - own.replays - 1  # the pass that is looked at counts as a replay, too
    assert replays.are_there
    leave()
    assert not replays.are_there
