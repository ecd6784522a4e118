"""Workers live on, and every epoch is the one it would have been."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys

import numpy
import pytest
import torch
from own_rows import OwnRows
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

from hotlap.catalogue import find
from hotlap.observe.run import LoaderFacts, Run
from hotlap.source.module import Source
from hotlap.technique import CannotHelp, Parity

BOTH = "loader-workers", "persistent-workers"


class Numbers(Dataset):
    epoch = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, int]:
        return 100 * self.epoch + index, os.getpid()


def epochs(loader: DataLoader, before=lambda number: None) -> tuple[list[list[int]], list[set[int]]]:
    orders, makers = [], []
    for number in range(3):
        before(number)
        batches = list(loader)
        orders.append([int(i) for numbers, _ in batches for i in numbers])
        makers.append({int(pid) for _, pids in batches for pid in pids})
    return orders, makers


def test_the_same_workers_and_the_order_of_the_script(apply) -> None:
    def run() -> tuple[list[list[int]], list[set[int]]]:
        torch.manual_seed(5)
        return epochs(DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=2))

    expected, makers = run()
    assert expected[0] != expected[1] and makers[0] != makers[1]
    apply("persistent-workers")
    orders, makers = run()
    assert orders == expected
    assert makers[0] == makers[1] == makers[2] and len(makers[0]) == 2


@pytest.mark.parametrize("names", [BOTH, BOTH[::-1]], ids="+".join)
def test_workers_that_a_loader_is_given_live_on(apply, names: tuple[str, str]) -> None:
    """Whichever of the two is named first."""

    def run() -> tuple[list[list[int]], list[set[int]]]:
        torch.manual_seed(5)
        return epochs(DataLoader(Numbers(), batch_size=4, shuffle=True))

    expected, _ = run()
    for name in names:
        apply(name, {"num_workers": 2} if name == "loader-workers" else {})
    orders, makers = run()
    assert orders == expected
    assert makers[0] == makers[1] == makers[2] and len(makers[0]) == 2


def test_a_data_set_that_changed_is_read_by_new_workers(apply) -> None:
    apply("persistent-workers")
    data = Numbers()
    loader = DataLoader(Subset(data, range(24)), batch_size=4, num_workers=2)
    orders, _ = epochs(loader, lambda number: setattr(data, "epoch", number))
    assert [order[0] for order in orders] == [0, 100, 200]


class Cropping:
    size = 1

    def __call__(self, pairs: list) -> list:
        return [[number * self.size for number, _ in pairs], [pid for _, pid in pairs]]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("way", ["of an object", "of a method", "in a closure", "by worker_init_fn"])
def test_a_collate_fn_that_changed_is_used_by_new_workers(apply, name: str, way: str) -> None:
    def run() -> list[list[int]]:
        size, own, data = [1], Cropping(), Numbers()

        def prepare(worker: int) -> None:
            get_worker_info().dataset.epoch = size[0]

        def crop(pairs: list) -> list:
            return [[number * size[0] for number, _ in pairs], [pid for _, pid in pairs]]

        def before(number: int) -> None:
            own.size = size[0] = 1 + number // 2

        collate = {"of an object": own, "of a method": own.__call__, "in a closure": crop}.get(way)
        init = prepare if collate is None else None
        workers = 1 if init or name == BOTH[1] else 0
        return epochs(DataLoader(data, 4, num_workers=workers, collate_fn=collate, worker_init_fn=init), before)[0]

    expected = run()
    assert expected[0] == expected[1] != expected[2]
    apply(name, find(name).default and {"num_workers": 1, "persistent_workers": True})
    assert run() == expected


def test_loaders_without_workers_and_those_that_chose_are_left_alone(apply) -> None:
    apply("persistent-workers")
    assert not DataLoader(Numbers()).persistent_workers
    chosen = DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
    assert chosen.persistent_workers and len(list(chosen)) == 6


def test_undone_the_next_loader_is_plain(apply) -> None:
    apply("persistent-workers").undo()
    assert not DataLoader(Numbers(), num_workers=1).persistent_workers


def loader(**facts) -> LoaderFacts:
    usual = {"dataset": "Numbers", "batch_size": 4, "num_workers": 2, "prefetch_factor": 2, "pin_memory": False}
    usual |= {"persistent_workers": False, "iterable": False, "in_memory": False, "length": 24}
    usual |= {"private_generator": False, "start_method": "fork", "trains": True, "draws_random": False}
    return LoaderFacts(**{**usual, **facts})


def test_what_it_could_gain_is_what_later_epochs_cost_at_their_start() -> None:
    seconds = [3.0, 1.0, 1.0, 1.0] + [2.0, 1.0, 1.0, 1.0] * 2
    run = Run("2.11", "cpu", loaders=[loader()], step_seconds=seconds, epoch_starts=[0, 4, 8])
    (attempt,) = find("persistent-workers").settings(run)
    assert attempt.most == 2 / 10, "one second in each of two later epochs of five"
    once = Run("2.11", "cpu", loaders=[loader()], step_seconds=seconds, epoch_starts=[0])
    assert isinstance(find("persistent-workers").settings(once), CannotHelp)
    assert isinstance(find("persistent-workers").settings(Run("2.11", "cpu", [loader(num_workers=0)])), CannotHelp)


def test_parity_depends_on_random_draws() -> None:
    technique = find("persistent_workers")
    assert technique.parity(Run("2.11", "cpu", [loader()])) is Parity.IDENTICAL
    assert technique.parity(Run("2.11", "cpu", [loader(draws_random=None)])) is Parity.EQUIVALENT


def test_iterators_that_are_open_at_once_stay_apart(apply) -> None:
    """With workers that live on, torch has one iterator for all of them: a second `iter` would start the first anew."""

    def run() -> list[tuple[list[int], list[int]]]:
        torch.manual_seed(5)
        loader = DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=1)
        found = [(one.tolist(), other.tolist()) for (one, _), (other, _) in zip(loader, loader, strict=True)]
        for (one, _), _turn in zip(loader, range(12), strict=False):  # twice as long as an epoch
            found.append((one.tolist(), next(iter(loader))[0].tolist()))
        return found

    expected = run()
    assert len(expected) == 12
    apply("persistent-workers")
    assert run() == expected


def test_a_loader_that_makes_its_own_iterators_makes_one_for_each_epoch(apply) -> None:
    class Named(DataLoader):
        def _get_iterator(self):
            return (numbers.tolist() for numbers, _ in super()._get_iterator())

    def run() -> list[list[list[int]]]:
        torch.manual_seed(5)
        loader = Named(Numbers(), batch_size=4, shuffle=True, num_workers=1)
        return [list(loader) for _ in range(3)]

    expected = run()
    apply("persistent-workers")
    assert run() == expected


def test_an_iterator_that_is_over_has_no_workers_beside_those_of_the_next(apply) -> None:
    """Somebody still holds it, be it an error on the way to the collector: a worker that were to collect it would
    complain of processes that are not its own."""
    apply("persistent-workers")
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
    first = iter(loader)
    assert len(list(first)) == 6
    second = iter(loader)
    assert [worker.is_alive() for worker in (*first._workers, *second._workers)] == [False, True]
    assert list(first) == [] and len(list(second)) == 6


class Streamed(OwnRows, IterableDataset):
    def __iter__(self):
        return iter(self.rows)


class Wrapped:
    def __init__(self, samples: list) -> None:
        self.rows = samples[0]


HOLDING = {
    "samples as they are": (OwnRows, {"batch_size": None}),
    "a stream of them": (Streamed, {"batch_size": None}),
    "batches made beforehand": (OwnRows, {"collate_fn": lambda samples: samples[0]}),
    "an object of the script's": (OwnRows, {"collate_fn": Wrapped}),
}


@pytest.mark.parametrize(("kind", "options"), HOLDING.values(), ids=HOLDING)
def test_what_the_script_writes_into_a_batch_does_not_come_back(apply, kind, options: dict) -> None:
    def run() -> list[list[float]]:
        loader = DataLoader(kind(), num_workers=1, **options)
        found = []
        for _ in range(3):
            for batch in loader:
                rows = getattr(batch, "rows", batch)
                found.append(rows.add_(1).tolist())
        return found

    expected = run()
    apply("persistent-workers")
    assert run() == expected


class Counting(Numbers):
    """What a sample is depends on those read before it, by the same copy."""

    reads = 0

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        return 1000 * self.reads + index, os.getpid()


class InPlace(Numbers):
    def __init__(self) -> None:
        self.rows = numpy.ones((24, 2))

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.rows[index] *= 2
        return int(self.rows[index, 0]), os.getpid()


class Passes(IterableDataset):
    number = 0

    def __iter__(self):
        self.number += 1
        return ((1000 * self.number + index, os.getpid()) for index in range(24))


class Counter:
    """Collates, and counts."""

    batches = 0

    def __call__(self, pairs: list) -> list:
        self.batches += 1
        return [[1000 * self.batches + number for number, _ in pairs], [pid for _, pid in pairs]]


@pytest.mark.parametrize("kind", [Counting, InPlace, Passes])
@pytest.mark.parametrize("collate", [lambda: None, lambda: lambda pairs: list(zip(*pairs, strict=True)), Counter])
def test_what_reading_does_to_a_worker_s_copy_is_gone_in_the_next_epoch(apply, kind, collate) -> None:
    def run() -> list[list[int]]:
        return epochs(DataLoader(kind(), 4, num_workers=1, collate_fn=collate()))[0]

    expected = run()
    apply("persistent-workers")
    assert run() == expected


def test_batches_collated_otherwise_are_made_by_workers_that_live_on(apply) -> None:
    apply("persistent-workers")
    _, makers = epochs(DataLoader(Numbers(), 4, num_workers=2, collate_fn=lambda pairs: torch.tensor(pairs).T))
    assert makers[0] == makers[1] == makers[2] and len(makers[0]) == 2


@pytest.mark.parametrize(
    ("body", "is_told"),
    [
        ("for batch in loader: pass", True),
        ("for batch, number in zip(loader, range(9)): pass", True),
        ("for one, other in zip(loader, loader): pass", False),
        ("batches = iter(loader)\n    for batch in loader: pass", False),
        ("for batch in loader: print(next(iter(loader)))", False),
    ],
)
def test_a_file_that_opens_two_at_once_is_left_alone(body: str, is_told: bool) -> None:
    """What is written there is torch's own, which has one iterator for both."""
    head = "from torch.utils.data import DataLoader\nloader = DataLoader(photos, num_workers=4)\n"
    source = Source(f"{head}for epoch in range(9):\n    for batch in loader: pass\n    {body}\n", "train.py")
    assert bool(list(find("persistent-workers").spot(source))) is is_told


def rebuilt(loader: DataLoader, by: str) -> DataLoader:
    """As trainers do it, from all that can be read on a loader."""
    names = ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory", "multiprocessing_context")
    order = (
        {"batch_sampler": loader.batch_sampler}
        if by == "batch_sampler"
        else {"sampler": loader.sampler, "batch_size": 4}
    )
    return DataLoader(loader.dataset, **order, **{name: getattr(loader, name) for name in names})


@pytest.mark.parametrize("by", ["batch_sampler", "sampler"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("technique", ["loader-workers", "persistent-workers", BOTH])
def test_a_loader_that_a_trainer_builds_from_anothers_settings(apply, by: str, workers: int, technique) -> None:
    def run() -> list[list[int]]:
        torch.manual_seed(0)
        loader = rebuilt(DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=workers), by)

        def before(number: int) -> None:
            loader.dataset.epoch = number

        return epochs(loader, before)[0]

    expected = run()
    for name in technique if isinstance(technique, tuple) else [technique]:
        apply(name, {"num_workers": 2, "replacing": workers} if name == "loader-workers" else None)
    assert run() == expected


def test_what_a_script_chooses_for_a_second_loader_is_its_own(apply) -> None:
    apply("persistent-workers")
    data = Numbers()
    DataLoader(data, num_workers=2)
    chosen = DataLoader(data, num_workers=2, persistent_workers=True)
    epochs(chosen)
    data.epoch = 1
    assert epochs(chosen)[0][0][0] == 0, "python's workers do not see it either"


COPIES = {
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
    "saved": lambda loader: pickle.loads(pickle.dumps(loader)),
    "of a class of the script's": lambda loader: copy.deepcopy(Holding(loader)).loader,
}


class Holding:
    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader


@pytest.mark.parametrize("names", [("persistent-workers",), ("loader-workers",), BOTH], ids="+".join)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_loader_that_is_copied_is_as_the_script_made_it(apply, copied, workers: int, names) -> None:
    def run() -> tuple[list[list[int]], dict]:
        torch.manual_seed(0)
        loader = DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=workers)
        orders = epochs(loader)[0]
        other = copied(loader)
        for one in (other, loader, other):
            one.dataset.epoch += 1
            orders += epochs(one)[0]
        return orders, {name: kept for name, kept in vars(copied(other)).items() if isinstance(kept, (int, type(None)))}

    expected = run()
    for name in names:
        apply(name, {"num_workers": 2, "replacing": workers} if name == "loader-workers" else None)
    assert run() == expected


LEAVING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.rand(96, 4)), 16, num_workers=2)
for _ in range(2):
    for (x,) in loader:
        net(x).mean().backward()
        optimizer.step()
print(loader.persistent_workers)
"""


def test_workers_that_live_to_the_end_leave_nothing_behind(tmp_path) -> None:
    (tmp_path / "train.py").write_text(LEAVING)
    (tmp_path / "t").mkdir()
    command = [sys.executable, "-m", "hotlap", "run", "-q", "--with", "persistent-workers", "train.py"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "t")}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
    assert not list((tmp_path / "t").glob("pymp-*"))
