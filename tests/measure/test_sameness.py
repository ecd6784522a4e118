"""The parity test as `tune` and `verify` run it: how far it sees, on what loops, and what other seeds would do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import planted
import pytest
from waiting import PATIENCE_SECONDS

from hotlap.measure import census
from hotlap.measure.bench import Bench
from hotlap.measure.order import Order
from hotlap.measure.sameness import Sameness, failure, passed
from hotlap.report.findings import ParityCheck
from hotlap.technique import Choice, Parity

HEAD = """
import random, numpy, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(3)
def data(size):
    return TensorDataset(torch.randn(size, 8), torch.randint(0, 3, (size,)))
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
train = DataLoader(data(LENGTH), batch_size=8, shuffle=True)
held_out = DataLoader(data(24), batch_size=8)
"""
LOOP = """
for epoch in range(30):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
EVALUATING = (
    LOOP
    + """
    model.eval()
    with torch.no_grad():
        for x, y in held_out:
            model(x)
    model.train()
"""
)
ACCUMULATING = """
for epoch in range(30):
    for i, (x, y) in enumerate(train):
        (nn.functional.cross_entropy(model(x), y) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
"""
TWO_MODELS = """
other = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.3), nn.Linear(16, 1))
second = torch.optim.Adam(other.parameters(), lr=0.01)
for epoch in range(30):
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        second.zero_grad()
        nn.functional.softplus(other(model(x).detach())).mean().backward()
        second.step()
"""
FRESH_LOADERS = LOOP.replace("in train:", "in DataLoader(train.dataset, batch_size=8, shuffle=True):")
NO_LOADER = """
inputs, targets = train.dataset.tensors
for step in range(200):
    chosen = torch.randint(0, len(inputs), (8,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
    optimizer.step()
"""
BY_TURNS = NO_LOADER.replace("torch.randint(0, len(inputs), (8,))", "torch.arange(8) + 8 * (step % 10)")
LOOPS = {"evaluating": EVALUATING, "accumulating": ACCUMULATING, "two models": TWO_MODELS}
LOOPS |= {"fresh loaders": FRESH_LOADERS, "no loader": NO_LOADER}


class Silent:
    def started(self, *_: object) -> None: ...

    stepped = ended = said = stopped = started


@pytest.fixture
def same(trials, tmp_path: Path):
    """`same(loop, length) -> Sameness`, started."""

    def start(loop: str, length: int) -> Sameness:
        path = tmp_path / "train.py"
        path.write_text(HEAD.replace("LENGTH", str(length)) + loop)
        order = Order(name=str(path), cwd=str(tmp_path), limit_seconds=PATIENCE_SECONDS)
        sameness = Sameness(Bench(trials, order, 2.0, Silent()), trials.exchange(tmp_path.name))
        trouble = sameness.start()
        assert trouble is None, trouble
        return sameness

    return start


def checks(sameness: Sameness, *kinds: type):
    choices = [Choice(kind(), {}) for kind in kinds]
    return sameness.checks(choices, "planted", {choice.technique.id: Parity.EQUIVALENT for choice in choices})


def test_the_comparison_goes_past_the_end_of_an_epoch(same) -> None:
    """41 batches, more than are otherwise compared, of which the last is smaller and gets lost."""
    sameness = same(LOOP, 8 * 40 + 3)
    assert sameness.saw_an_epoch_end
    assert passed(checks(sameness, planted.DoesNothing))
    lost = checks(sameness, planted.SkipsTheLastBatch)
    assert not passed(lost) and "batches that differ" in failure(lost)


def test_a_script_that_ends_before_its_draws_do_is_the_same_as_itself(same) -> None:
    """The reference goes on into draws that no candidate can follow: 6 of 24, and another end of an epoch."""
    sameness = same(LOOP.replace("range(30)", "range(3)"), 8 * 9 + 3)
    nothing = checks(sameness, planted.DoesNothing)
    assert passed(nothing), failure(nothing)
    assert [check.what for check in nothing][:2] == ["batches that differ, of 24", "epoch ends that differ, of 2"]
    for wrong in (planted.SkipsTheLastBatch, planted.RepeatsABatch):
        found = checks(sameness, wrong)
        assert not passed(found) and "batches that differ" in failure(found), wrong.__name__


def test_other_seeds_give_a_band_round_the_losses(same) -> None:
    sameness = same(LOOP, 80)
    band = sameness.spread(1)
    assert len(band) == len(sameness.reference_losses)
    assert all(low <= loss <= high for (low, high), loss in zip(band, sameness.reference_losses, strict=True))
    assert sum(low < high for low, high in band) == len(band), "the script seeds itself, and got another seed"


@pytest.mark.parametrize("loop", LOOPS)
def test_draws_at_one_state_work_in_any_loop(same, loop) -> None:
    sameness = same(LOOPS[loop], 83)
    other = checks(sameness, planted.DropoutDrawsOthers)
    assert passed(other), failure(other)
    assert any("spread of the loss" in check.what for check in other)
    off = checks(sameness, planted.DropoutLeftOut)
    assert not passed(off) and "spread of the loss" in failure(off)


def test_batches_that_cannot_be_had_again_give_no_draws(same) -> None:
    """They come by turns: each draw would see another batch, whose spread would hide that of dropout."""
    other = checks(same(BY_TURNS, 83), planted.DropoutDrawsOthers)
    assert not passed(other)
    assert not any("spread of the loss" in check.what for check in other)


def test_shaken_weights_that_fail_are_not_run_for_every_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    roles: list[str] = []

    class Made:
        epoch_steps = 0

        def parity(self, plan: object, label: str, role: str, *_: object) -> SimpleNamespace:
            roles.append(role)
            return SimpleNamespace(good=role != "shaken", parity={"losses": []}, run=None)

    far = ParityCheck("first-step loss difference", 1.0, "<= 0.1", False)
    monkeypatch.setattr("hotlap.measure.sameness.judge", lambda *_: [far])
    monkeypatch.setattr("hotlap.measure.sameness.may_be_rounding", lambda _: True)
    sameness = Sameness(Made(), "")  # type: ignore[arg-type]
    assert checks(sameness, planted.DoesNothing) == checks(sameness, planted.DoesNothing) == [far]
    assert roles == ["candidate", "shaken", "candidate"]


def test_settings_count_where_both_sides_have_them() -> None:
    ours = [{"p of 0.1": 0.5, "training of 0": True, "lr of optimizer 0": [[0.1]]}, {"lr of optimizer 0": [[0.05]]}]
    theirs = [{"training of 0": True, "lr of optimizer 0": [[0.1 + 1e-8]], "eps of 0.9": 1.0}, {}]
    assert census.differences(ours[:1], theirs[:1]) == (2, [])
    assert census.differences(ours, theirs) == (2, ["lr of optimizer 0: 0.05 -> 0.1 at step 2"])
    assert census.differences(ours, [*ours[:1], {**ours[1], "p of 0.1": 0.0}])[1] == ["p of 0.1: 0.5 -> 0 at step 2"]


def test_optimizers_are_compared_by_what_they_do() -> None:
    import torch

    one, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    plain = torch.optim.AdamW([*one.parameters(), *other.parameters()], lr=0.01)
    rate = torch.tensor(0.01)
    split = torch.optim.AdamW(
        [{"params": m.parameters()} for m in (one, other)], lr=rate, capturable=True, foreach=True
    )
    assert census.differences([census.optimizer(0, plain)], [census.optimizer(0, split)])[1] == []
    split.param_groups[1]["weight_decay"] = 0.0
    different = census.differences([census.optimizer(0, plain)], [census.optimizer(0, split)])[1]
    assert different == ["weight_decay of optimizer 0: 0.01 -> 0 0.01 at step 1"]
