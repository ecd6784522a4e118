"""One store for all loaders over a data set, filled by workers, by the loop and in the background: whoever draws, and
however an epoch ends, every batch is the one python would have seen."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, WeightedRandomSampler
from waiting import comes_true

from hotlap.catalogue.resident_dataset import ResidentDataset
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.run import LoaderFacts, Run
from hotlap.parts import resident, resident_loader
from hotlap.parts.no_fork import NoFork
from hotlap.parts.purity import reader
from hotlap.parts.resident import Resident, Room
from hotlap.parts.resident_iterators import StoreIterator, WorkersIterator
from hotlap.parts.resident_loader import ResidentSamples, serves

LENGTH = 61


class Cubes(Dataset):
    """Pure. `reads` counts in this process only; `bad` raises."""

    def __init__(self, length: int = LENGTH, bad: int = -1, seconds: float = 0.0) -> None:
        self.length, self.bad, self.seconds = length, bad, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        if index == self.bad:
            raise LookupError(f"sample {index}")
        return torch.full((2, 3), float(index) ** 3), index


@contextlib.contextmanager
def in_force(cores: int) -> Iterator[Joints]:
    """The technique, with so many cores for the background."""
    patch = Patch(Joints())
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(resident_loader, "free_cores", lambda workers: cores)
        ResidentDataset().apply(patch, {})
        yield patch.joints
        patch.undo()


@pytest.fixture
def applied() -> Iterator[Callable[[int], Joints]]:
    """Puts it in force until the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda cores: stack.enter_context(in_force(cores))


def drawn(batches: Any, stop: int = 0) -> list[Any]:
    """What one epoch delivers, errors included, in order."""
    found: list[Any] = []
    source = iter(batches)
    while len(found) != stop or not stop:
        try:
            x, y = next(source)
        except StopIteration:
            break
        except LookupError as error:
            found.append(type(error))
        else:
            found.append((x.tolist(), y.tolist(), x.dtype, y.dtype))
    return found


def trained(epochs: int, dataset: Dataset, build: Callable[[Any], DataLoader], rebuilt: bool, stop: int) -> list[Any]:
    """Some epochs, and after each a number from the script's generator."""
    torch.manual_seed(5)
    loader = build(dataset)
    found = []
    for _ in range(epochs):
        if rebuilt:
            loader = build(dataset)
        found.append([drawn(loader, stop), torch.rand(1).item()])
    return found


KINDS: dict[str, Callable[[Any], DataLoader]] = {
    "plain": lambda data: DataLoader(data, 8),
    "shuffled": lambda data: DataLoader(data, 8, shuffle=True, drop_last=True),
    "replacement": lambda data: DataLoader(data, 8, sampler=RandomSampler(data, True, 2 * LENGTH)),
    "weighted": lambda data: DataLoader(data, 8, sampler=WeightedRandomSampler(torch.ones(LENGTH).tolist(), 40)),
    "batch sampler": lambda data: DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 7, True)),
    "workers": lambda data: DataLoader(data, 8, shuffle=True, num_workers=2),
    "workers, drop_last": lambda data: DataLoader(data, 8, shuffle=True, num_workers=1, drop_last=True),
    "lasting": lambda data: DataLoader(data, 8, shuffle=True, num_workers=2, persistent_workers=True),
    "workers, replacement": lambda data: DataLoader(
        data, 8, sampler=RandomSampler(data, True, 50, torch.default_generator), num_workers=2
    ),
}


@pytest.mark.parametrize("rebuilt", [False, True], ids=["one loader", "rebuilt"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_index_over_three_epochs(kind: str, rebuilt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the end, left early, and with a sample that cannot be made; alone and with a filler beside it."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # how long torch waits for their end
    build = KINDS[kind]
    for bad, stop, arms in ((-1, 0, (0, 2)), (-1, 3, (2,)), (40, 0, (2,))):
        expected = trained(3, Cubes(bad=bad), build, rebuilt, stop)
        for cores in arms:
            with in_force(cores) as joints:
                assert trained(3, Cubes(bad=bad), build, rebuilt, stop) == expected, (cores, bad, stop)
            assert not joints.withdrawn


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_built_anew_are_served_and_start_no_workers(applied, workers: int) -> None:
    applied(0)
    dataset = Cubes()
    for epoch in range(3):
        loader = DataLoader(dataset, 8, num_workers=workers)
        iterator = iter(loader)
        assert isinstance(iterator, WorkersIterator if workers and not epoch else StoreIterator)
        assert serves(loader) is (epoch > 1)  # the second is about to be
        list(iterator)
        assert serves(loader) is (epoch > 0)
    assert not serves(DataLoader(Cubes()))


def test_two_loaders_share_and_the_store_goes_with_the_data_set(applied) -> None:
    applied(0)
    room: list[Room] = []
    keep = Room.take
    dataset = Cubes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Room, "take", lambda self, *rest: (room.append(self), keep(self, *rest))[1])
        list(DataLoader(dataset, 8))
        first = room[0].left_bytes
        read: list[float] = []
        patch.setattr(time, "sleep", read.append)  # which every sample calls
        assert drawn(DataLoader(dataset, 5))[0][1] == [0, 1, 2, 3, 4]
        assert len(read) == resident._PROVEN  # to see whether they are what they were
        assert len(room) == 1
    del dataset
    gc.collect()
    assert room[0].left_bytes == first + LENGTH * (6 * 4 + 8)


def test_the_background_fills_what_an_epoch_leaves_out(applied, monkeypatch: pytest.MonkeyPatch) -> None:
    applied(2)
    dataset = Cubes()
    loader = DataLoader(dataset, 8)
    drawn(loader, stop=1)
    samples = iter(loader)._samples
    assert comes_true(lambda: samples.store.share == 1.0 and not processes_below(os.getpid()))
    read: list[float] = []
    monkeypatch.setattr(time, "sleep", read.append)
    assert [one[1] for one in drawn(loader)] == [list(range(LENGTH))[at : at + 8] for at in range(0, LENGTH, 8)]
    assert len(read) == resident._PROVEN


def test_workers_are_sent_home_in_the_middle_of_an_epoch(applied) -> None:
    build = KINDS["lasting"]
    expected = trained(3, Cubes(), build, False, 0)
    applied(2)
    torch.manual_seed(5)
    loader = build(Cubes())
    found = []
    for epoch in range(3):
        iterator = iter(loader)
        assert isinstance(iterator, WorkersIterator)
        first = drawn(iterator, stop=2)
        assert comes_true(lambda iterator=iterator: iterator._samples.is_filled)
        rest = drawn(iterator)
        assert iterator._is_serving and len(rest) == 6, epoch
        found.append([first + rest, torch.rand(1).item()])
    assert found == expected
    assert comes_true(lambda: not processes_below(os.getpid()))


def test_fillers_end_with_their_store() -> None:
    dataset = Cubes(length=4000, seconds=0.01)
    store = Resident(len(dataset), reader(dataset), Room(1 << 20))
    store.batch([0, 1])
    store.fill(reader(dataset), 2)
    assert len(processes_below(os.getpid())) == 2
    del store
    assert not processes_below(os.getpid())


def test_fillers_end_with_the_training(tmp_path) -> None:
    """Killed in its tracks, it leaves nobody behind."""
    child = os.fork()
    if child == 0:
        dataset = Cubes(length=4000, seconds=0.01)
        store = Resident(len(dataset), reader(dataset), Room(1 << 20))
        store.batch([0, 1])
        store.fill(reader(dataset), 2)
        (tmp_path / "fillers").write_text(" ".join(map(str, processes_below(os.getpid()))))
        os.kill(os.getpid(), 9)
    os.waitpid(child, 0)
    fillers = (tmp_path / "fillers").read_text().split()
    assert len(fillers) == 2
    assert comes_true(lambda: not any(is_alive(pid) for pid in fillers))


def test_a_filler_that_makes_another_sample_is_not_believed() -> None:
    owner = os.getpid()

    class Elsewhere(Cubes):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor(float(index + (os.getpid() != owner)))

    dataset = Elsewhere(length=50)
    store = Resident(50, reader(dataset), Room(1 << 20))
    store.batch([0, 1])
    store.fill(reader(dataset), 2)
    assert comes_true(lambda: store.share >= 0 and not processes_below(owner))
    assert store.share == 2 / 50


def test_a_handle_opened_late_is_no_change(applied) -> None:
    """Workers opened their own; a sample that is loaded again opens none here, which those forked later would share."""

    class Lazy(Cubes):
        handle = None

        def __getitem__(self, index: int) -> Any:
            self.handle = self.handle or 7
            return super().__getitem__(index)

    joints = applied(0)
    loader = DataLoader(Lazy(length=200), 8, num_workers=1)
    for _ in range(4):
        drawn(loader)
    assert loader.dataset.handle is None and serves(loader) and not joints.withdrawn


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_changes_late_loses_no_batch(applied, workers: int, monkeypatch) -> None:
    """Where its state does not tell, only a sample that is loaded again does; from there on all batches are new."""
    monkeypatch.setattr(resident, "_CHECK_SHARE", 1e9)  # however long a check took, the next one is not put off
    offset = torch.zeros(())

    class Late(Cubes):
        def __getitem__(self, index: int) -> Any:
            return torch.tensor(float(index)) + offset, index

    joints = applied(0)
    dataset = Late(length=640)
    for epoch in range(4):
        seen, offsets = [], []
        for count, (x, y) in enumerate(DataLoader(dataset, 8, shuffle=True, num_workers=workers)):
            seen.extend(y.tolist())
            offsets.extend((x - y).tolist())
            if epoch == 2 and count == 5:
                offset += 1
        assert sorted(seen) == list(range(640))
        if epoch == 2:
            assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] == 1
            assert "no longer what it was" in joints.withdrawn[0]
    assert set(offsets) == {1.0}


def test_an_epoch_may_be_drawn_by_another_thread(applied) -> None:
    expected = trained(3, Cubes(), KINDS["shuffled"], True, 0)
    joints = applied(2)
    torch.manual_seed(5)
    dataset, found = Cubes(), []
    for _ in range(3):
        iterator = iter(KINDS["shuffled"](dataset))
        batches: list[Any] = []
        thread = threading.Thread(target=lambda iterator=iterator, batches=batches: batches.extend(drawn(iterator)))
        thread.start()
        thread.join()
        found.append([batches, torch.rand(1).item()])
    assert found == expected and not joints.withdrawn and serves(KINDS["plain"](dataset))


def test_seen_also_where_each_loader_lives_for_one_epoch() -> None:
    def facts(kept: bool, dataset: int = 1) -> LoaderFacts:
        known = LoaderFacts("Cubes", 8, 0, None, False, False, False, False, LENGTH, False, "fork")
        return dataclasses.replace(known, dataset_id=dataset, kept=kept, trains=True)

    assert ResidentDataset().seen(Run("2", "cpu", loaders=[facts(False), facts(True), facts(True)])) is True
    assert ResidentDataset().seen(Run("2", "cpu", loaders=[facts(False), facts(True), facts(False, 2)])) is False


_others: set[int] = set()


@pytest.fixture(autouse=True)
def others() -> None:
    """Python's helpers for spawned processes, which live on after the test that needed them."""
    _others.clear()
    _others.update(processes_below(os.getpid()))


def processes_below(parent: int) -> list[int]:
    with open(f"/proc/{parent}/task/{parent}/children") as children:
        return [pid for pid in map(int, children.read().split()) if pid not in _others and is_alive(pid)]


def is_alive(pid: int | str) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_that_were_told_otherwise_are_not_sent_home(applied) -> None:
    """`worker_init_fn` may change their copy of the data set: then nothing is made in this process."""

    class Shifted(Cubes):
        shift = 0

        def __getitem__(self, index: int) -> Any:
            x, y = super().__getitem__(index)
            return x, y + self.shift

    def tell(number: int) -> None:
        torch.utils.data.get_worker_info().dataset.shift = 1000

    joints = applied(1)
    loader = DataLoader(Shifted(), 8, num_workers=2, worker_init_fn=tell)
    for _ in range(3):
        assert torch.cat([y for _, y in loader]).tolist() == list(range(1000, 1000 + LENGTH))
    assert "workers make other samples" in joints.withdrawn[0]


def test_fillers_bear_it_that_all_files_are_closed() -> None:
    """The number of their pipe may belong to a file of the script's by then, which is neither read nor closed."""
    dataset = Cubes(seconds=0.01)
    store = Resident(LENGTH, reader(dataset), Room(1 << 20))
    store.batch([0, 1])
    store.fill(reader(dataset), 1)
    filler = store._filler
    assert filler is not None and filler._children
    os.close(filler._reading)
    own = os.open("/dev/zero", os.O_RDONLY)
    assert own == filler._reading  # the lowest number that is free
    assert store.batch([2, 3])[1].tolist() == [2, 3]
    assert not filler._children
    assert len(os.read(own, 3)) == 3
    os.close(own)


@pytest.mark.parametrize("missing", ["pipe", "fork"])
def test_without_files_or_processes_nothing_is_filled(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def refused() -> None:
        raise OSError("too many")

    store = Resident(LENGTH, reader(Cubes()), Room(1 << 20))
    store.batch([0, 1])
    monkeypatch.setattr(os, missing, refused)
    store.fill(reader(Cubes()), 2)
    assert store.batch([2, 3])[1].tolist() == [2, 3]
    store.close()


def test_who_loads_a_sample_in_a_forked_copy_keeps_no_thread_waiting_that_the_fork_waits_for() -> None:
    """Two loaders over one data set, drawn by a thread each, inside of `no_fork` as they are when drawn ahead."""
    own, both, given = NoFork(), threading.Barrier(2), []

    def read(index: list[int]) -> list[torch.Tensor]:
        time.sleep(0.1)  # the other one wants something loaded, too
        own.before_fork()
        own.after_fork()
        return [torch.tensor(number) for number in index]

    store = Resident(8, read, Room(1 << 20))
    store.batch([0])

    def drawn(index: list[int]) -> None:
        with own:
            both.wait(20.0)
            given.append(store.batch(index).tolist())

    threads = [threading.Thread(target=drawn, args=(index,), daemon=True) for index in ([1, 2], [2, 3])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert sorted(given) == [[1, 2], [2, 3]]


def test_a_data_set_that_is_read_here_is_read_by_one_thread_at_a_time() -> None:
    at_it, is_alone = [], []

    class Watched(Cubes):
        def __getitem__(self, index: int) -> Any:
            at_it.append(index)
            time.sleep(0.01)
            is_alone.append(len(at_it) == 1)
            return super().__getitem__(at_it.pop())

    dataset = Watched()
    samples = ResidentSamples(DataLoader(dataset, 4), Room(1 << 20), lambda dataset: 0, lambda reason: None)
    samples._is_read_here = True
    threads = [threading.Thread(target=samples.read, args=(range(5),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_alone == [True] * 15
