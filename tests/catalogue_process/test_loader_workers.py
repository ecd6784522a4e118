"""Workers where the data bears them, every sample once, and hands off everywhere else."""

from __future__ import annotations

import multiprocessing
import os
import random

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

TWO = {"num_workers": 2}


class Numbers(Dataset):
    def __init__(self, count: int = 22) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int):
        return index, os.getpid(), random.random()


class Drawing(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(0)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


def epoch(loader: DataLoader) -> tuple[list[int], set[int]]:
    batches = list(loader)
    return [int(i) for batch in batches for i in batch[0]], {int(pid) for batch in batches for pid in batch[1]}


class Own(DataLoader):
    def __init__(self, data, size, **options) -> None:
        super().__init__(data, size, **options)
        self.mine = True


@pytest.mark.parametrize(
    "build",
    [
        lambda data: DataLoader(data, 4),
        lambda data: DataLoader(data, 4, True),
        lambda data: DataLoader(data, 4, False, None, None, 0),
        lambda data: DataLoader(dataset=data, batch_size=4, num_workers=0),
        lambda data: DataLoader(data, **{"batch_size": 4, "shuffle": True, "drop_last": False}),
        lambda data: DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(range(22), 4, False)),
        lambda data: Own(data, 4, shuffle=True),
        lambda data: DataLoader(data, 4, multiprocessing_context="fork"),
        lambda data: DataLoader(Subset(data, range(22)), 4),
    ],
    ids=["positional", "shuffled", "all", "keywords", "dict", "batch-sampler", "subclass", "context", "subset"],
)
def test_every_index_once_an_epoch_from_other_processes(apply, build) -> None:
    apply("loader-workers", TWO)
    loader = build(Numbers())
    assert loader.num_workers == 2
    orders = []
    for _ in range(2):
        indices, pids = epoch(loader)
        assert sorted(indices) == list(range(22))
        assert len(pids) == 2 and os.getpid() not in pids
        orders.append(indices)
    if isinstance(loader.sampler, torch.utils.data.RandomSampler):
        assert orders[0] != orders[1]


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_order_is_that_of_the_script(apply, shuffle: bool) -> None:
    def orders() -> list[list[int]]:
        torch.manual_seed(5)
        loader = DataLoader(Numbers(), 4, shuffle=shuffle)
        return [epoch(loader)[0] for _ in range(2)]

    expected = orders()
    apply("loader-workers", TWO)
    assert orders() == expected


def test_random_draws_differ_between_workers_and_epochs(apply) -> None:
    apply("loader-workers", TWO)
    loader = DataLoader(Numbers(), 2)
    draws = [float(x) for _ in range(2) for batch in loader for x in batch[2]]
    assert len(set(draws)) == len(draws)


def test_prefetch_factor(apply) -> None:
    apply("loader-workers", {"num_workers": 1, "prefetch_factor": 5})
    assert DataLoader(Numbers()).prefetch_factor == 5
    assert DataLoader(Stream()).prefetch_factor is None


UNTOUCHED = {
    "iterable": lambda: DataLoader(Stream()),
    "tensors": lambda: DataLoader(TensorDataset(torch.zeros(4))),
    "subset of tensors": lambda: DataLoader(Subset(TensorDataset(torch.zeros(4)), [0])),
    "tensors joined": lambda: DataLoader(ConcatDataset([TensorDataset(torch.zeros(4))] * 2)),
    "own generator": lambda: DataLoader(Drawing()),
    "own generator below": lambda: DataLoader(Subset(Drawing(), [0, 1])),
}


@pytest.mark.parametrize("build", UNTOUCHED.values(), ids=UNTOUCHED)
def test_left_alone(apply, build) -> None:
    apply("loader-workers", TWO)
    loader = build()
    assert loader.num_workers == 0 and loader.multiprocessing_context is None
    assert len(list(loader)) == len(list(loader)) > 0


def test_workers_that_the_script_chose_stay(apply) -> None:
    apply("loader-workers", TWO)
    loader = DataLoader(Numbers(), 4, num_workers=1, prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 3)
    assert sorted(epoch(loader)[0]) == list(range(22))


def test_a_script_that_spawns_is_left_alone(apply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    apply("loader-workers", TWO)
    assert DataLoader(Numbers()).num_workers == 0


def test_undone_the_next_loader_is_plain_and_the_first_still_works(apply) -> None:
    patch = apply("loader-workers", TWO)
    loader = DataLoader(Numbers(), 4)
    patch.undo()
    assert DataLoader(Numbers(), 4).num_workers == 0
    assert sorted(epoch(loader)[0]) == list(range(22))


def test_workers_that_live_on_keep_the_order_of_every_epoch(apply) -> None:
    """torch draws one seed less for them, which would shuffle later epochs otherwise than the script does."""

    def orders() -> list[list[int]]:
        torch.manual_seed(5)
        loader = DataLoader(Numbers(24), batch_size=4, shuffle=True)
        return [epoch(loader)[0] for _ in range(3)]

    expected = orders()
    assert expected[0] != expected[1]
    apply("loader-workers", {"num_workers": 2, "persistent_workers": True})
    assert orders() == expected


class Scheduled(Dataset):
    """What `set_epoch` does to many data sets; under a Subset, where the loader does not see it."""

    epoch = 0

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return 100 * self.epoch + index


def test_workers_that_live_on_see_what_changed_between_epochs(apply) -> None:
    def sums() -> list[int]:
        inner = Scheduled()
        loader, found = DataLoader(Subset(inner, range(16)), batch_size=2), []
        for number in range(3):
            inner.epoch = number
            found.append(sum(int(i) for batch in loader for i in batch))
        return found

    expected = sums()
    assert len(set(expected)) == 3
    apply("loader-workers", {"num_workers": 2, "persistent_workers": True})
    assert sums() == expected


def test_a_data_set_that_changes_while_it_is_read_is_left_alone(run_script, tmp_path) -> None:
    from hotlap.catalogue import find

    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Counting(Dataset):\n    calls = 0\n    def __len__(self): return 64\n"
        "    def __getitem__(self, i):\n        self.calls = self.calls + STEP\n        return torch.ones(4)\n"
        "model = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for x in DataLoader(Counting(), batch_size=4):\n    model(x).sum().backward(); opt.step()\n"
    )
    text = script.read_text()
    for step, refused in (("1", True), ("0", False)):
        script.write_text(text.replace("STEP", step))
        tries = find("workers").settings(run_script(script).run)
        assert ("changes while it is read" in getattr(tries, "reason", "")) is refused
