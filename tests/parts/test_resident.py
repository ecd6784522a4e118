"""Kept samples: the very batches python would have seen, epoch after epoch, or none of it."""

from __future__ import annotations

import _thread
import dataclasses
import gc
import importlib
import os
import random
import secrets
import signal
import time
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from hotlap.catalogue.resident_dataset import ResidentDataset
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.run import LoaderFacts, Run
from hotlap.parts import resident_loader
from hotlap.parts.purity import judged, reader, same, why_impure
from hotlap.parts.resident import Refused, Resident, Room
from hotlap.parts.resident_loader import serves, why_not
from hotlap.technique import CannotHelp


class Squares(Dataset):
    """Pure; `reads` counts in this process only."""

    def __init__(self, length: int = 37) -> None:
        self.length, self.reads, self.offset = length, 0, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return {"x": torch.full((3,), float(index) ** 2 + self.offset), "y": index}


class Drawing(Squares):
    def __init__(self, draw) -> None:
        super().__init__()
        self.draw = draw

    def __getitem__(self, index: int):
        return super().__getitem__(index) | {"z": float(self.draw())}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch):
    """The technique in force, with no core to fill its stores in the background; `kept.withdrawn` says why it gave
    up."""
    monkeypatch.setattr(resident_loader, "free_cores", lambda workers: 0)
    joints = Joints()
    patch = Patch(joints)
    ResidentDataset().apply(patch, {})
    yield joints
    patch.undo()


def epochs(number: int = 3, stop: int = 0, dataset: Dataset | None = None, **options) -> list[list]:
    """What so many epochs deliver, and one number drawn after each from the script's own generator."""
    torch.manual_seed(1)
    loader = DataLoader(Squares() if dataset is None else dataset, **({"batch_size": 8} | options))
    found = []
    for _ in range(number):
        drawn = []
        for count, batch in enumerate(loader, 1):
            drawn.append([batch["x"].tolist(), batch["y"].tolist(), batch["x"].dtype, batch["y"].dtype])
            if count == stop:
                break
        found.append([drawn, torch.rand(1).item()])
    found.append(serves(loader))
    return found


OPTIONS = [
    {},
    {"shuffle": True},
    {"shuffle": True, "drop_last": True},
    {"shuffle": True, "num_workers": 2},
    {"shuffle": True, "num_workers": 2, "persistent_workers": True},
    {"sampler": RandomSampler(range(37), replacement=True, num_samples=74)},
    {"shuffle": True, "generator": torch.Generator},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_the_same_batches_in_the_same_order(options: dict, request: pytest.FixtureRequest) -> None:
    def fresh() -> dict:
        return options | {"generator": torch.Generator().manual_seed(3)} if "generator" in options else options

    *expected, served = epochs(4, **fresh())
    assert not served
    joints = request.getfixturevalue("kept")
    *found, served = epochs(4, **fresh())
    assert found == expected
    assert served and joints.withdrawn == []


def test_a_look_that_fails_leaves_the_loader_as_it_was(kept, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object) -> None:
        raise AttributeError("nobody thought of that")

    monkeypatch.setattr(resident_loader, "judged", fails)
    assert [number for batch in DataLoader(Squares(), 8) for number in batch["y"].tolist()] == list(range(37))
    assert kept.withdrawn == [": its samples could not be tested (AttributeError: nobody thought of that)"]


def test_an_epoch_left_early(request: pytest.FixtureRequest) -> None:
    """Batches that workers had made ahead are thrown away, and must not be taken for those of the next epoch."""
    kinds = ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True})
    expected = [epochs(6, stop=3, shuffle=True, **options)[:-1] for options in kinds]
    request.getfixturevalue("kept")
    assert [epochs(6, stop=3, shuffle=True, **options)[:-1] for options in kinds] == expected


def test_what_the_collector_does_not_show_is_known_by_name() -> None:
    """A draw that leaves no trace in the sample, and a script that has frozen what the collector looks at."""

    class Idle(Squares):
        def __getitem__(self, index: int):
            random.random()
            return super().__getitem__(index)

    gc.freeze()
    try:
        assert why_impure(Idle(), [0, 5, 36]) == "a sample draws random numbers"
    finally:
        gc.unfreeze()


def test_batches_are_the_callers_own(kept) -> None:
    loader = DataLoader(Squares(), batch_size=8)
    for _ in range(3):
        for batch in loader:
            assert batch["x"][0, 0] == batch["y"][0] ** 2
            batch["x"].zero_()
    assert serves(loader)


def with_tests(workers: int, number: int = 3) -> tuple[list, bool, bool]:
    """What a training that draws at random and the tests after each of its epochs deliver, and which of them were
    kept."""
    torch.manual_seed(1)
    training = DataLoader(Drawing(lambda: torch.rand(1)), 8, shuffle=True)
    test = DataLoader(Squares(), 8, num_workers=workers, persistent_workers=workers > 0)
    found = []
    for _ in range(number):
        found += [(batch["y"].tolist(), batch["z"].tolist()) for batch in training]
        with torch.no_grad():
            found += [batch["x"].tolist() for batch in test]
    return [*found, torch.rand(1).item()], serves(training), serves(test)


@pytest.mark.parametrize("workers", [0, 2])
def test_only_tests_are_kept(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(resident_loader, "free_cores", lambda workers: 0)
    expected, *_ = with_tests(workers)
    joints = Joints()
    patch = Patch(joints)
    ResidentDataset().apply(patch, {"of": "tests"})
    try:
        found, is_training_kept, is_test_kept = with_tests(workers)
    finally:
        patch.undo()
    assert found == expected
    assert is_test_kept and not is_training_kept and joints.withdrawn == []


def test_workers_that_live_on_know_their_data_set_as_it_was(request: pytest.FixtureRequest) -> None:
    """Also when it is kept. A loader without workers sees what the script does to it."""

    def run() -> list:
        data = Squares()
        training = DataLoader(data, 8, shuffle=True, num_workers=2, persistent_workers=True)
        torch.manual_seed(1)
        found = []
        for number in range(5):
            data.offset += number > 2
            found += [batch["x"].tolist() for batch in training]
        return [*found, serves(training), [batch["x"].tolist() for batch in DataLoader(data, 8)]]

    expected = run()
    request.getfixturevalue("kept")
    found = run()
    assert found[-2] and not expected[-2]
    assert found[:-2] == expected[:-2] and found[-1] == expected[-1]


def test_a_loader_that_makes_its_own_iterators_still_does() -> None:
    class Doubled(DataLoader):
        def _get_iterator(self) -> Any:
            return ({"x": 2 * batch["x"]} for batch in super()._get_iterator())

    def run() -> list:
        with torch.no_grad():
            return [batch["x"].tolist() for loader in [Doubled(Squares(), 8)] for _ in range(2) for batch in loader]

    expected = run()
    patch = Patch(Joints())
    ResidentDataset().apply(patch, {"of": "tests"})
    try:
        assert run() == expected
    finally:
        patch.undo()


def loader_run(draws: int, random_tests: bool = False, random_training: bool | None = True) -> Run:
    def facts(trains: bool, draws_random: bool | None, drawn: int) -> LoaderFacts:
        plain = LoaderFacts("Squares", 8, 0, 2, False, False, False, False, 37, False, "fork")
        return dataclasses.replace(plain, trains=trains, draws_random=draws_random, draws=drawn)

    loaders = [facts(True, random_training, 9), facts(False, random_tests, draws)]
    return Run(torch="2.13.0", device="cpu", loaders=loaders)


def test_tests_are_offered_where_the_training_draws_at_random_and_they_do_not() -> None:
    tries = ResidentDataset().settings(loader_run(draws=5))
    assert not isinstance(tries, CannotHelp) and [one.setting for one in tries] == [{"of": "tests"}]
    unsure = loader_run(draws=5, random_training=None)
    both = ResidentDataset().settings(unsure)
    assert not isinstance(both, CannotHelp) and [one.setting for one in both] == [{}, {"of": "tests"}]
    there = ResidentDataset().settings(dataclasses.replace(unsure, device="cuda"))
    kinds = [{"on": "device"}, {}, {"on": "device", "of": "tests"}]
    assert not isinstance(there, CannotHelp) and [one.setting for one in there] == kinds
    odd = loader_run(draws=5)
    odd = dataclasses.replace(odd, loaders=[odd.loaders[0], dataclasses.replace(odd.loaders[1], own_collate=True)])
    for run in (loader_run(draws=0), loader_run(draws=5, random_tests=True), odd):
        refused = ResidentDataset().settings(run)
        assert isinstance(refused, CannotHelp) and refused.reason.startswith("its samples are drawn at random")


TORCHS, NUMPYS = torch.Generator(), numpy.random.default_rng(1)
DRAWS = {
    "torch": lambda: torch.rand(1),
    "torch, own generator": lambda: torch.rand(1, generator=TORCHS),
    "random": random.random,
    "random, own": random.Random(1).random,
    "numpy": numpy.random.rand,
    "numpy, own": numpy.random.default_rng(1).random,
    "rarely": lambda: NUMPYS.random() < 1e-9,
    "the clock": lambda: int(time.time()) // 1000,
    "secrets": lambda: secrets.randbelow(2**60) < 1,
    "another numpy each time": lambda: numpy.random.default_rng().random() < 0,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_what_is_drawn_is_never_kept(kept, draw) -> None:
    loader = DataLoader(Drawing(draw), batch_size=8)
    for _ in range(3):
        list(loader)
    assert not serves(loader)
    assert len(kept.withdrawn) == 1 and "resident" not in kept.withdrawn[0]


def test_purity_is_judged_in_a_process_of_its_own() -> None:
    class Deadly(Squares):
        def __getitem__(self, index: int):
            import os

            os._exit(1)

    class Raising(Squares):
        def __getitem__(self, index: int):
            raise KeyError(index)

    assert why_impure(Squares(), [0, 5, 36]) is None
    assert "ended the process" in (why_impure(Deadly(), [0]) or "")
    assert "KeyError" in (why_impure(Raising(), [0]) or "")
    state = torch.get_rng_state()
    assert why_impure(Drawing(lambda: torch.rand(1)), [0]) is not None
    assert torch.equal(state, torch.get_rng_state())


def test_a_data_set_that_changes_between_epochs_goes_on_as_it_was(kept) -> None:
    dataset = Squares()
    loader = DataLoader(dataset, batch_size=8)
    for epoch in range(4):
        dataset.offset = 10 * (epoch // 2)
        seen = torch.cat([batch["x"][:, 0] for batch in loader])
        assert seen.tolist() == [float(i) ** 2 + dataset.offset for i in range(37)]
    assert "changed between two epochs" in kept.withdrawn[0]


def test_a_sample_that_changes_unseen_is_found_by_loading_it_again(kept) -> None:
    """No batch is lost when that happens: the rest of the epoch is made as the loader would."""
    elsewhere = types.ModuleType("elsewhere")  # a module's own is not looked at, so the data set's state does not tell
    elsewhere.table = table = torch.arange(640.0)

    class Hidden(Dataset):
        def __len__(self) -> int:
            return 640

        def __getitem__(self, index: int):
            return {"x": elsewhere.table[index].clone()}

    loader = DataLoader(Hidden(), batch_size=8)
    list(loader)
    table += 1
    drawn = [batch["x"] for batch in loader]
    assert len(drawn) == 80 and torch.equal(drawn[-1], table[-8:])
    assert "no longer what it was" in kept.withdrawn[0]
    assert torch.equal(torch.cat([batch["x"] for batch in loader]), table)


def test_what_is_ruled_out() -> None:
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    data = Squares()
    assert why_not(DataLoader(data)) is None
    assert "iterable" in str(why_not(DataLoader(Endless())))
    assert "collates" in str(why_not(DataLoader(data, collate_fn=lambda items: items)))
    assert "collates" in str(why_not(DataLoader(data, batch_size=None)))
    assert "endless" in str(why_not(DataLoader(data, sampler=RandomSampler(data, True, num_samples=int(1e10)))))


def test_batches_that_cannot_be_kept(kept) -> None:
    class Words(Squares):
        def __getitem__(self, index: int):
            return str(index), index

    class Ragged(Squares):
        def __getitem__(self, index: int):
            return torch.zeros(index + 1)

    assert [len(list(DataLoader(Words(), batch_size=8))) for _ in range(2)] == [5, 5]
    assert [len(list(DataLoader(Ragged(), batch_size=1))) for _ in range(2)] == [37, 37]
    assert all("more than tensors" in why or "one shape" in why for why in kept.withdrawn)


def test_too_large_is_left_alone_and_all_stores_share_the_room() -> None:
    data, batch, room = TensorDataset(torch.zeros(1000, 100)), [torch.zeros(2, 100)], Room(600_000)
    with pytest.raises(Refused, match="GiB"):
        Resident(10**6, reader(data), room).keep([0, 1], batch)
    first, second = (Resident(len(data), reader(data), room) for _ in range(2))
    first.keep([0, 1], batch)
    assert room.left_bytes == 200_000
    with pytest.raises(Refused, match="GiB"):
        second.keep([0, 1], batch)
    del first
    second.keep([0, 1], batch)
    assert room.left_bytes == 200_000


def test_same() -> None:
    nan = float("nan")
    assert same({"a": [torch.tensor(nan), nan, 1, "x"]}, {"a": [torch.tensor(nan), nan, 1, "x"]})
    assert not same(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same(torch.tensor(0.0), torch.tensor(-0.0))
    assert not same(object(), object())
    assert same(numpy.arange(3), numpy.arange(3)) and not same(numpy.arange(3), numpy.arange(4))


def test_samples_are_judged_as_the_loader_reads_them() -> None:
    """By `__getitems__`, where there is one: it may draw, and make a sample depend on its neighbours."""

    class Together(Squares):
        def __getitems__(self, index: list[int]):
            return [{"x": torch.tensor(float(max(index)))} for _ in index]

    class Drawn(Squares):
        def __getitems__(self, index: list[int]):
            return [{"x": torch.rand(1)} for _ in index]

    assert "differ" in (why_impure(Together(), [0, 5, 36]) or "")
    assert "random" in (why_impure(Drawn(), [0, 5, 36]) or "")


def test_what_reading_does_besides_rules_it_out(kept) -> None:
    class Counting(Squares):
        def __getitem__(self, index: int):
            self.reads += 1
            return super().__getitem__(index)

    class Talking(Squares):
        def __getitem__(self, index: int):
            print("reading", index)
            return super().__getitem__(index)

    for dataset in (Counting(), Talking()):
        list(DataLoader(dataset, batch_size=8))
    assert "changes its data set" in why_impure(Counting(), [0], lambda dataset: dataset.reads)
    assert "prints" in why_impure(Talking(), [0])


def test_an_open_file_is_left_alone(kept, tmp_path) -> None:
    """A forked reader would move the place in the file from which the training reads."""

    class Filed(Squares):
        def __init__(self) -> None:
            super().__init__()
            (tmp_path / "numbers").write_bytes(bytes(37))
            self.file = (tmp_path / "numbers").open("rb")

        def __getitem__(self, index: int):
            self.file.seek(index)
            return torch.tensor(self.file.read(1)[0])

    dataset = Filed()
    list(DataLoader(dataset, batch_size=8))
    assert "self.file" in kept.withdrawn[0]
    dataset.file.close()


def test_batches_lie_in_main_memory_whatever_the_default_device_is() -> None:
    store = Resident(37, reader(Squares()), Room(1 << 20))
    expected = store.batch([3, 1])["x"]
    torch.set_default_device("meta")
    try:
        found = store.batch([3, 1])["x"]
    finally:
        torch.set_default_device(None)
    assert torch.equal(found, expected)


def test_a_container_may_have_less_memory_than_its_machine(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.observe.memory.free_memory", lambda: 1000)
    joints = request.getfixturevalue("kept")
    list(DataLoader(Squares(), batch_size=8))
    assert "GiB left" in joints.withdrawn[0]


class Opening(Squares):
    """Leaves a file open in whoever reads it, as a data set does that opens its own when it is first read."""

    def __init__(self, path: Path | None) -> None:
        super().__init__()
        self.path = path

    def __getitem__(self, index: int):
        if self.path is not None:
            os.open(self.path, os.O_RDONLY)
        return super().__getitem__(index)


@pytest.mark.parametrize("is_opening", [False, True])
def test_samples_are_looked_at_again_here_where_that_leaves_nothing_behind(
    is_opening: bool, kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    asked, copies = resident_loader.asked, []
    monkeypatch.setattr(resident_loader, "asked", lambda *given: copies.append(given) or asked(*given))
    *found, served = epochs(4, dataset=Opening(tmp_path / "file" if is_opening else None), num_workers=2)
    assert served and kept.withdrawn == [] and found[1][0] == found[3][0]
    assert bool(copies) is is_opening
    opened = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert str(tmp_path / "file") not in opened


class Leaving(Squares):
    """Does something to the process that reads it."""

    def __init__(self, leaves) -> None:
        super().__init__()
        self.leaves = leaves

    def __getitem__(self, index: int):
        self.leaves()
        return super().__getitem__(index)


def has_a_child() -> None:
    if os.fork() == 0:
        os._exit(0)


@pytest.mark.parametrize(
    ("leaves", "is_seen"),
    [
        (lambda: None, False),
        (lambda: os.listdir("/proc/self/fd"), False),
        (lambda: os.environ.update(READ="1"), True),
        (lambda: os.chdir("/"), True),
        (lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN), True),
        (lambda: _thread.start_new_thread(time.sleep, (60,)), True),  # as a library's, of which Python knows nothing
        (has_a_child, True),
        (lambda: torch.set_grad_enabled(False), True),
        (lambda: importlib.import_module("met_by_a_sample"), True),
    ],
)
def test_what_a_sample_leaves_behind_is_seen(leaves, is_seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "met_by_a_sample.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    verdict = judged(Leaving(leaves), range(4))
    assert verdict.reason is None and verdict.leaves_something is is_seen


def test_another_file_in_the_place_of_one_is_seen(tmp_path: Path) -> None:
    (tmp_path / "one").touch()
    (tmp_path / "other").touch()
    place = os.open(tmp_path / "one", os.O_RDONLY)

    def puts_another_there() -> None:
        other = os.open(tmp_path / "other", os.O_RDONLY)
        os.dup2(other, place)
        os.close(other)

    try:
        assert judged(Leaving(puts_another_there), range(4)).leaves_something
    finally:
        os.close(place)


class Broken(Squares):
    def __getitem__(self, index: int):
        if index == 35:  # which is not among those that are tested
            raise KeyError(index)
        return super().__getitem__(index)


def test_an_error_that_a_worker_would_have_met_is_shown_as_its_own(kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_loader, "free_cores", lambda workers: 0)
    loader = DataLoader(Broken(), batch_size=5, num_workers=1)
    for _, _ in zip(range(7), loader, strict=False):  # all but the last two
        pass
    with pytest.raises(KeyError, match="Caught KeyError in DataLoader worker process 0"):
        list(loader)
    assert serves(loader) and kept.withdrawn == []


class Threaded(Squares):
    """Stands for what adds up in another order with another number of threads."""

    def __getitem__(self, index: int):
        return super().__getitem__(index) | {"z": torch.get_num_threads()}


def test_samples_are_looked_at_again_here_with_as_many_threads_as_a_worker_has(kept) -> None:
    own = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        *_, served = epochs(4, dataset=Threaded(), num_workers=2)
        assert served and kept.withdrawn == [] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(own)
