"""Batches are drawn and copied ahead beside the other techniques that change how a loader works."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.catalogue import find
from hotlap.observe.facts import loader_facts
from hotlap.observe.run import LoaderFacts, Run
from hotlap.technique import CannotHelp, Parity

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


class Squares(Dataset):
    def __init__(self, length: int = 60) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return {"x": torch.full((3,), float(index) ** 2), "y": (index, str(index))}


class Kept(Squares):
    """Without text, which cannot be kept in memory."""

    def __getitem__(self, index: int):
        return {"x": torch.full((3,), float(index) ** 2), "y": index}


def epochs(dataset: Dataset, stop: int = 0, **options) -> tuple[list, DataLoader]:
    torch.manual_seed(1)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, **options)
    found = []
    for epoch in range(4):
        for number, batch in enumerate(loader, 1):
            moved = batch["x"].to("meta")
            assert moved.is_meta or torch.equal(moved, batch["x"])
            found.append((batch["x"].tolist(), str(batch["y"]), torch.rand(1).item()))
            if number == stop and epoch:  # the first one fills what is kept
                break
        found.append(torch.rand(1).item())
    return found, loader


@functools.cache
def plainly(kind: type[Squares], stop: int, options: tuple[tuple[str, int], ...]) -> list:
    """Without any of them, once for all that are held against it."""
    found, loader = epochs(kind(), stop, **dict(options))
    assert not loader_facts(loader).copied_early
    return found


@pytest.mark.parametrize("stop", [0, 6], ids=["whole", "left early"])
@pytest.mark.parametrize(
    ("others", "kind", "options"),
    [
        ([], Squares, {"num_workers": 2}),
        (["pinned-batches"], Squares, {"num_workers": 2}),
        (["persistent-workers"], Squares, {"num_workers": 2}),
        (["loader-workers", "persistent-workers", "pinned-batches"], Squares, {}),
        (["resident-dataset"], Kept, {}),
        (["resident-dataset"], Kept, {"num_workers": 2}),
        (["persistent-workers", "pinned-batches", "resident-dataset"], Kept, {"num_workers": 2}),
    ],
    ids=lambda one: "+".join(one) if isinstance(one, list) else None,
)
@pytest.mark.parametrize("first", [False, True], ids=["applied last", "applied first"])
def test_beside_the_others(apply, clones, others, kind, options, first: bool, stop: int) -> None:
    expected = plainly(kind, stop, tuple(options.items()))
    for name in ["device-prefetch", *others] if first else [*others, "device-prefetch"]:
        patch = apply(name)
    found, loader = epochs(kind(), stop, **options)
    assert found == expected and patch.joints.withdrawn == []
    assert clones.handed >= 8 and loader_facts(loader).copied_early
    assert loader_facts(loader).kept == ("resident-dataset" in others)


def test_a_store_that_is_not_trusted_any_more(apply, clones) -> None:
    """In the middle of an epoch: no batch is lost, and the next ones are drawn when they are asked for."""
    table = torch.arange(640.0)  # changed below in a way that torch does not count, so its state does not tell

    class Hidden(Dataset):
        def __len__(self) -> int:
            return len(table)

        def __getitem__(self, index: int):
            return {"x": table[index].clone()}

    apply("resident-dataset")
    patch = apply("device-prefetch")
    loader = DataLoader(Hidden(), batch_size=8)
    for epoch in range(3):
        if epoch == 2:
            table.numpy()[:] += 1
        drawn = []
        for batch in loader:
            batch["x"].to("meta")
            drawn.append(batch["x"])
        assert len(drawn) == 80
        assert torch.equal(drawn[-1], table[-8:])
    assert clones.handed > 50 and "no longer what it was" in patch.joints.withdrawn[0]


def facts(**given) -> LoaderFacts:
    usual = {"dataset": "Squares", "batch_size": 4, "num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
    usual |= {"persistent_workers": False, "iterable": False, "in_memory": False, "length": 24}
    usual |= {"private_generator": False, "start_method": "fork", "trains": True}
    return LoaderFacts(**{**usual, **given})


def test_what_it_could_gain() -> None:
    technique = find("device-prefetch")
    parts = [[0.1, 0.2, 0.3, 0.2, 0.0, 0.0, 0.2]] * 20
    (attempt,) = technique.settings(Run("2.11", "cuda", [facts()], step_parts=parts))
    assert attempt.setting == {"ahead": 2} and attempt.most == pytest.approx(0.5)
    on_device = [[0.0, 0.8, 0.1, 0.1, 0.0, 0.0, 0.0]]
    (attempt,) = technique.settings(Run("2.11", "cuda", [facts()], step_parts=parts, device_parts=on_device))
    assert attempt.most == pytest.approx(0.8)
    assert technique.parity(None) is Parity.IDENTICAL


def test_what_it_cannot_help() -> None:
    technique = find("prefetch")
    assert isinstance(technique.settings(Run("2.11", "cuda")), CannotHelp)
    assert isinstance(technique.settings(Run("2.11", "cuda", [facts(num_workers=0)])), CannotHelp)
    assert not isinstance(technique.settings(Run("2.11", "cuda", [facts(num_workers=0, kept=True)])), CannotHelp)


def test_it_is_seen_where_all_training_loaders_have_it() -> None:
    technique = find("device-prefetch")
    both = [facts(copied_early=True), facts()]
    assert technique.seen(Run("2.11", "cuda", both)) is False
    assert technique.seen(Run("2.11", "cuda", both[:1])) is True
    assert technique.seen(Run("2.11", "cuda", [facts(trains=False)])) is None
