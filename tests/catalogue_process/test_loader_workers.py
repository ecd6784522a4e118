"""Workers where the data bears them, every sample once, and hands off everywhere else."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from own_rows import OwnRows
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from waiting import PATIENCE_SECONDS

import hotlap
from hotlap.catalogue import find
from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.measure.feeding import feeding
from hotlap.observe import meters
from hotlap.observe.bearing import open_handle
from hotlap.observe.run import LoaderFacts, Run
from hotlap.observe.scrutiny_facts import FeedFacts, Maker
from hotlap.technique import Choice

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


@pytest.mark.parametrize("name", ["loader-workers", "sample-cache"])
def test_a_length_that_is_not_told_is_not_needed(apply, name: str) -> None:
    """Torch never asks for it where a sampler is given."""

    class Untold(Numbers):
        def __len__(self) -> int:
            raise NotImplementedError

    apply(name)
    assert epoch(DataLoader(Untold(), 4, sampler=range(22)))[0] == list(range(22))


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


class Saved(SequentialSampler):
    def state_dict(self) -> dict[str, int]:
        return {}


UNTOUCHED = {
    "iterable": lambda: DataLoader(Stream()),
    "tensors": lambda: DataLoader(TensorDataset(torch.zeros(4))),
    "subset of tensors": lambda: DataLoader(Subset(TensorDataset(torch.zeros(4)), [0])),
    "tensors joined": lambda: DataLoader(ConcatDataset([TensorDataset(torch.zeros(4))] * 2)),
    "own generator": lambda: DataLoader(Drawing()),
    "own generator below": lambda: DataLoader(Subset(Drawing(), [0, 1])),
    "a sampler that is saved": lambda: DataLoader(Numbers(), sampler=Saved(Numbers())),
}


@pytest.mark.parametrize("build", UNTOUCHED.values(), ids=UNTOUCHED)
def test_left_alone(apply, build) -> None:
    apply("loader-workers", TWO)
    loader = build()
    assert loader.num_workers == 0 and loader.multiprocessing_context is None
    assert len(list(loader)) == len(list(loader)) > 0


def test_workers_that_the_script_chose_stay_unless_they_are_meant(apply) -> None:
    apply("loader-workers", TWO)
    loader = DataLoader(Numbers(), 4, num_workers=1, prefetch_factor=3)
    assert (loader.num_workers, loader.prefetch_factor) == (1, 3)
    assert sorted(epoch(loader)[0]) == list(range(22))


def test_another_number_in_place_of_the_script_s(apply) -> None:
    def orders(workers: int) -> list[list[int]]:
        torch.manual_seed(5)
        loader = DataLoader(
            Numbers(), 4, shuffle=True, num_workers=workers, prefetch_factor=3, timeout=PATIENCE_SECONDS
        )
        assert loader.prefetch_factor == 3 and not loader.persistent_workers
        return [epoch(loader)[0] for _ in range(2)]

    expected = orders(1)
    apply("loader-workers", {"num_workers": 2, "replacing": 1})
    assert orders(1) == expected
    assert DataLoader(Numbers(), 4, num_workers=1).num_workers == 2
    assert DataLoader(Numbers(), 4, num_workers=3).num_workers == 3, "chosen for another loader"
    assert DataLoader(Numbers(), 4).num_workers == 0
    assert DataLoader(Drawing(), 4, num_workers=1).num_workers == 1, "each worker copies its generator"
    assert DataLoader(Stream(), 4, num_workers=1).num_workers == 1
    assert DataLoader(TensorDataset(torch.zeros(64)), 4, num_workers=1).num_workers == 1


@pytest.mark.parametrize("has", [0, 1])
def test_those_in_place_of_fewer_live_on_in_the_script_s_order(apply, has: int) -> None:
    def run() -> tuple[list[list[int]], list[set[int]]]:
        torch.manual_seed(5)
        loader = DataLoader(Numbers(), 4, shuffle=True, num_workers=has)
        found = [epoch(loader) for _ in range(3)]
        return [order for order, _ in found], [makers for _, makers in found]

    expected, _ = run()
    apply("loader-workers", find("loader-workers").named({"num_workers": 2}))
    orders, makers = run()
    assert orders == expected
    assert makers[0] == makers[1] == makers[2] and len(makers[0]) == 2
    assert not DataLoader(Numbers(), 4, num_workers=1, worker_init_fn=print).persistent_workers


def test_a_number_named_by_hand_is_for_every_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with hotlap.applied("loader-workers:num_workers=5") as on:
        assert [DataLoader(Numbers(), 2, num_workers=number).num_workers for number in (0, 2, 9)] == [5, 5, 5]
        assert on.shown == []
        assert DataLoader(Numbers(8), 2, num_workers=1).num_workers == 2, "more would have nothing to do"
        assert DataLoader(Stream(), 2, num_workers=1).num_workers == 1
        assert DataLoader(TensorDataset(torch.zeros(64)), 4, num_workers=1).num_workers == 1
        (words,) = on.shown
    assert words.startswith(
        "loader-workers (num_workers 5, everywhere True, persistent_workers True): the loader of Numbers has"
        " num_workers=2, not 5: it has too"
    )
    assert "Stream has num_workers=1, not 5: its data set is iterable" in words and "of TensorDataset has" in words


def test_where_no_loader_is_meant_it_is_said_what_to_write() -> None:
    for names, loaders, is_told in (("", [2], True), ("", [2, 0], False), (":num_workers=3:replacing=1", [2], True)):
        with hotlap.applied(f"loader-workers{names}") as on:
            for number in loaders:
                DataLoader(Numbers(), 2, num_workers=number)
            assert bool(on.shown) is is_told
            assert not is_told or re.search(r"Numbers has num_workers=2, .*:num_workers=\d is for all", on.shown[0])


def test_a_deeper_queue_also_where_the_number_must_stay(apply) -> None:
    apply("loader-workers", {"num_workers": 1, "prefetch_factor": 8, "replacing": 1})
    for data in (Numbers(), Drawing(), Stream()):
        loader = DataLoader(data, 2, num_workers=1)
        assert (loader.num_workers, loader.prefetch_factor) == (1, 8)
    assert [int(i) for batch in loader for i in batch] == list(range(10))


def test_data_in_memory_may_lose_its_workers(apply) -> None:
    apply("loader-workers", {"num_workers": 0, "replacing": 2})
    data = TensorDataset(torch.arange(10))
    loader = DataLoader(
        data, 4, num_workers=2, prefetch_factor=4, timeout=PATIENCE_SECONDS, multiprocessing_context="fork"
    )
    assert loader.num_workers == 0 and [int(i) for (batch,) in loader for i in batch] == list(range(10))
    for options in ({"persistent_workers": True}, {"worker_init_fn": print}):
        assert DataLoader(data, num_workers=2, **options).num_workers == 2
    assert DataLoader(Numbers(), num_workers=2).num_workers == 2


SPAWNING = """
import multiprocessing, torch
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __init__(self): self.scale = SCALE
    def __len__(self): return 32
    def __getitem__(self, i): return torch.full((4,), float(i))
def main():
    model = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in DataLoader(Data(), batch_size=4):
        model(x).sum().backward(); opt.step()
"""
GUARDED = "if __name__ == '__main__':\n    multiprocessing.set_start_method('METHOD')\n    main()\n"
BARE = "multiprocessing.set_start_method('METHOD', force=True)\nmain()\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("start", "scale", "reason"),
    [(GUARDED, "2", ""), (GUARDED, "lambda: 2", "cannot send it to a worker"), (BARE, "2", "which fails without")],
    ids=["guarded", "unpicklable", "bare"],
)
def test_processes_start_as_the_script_says(run_script, tmp_path, method, start, scale, reason) -> None:
    script = tmp_path / "train.py"
    script.write_text((SPAWNING + start).replace("METHOD", method).replace("SCALE", scale))
    plain = run_script(script)
    assert plain.good, plain.log
    assert reason in plain.run.loaders[0].no_workers
    assert reason in getattr(find("workers").settings(plain.run), "reason", "")
    trial = run_script(script, [Choice(find("workers"), {"num_workers": 1})])
    assert trial.good, trial.log
    (facts,) = trial.run.loaders
    assert facts.start_method == method and facts.num_workers == (0 if reason else 1)
    assert trial.run.steps == plain.run.steps == 8


class Held(Numbers):
    def __init__(self, handle) -> None:
        super().__init__()
        self.inner = {"handle": handle}


def test_an_open_file_is_shared_by_forked_workers(apply, tmp_path) -> None:
    path = tmp_path / "samples"
    path.write_text("0123456789")
    apply("loader-workers", TWO)
    with path.open() as file:
        assert open_handle(Held(file)) == "self.inner['handle']"
        assert DataLoader(Held(file), 4).num_workers == 0
        assert DataLoader(Subset(Held(file), range(22)), 4).num_workers == 0
    assert DataLoader(Held(file), 4).num_workers == 2, "it is closed now"
    assert DataLoader(Held(io.BytesIO(b"1")), 4).num_workers == 2


def test_no_more_workers_than_there_is_room_for(apply, monkeypatch: pytest.MonkeyPatch) -> None:
    class Heavy(Numbers):
        def __getitem__(self, index: int):
            return torch.zeros(2**18)  # a batch of four has 4 MiB

    apply("loader-workers", {"num_workers": 2, "prefetch_factor": 2})
    for free, number in ((64 << 20, 2), (20 << 20, 1), (8 << 20, 0)):
        monkeypatch.setattr(meters, "shm_room", lambda free=free: (free, free))
        state = torch.get_rng_state()
        assert DataLoader(Heavy(), 4).num_workers == number
        assert torch.equal(state, torch.get_rng_state())


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


def facts(**known) -> LoaderFacts:
    usual = {"dataset": "Numbers", "batch_size": 4, "num_workers": 0, "prefetch_factor": None, "pin_memory": False}
    usual |= {"persistent_workers": False, "iterable": False, "in_memory": False, "length": 24}
    usual |= {"private_generator": False, "start_method": "fork", "trains": True}
    return LoaderFacts(**{**usual, **known})


def tries(loader: LoaderFacts, waits: list[float], **known) -> list[tuple[int, int]]:
    """(workers, depth or 0) of each setting; a step is one second beside its wait."""
    parts = [[wait, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0] for wait in waits]
    run = Run("2.11", "cuda", [loader], step_parts=parts, cores=16, **known)
    found = find("loader-workers").settings(run)
    if hasattr(found, "reason"):
        return [found.reason]
    assert all(0 < attempt.most <= 1 for attempt in found)
    assert all(attempt.setting.get("replacing", 0) == loader.num_workers for attempt in found)
    return [(one.setting["num_workers"], one.setting.get("prefetch_factor", 0)) for one in found]


SLOW, CALM_AND_STUCK = [1.0] * 64, ([0.0] * 12 + [4.0] * 4) * 4
TWO_OF_16 = {"num_workers": 2, "prefetch_factor": 2}


def test_which_numbers_and_depths_are_worth_trying() -> None:
    assert tries(facts(), SLOW) == [(8, 0), (14, 0), (4, 0)]
    assert tries(facts(), CALM_AND_STUCK) == [(8, 0), (14, 0), (4, 0), (8, 8)]
    assert tries(facts(**TWO_OF_16), SLOW) == [(8, 0), (14, 0), (4, 0)]
    assert tries(facts(**TWO_OF_16), CALM_AND_STUCK) == [(8, 0), (14, 0), (4, 0), (2, 8)]
    assert (8, 0) not in tries(facts(num_workers=8, prefetch_factor=2), SLOW)
    in_memory = facts(in_memory=True, **TWO_OF_16)
    assert tries(in_memory, SLOW)[0] == (0, 0)
    assert tries(facts(in_memory=True, worker_init=True, **TWO_OF_16), SLOW)[0] != (0, 0)


def test_cores_that_are_short_ask_for_fewer_workers_first() -> None:
    many = facts(num_workers=32, prefetch_factor=2)
    crowded = {"queue_seconds": 90.0, "wall_seconds": 100.0}
    assert tries(many, [0.0] * 63 + [0.1], **crowded) == [(4, 0), (8, 0), (14, 0)]


def test_memory_that_is_short_cuts_the_number_or_says_so() -> None:
    heavy = facts(batch_bytes=2**20)
    assert tries(heavy, SLOW, shm_free_bytes=64 * 2**20) == [(8, 0), (14, 0), (4, 0)]
    assert tries(heavy, SLOW, shm_free_bytes=20 * 2**20) == [(5, 0), (4, 0)]
    (reason,) = tries(heavy, SLOW, shm_free_bytes=2**20)
    assert "memory is short" in reason and "/dev/shm" in reason
    (reason,) = tries(heavy, SLOW, free_bytes=2**20)
    assert "memory is short" in reason


def test_a_number_that_must_stay_leaves_the_depth() -> None:
    fixed = facts(no_workers="its data set is iterable: ...", **TWO_OF_16)
    assert tries(fixed, CALM_AND_STUCK) == [(2, 8)]
    assert tries(fixed, SLOW) == ["its data set is iterable: ..."]
    assert tries(facts(no_workers="its data set owns a random generator"), SLOW) == [
        "its data set owns a random generator"
    ]


def test_a_script_with_workers_is_tuned_all_the_same() -> None:
    """In use is not the same as well set."""
    loader, parts = facts(**TWO_OF_16), [[1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]] * 32
    verdict = consider(find("loader-workers"), Run("2.11", "cuda", [loader], step_parts=parts, cores=16))
    assert isinstance(verdict, Candidate)
    assert verdict.choice().setting == {"num_workers": 8, "replacing": 2, "persistent_workers": True}
    for given in ({"persistent_workers": True}, {"worker_init": True}):
        own = consider(
            find("loader-workers"), Run("2.11", "cuda", [replace(loader, **given)], step_parts=parts, cores=16)
        )
        assert isinstance(own, Candidate) and own.choice().setting == {"num_workers": 8, "replacing": 2}
    idle = consider(find("loader-workers"), Run("2.11", "cuda", [loader], step_parts=[[0.0] * 6 + [1.0]], cores=16))
    assert isinstance(idle, Skipped) and idle.in_use


def test_rates_that_vary_are_told_from_too_few_workers() -> None:
    maker = Maker(0, 64, 256, 48.0, 0, 0, 0, 0.0)
    feed = FeedFacts(makers=[maker], draws=64, draws_from_empty=16, mean_depth=2.0, capacity=4)
    run = Run("2.11", "cuda", [facts(**TWO_OF_16)], feed=feed, step_parts=[[0.3, 0.0, 0.7, 0.0, 0.0, 0.0, 0.0]] * 64)
    told = feeding(replace(run, wall_seconds=100.0, cores=16), step_seconds=1.0)
    assert any("2 workers keep up on average, yet 25 %" in words for words in told.advice)
    slow = replace(run, feed=replace(feed, makers=[replace(maker, seconds=480.0)]), wall_seconds=100.0, cores=16)
    assert any("11 workers would keep up" in words for words in feeding(slow, step_seconds=1.0).advice)


@pytest.mark.parametrize(
    ("options", "is_kept"),
    [
        ({"batch_size": None}, True),
        ({"collate_fn": lambda samples: samples[0]}, True),
        ({"collate_fn": lambda samples: {"rows": samples}}, True),
        ({"collate_fn": torch.stack}, False),
        ({}, False),
    ],
)
def test_what_a_script_writes_into_the_data_set_s_own_tensors_stays_there(apply, options: dict, is_kept: bool) -> None:
    def run() -> tuple[list, int]:
        loader = DataLoader(OwnRows(), **options)
        found = []
        for _ in range(3):
            for batch in loader:
                rows = batch["rows"][0] if isinstance(batch, dict) else batch
                found.append(rows.add_(1).tolist())
        return found, loader.num_workers

    expected, _ = run()
    apply("loader-workers", {"num_workers": 2})
    assert run() == (expected, 0 if is_kept else 2)


class Counting(Numbers):
    reads = 0

    def __getitem__(self, index: int):
        self.reads += 1
        return index, self.reads


class Summed:
    """Collates, and goes on counting."""

    seen = 0

    def __call__(self, samples: list) -> torch.Tensor:
        self.seen += len(samples)
        return torch.tensor([self.seen, *(sample[0] for sample in samples)])


class Lately(Numbers):
    """Opens what it reads from when it is read first, and keeps what it has read."""

    file = None

    def __getitem__(self, index: int):
        self.file = self.file or open(os.devnull)  # noqa: SIM115
        self.kept = {**getattr(self, "kept", {}), index: index}
        return self.kept[index], os.getpid()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: DataLoader(Counting(), 4), "its data set changes while it is read"),
        (lambda: DataLoader(Counting(), 4, collate_fn=list), "its data set changes while it is read"),
        (lambda: DataLoader(Numbers(), 4, collate_fn=Summed()), "its collate_fn changes while it works"),
        (lambda: DataLoader(Lately(), 4), ""),
    ],
)
def test_a_run_leaves_alone_what_reading_changes(build, reason: str) -> None:
    def run() -> tuple[list, int]:
        loader = build()
        first = [batch if isinstance(batch, list) else batch.tolist() for batch in loader]
        return [str(one[:1]) for one in first], loader.num_workers

    expected, _ = run()
    with hotlap.applied("loader-workers:num_workers=2") as on:
        found, workers = run()
    assert workers == (0 if reason else 2)
    assert found == expected and (reason in on.shown[0] if reason else not on.shown)


def test_what_is_asked_of_samples_beforehand_leaves_no_trace(apply, tmp_path) -> None:
    class Noted(Numbers):
        def __init__(self) -> None:
            super().__init__()
            self.reads = multiprocessing.Value("i", 0)

        def __getitem__(self, index: int):
            with self.reads.get_lock():
                self.reads.value += 1
            return index

    class Logged(Numbers):
        def __getitem__(self, index: int):
            with open(tmp_path / "log", "a") as file:
                file.write("read\n")
            return index

    apply("loader-workers", {"num_workers": 2, "persistent_workers": True})
    noted = Noted()
    for data in (noted, Logged()):
        for collate in (None, lambda samples: samples):
            loader = DataLoader(data, 4, collate_fn=collate)
            assert [len(list(loader)) for _ in range(2)] == [6, 6] and loader.num_workers == 2
    assert noted.reads.value == 2 * 2 * 22
    assert len((tmp_path / "log").read_text().split()) == 2 * 2 * 22


def sums(loader: DataLoader) -> list[int]:
    return [int(numbers.sum()) for numbers, *_ in loader]


def found_in_a_child(question, answers) -> None:
    try:
        answers.put(question())
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.parametrize("is_daemon", [False, True])
@pytest.mark.parametrize("is_built_there", [False, True])
def test_processes_that_the_script_forks_have_loaders_of_their_own(
    apply, is_daemon: bool, is_built_there: bool
) -> None:
    def run() -> list:
        torch.manual_seed(5)
        loader, answers = DataLoader(Numbers(), 4, shuffle=True), multiprocessing.SimpleQueue()
        found: list = [sums(loader), sums(loader)]

        def question() -> list:
            own = DataLoader(Numbers(), 4, shuffle=True) if is_built_there else loader
            first = sums(own)
            own.dataset.epoch = 1  # so that workers are started anew
            return [first, sums(own)]

        child = multiprocessing.get_context("fork").Process(
            target=found_in_a_child, args=(question, answers), daemon=is_daemon
        )
        child.start()
        found.append(answers.get())
        child.join()
        return [*found, child.exitcode, sums(loader)]

    expected = run()
    apply("loader-workers", {"num_workers": 2, "persistent_workers": True})
    assert run() == expected


def test_a_script_that_minds_its_children_hears_of_none_but_its_own(apply) -> None:
    apply("loader-workers", TWO)
    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        assert DataLoader(Numbers(), 4).num_workers == 0
        assert DataLoader(Numbers(), 4, num_workers=1).num_workers == 1
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert DataLoader(Numbers(), 4).num_workers == 2


class Scaled(Numbers):
    scale = 1

    def __init__(self) -> None:
        super().__init__(40)

    def __getitem__(self, index: int):
        return index * self.scale, index


class Scaling(Scaled):
    """Changes what collates."""

    def __call__(self, samples: list) -> torch.Tensor:
        return torch.tensor(samples).T * self.scale


@pytest.mark.parametrize("name", ["", "resident-dataset", "device-prefetch", "pinned-batches"])
@pytest.mark.parametrize("way", ["data set", "collate_fn", "method", "closure"])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_what_changes_in_the_middle_of_an_epoch_is_seen_by_the_next_batch(name, way: str, lasting: bool) -> None:
    def run() -> tuple[list, int]:
        torch.manual_seed(5)
        data, other, size = Scaled(), Scaling(), 1
        changed = data if way == "data set" else other

        def boxed(samples: list) -> torch.Tensor:
            return torch.tensor(samples).T * size

        collate = {"data set": None, "closure": boxed, "method": other.__call__}.get(way, other)
        loader, found = DataLoader(data, 4, shuffle=True, collate_fn=collate), []
        for epoch in range(4):
            for number, (numbers, _) in enumerate(loader):
                found.append(numbers.tolist())
                if epoch == 1 and number in (3, 7):
                    changed.scale = size = number
                if epoch == 2 and number == 5:
                    changed.scale = size = 1
        return found, loader.num_workers

    expected, _ = run()
    with hotlap.applied(f"loader-workers:num_workers=2:persistent_workers={lasting},{name}"):
        assert run() == (expected, 2)


class OfTwo(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(one, other)


class Holed(Numbers):
    def __getitem__(self, index: int):
        if index in (9, 14):
            raise OfTwo("missing", str(index))
        return index, 0


@pytest.mark.parametrize("name", ["", "resident-dataset", "device-prefetch"])
@pytest.mark.parametrize("size", [4, None])
def test_an_error_of_a_sample_is_the_script_s_own(name: str, size: int | None) -> None:
    def run() -> list:
        loader, found = DataLoader(Holed(), size), []
        for _ in range(3):
            batches = iter(loader)
            while True:
                try:
                    found.append(str(next(batches)))
                except OfTwo as error:
                    found.append((str(error), error.__cause__, error.__context__))
                except StopIteration:
                    break
        return found

    expected = run()
    with hotlap.applied(f"loader-workers:num_workers=2,{name}"):
        assert run() == expected


@pytest.mark.parametrize("lasting", [False, True])
def test_a_forked_copy_that_throws_an_iterator_away_ends_no_workers(apply, lasting: bool) -> None:
    apply("loader-workers", {"num_workers": 2, "persistent_workers": lasting})
    gc.disable()  # so that it is the copy's to throw away
    try:
        held: list = [iter(DataLoader(Numbers(), 4))]
        next(held[0])
        is_over = held[0]._workers_done_event
        held.append(held)
        del held
        child = os.fork()
        if not child:
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        assert not is_over.is_set()
    finally:
        gc.enable()
        gc.collect()


FAILING = """
import torch
from torch.utils.data import DataLoader, Dataset
class Holed(Dataset):
    def __len__(self): return 40
    def __getitem__(self, index): return torch.ones(8) / (index != 33), 1 // (index != 33)
def train():
    for _ in DataLoader(Holed(), 4): pass
train()
"""


def test_workers_of_a_script_that_fails_leave_nothing_behind(tmp_path) -> None:
    (tmp_path / "train.py").write_text(FAILING)
    (tmp_path / "t").mkdir()
    command = [sys.executable, "-m", "hotlap", "run", "-q", "--with", "loader-workers:num_workers=2", "train.py"]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "t")}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1 and ended.stderr.strip().split("\n")[-1].startswith("ZeroDivisionError"), ended.stderr
    assert "worker process" not in ended.stderr and not list((tmp_path / "t").glob("pymp-*"))
