"""Loaders drawn ahead: what the script sees is what it would have seen, batch by batch, draw by draw."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from clone_copier import CloneCopier
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from waiting import PATIENCE_SECONDS, comes_true

from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.drawing_ahead import Drawing, Paused, Prefetched
from hotlap.parts.early_batches import EarlyBatches, serves, why_not


class Numbers(Dataset):
    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return {"x": torch.full((3,), float(index)), "drawn": torch.rand(1), "name": str(index)}


class Broken(Numbers):
    def __getitem__(self, index: int):
        if index == 20:
            raise KeyError("sample 20")
        return super().__getitem__(index)


class Stream(IterableDataset):
    def __init__(self, length: int | None = 40) -> None:
        self.length = length

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        number = info.id
        while self.length is None or number < self.length:
            yield {"x": torch.full((3,), float(number)), "drawn": torch.rand(1), "name": str(number)}
            number += info.num_workers


class Logged(Sampler):
    """Takes down when it is asked."""

    def __init__(self, log: list) -> None:
        self.log = log

    def __iter__(self) -> Iterator[int]:
        for number in range(40):
            self.log.append(f"asked for {number}")
            yield number


class Custom(Sampler):
    """Draws as it goes, from the generators that the loop draws from as well."""

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.length):
            yield (int(torch.randint(self.length, ())) + random.randrange(self.length)) % self.length


@pytest.fixture
def copier() -> CloneCopier:
    return CloneCopier()


@pytest.fixture
def ahead(copier: CloneCopier):
    """`ahead()` attaches; its `given_up` says why it ended."""
    patch = Patch(Joints())

    def attach(number: int = 2) -> EarlyBatches:
        early = EarlyBatches(copier, number, patch.withdraw)

        def drew(proceed, iterator):
            batch = proceed(iterator)
            early.drew(iterator, batch)
            return batch

        patch.at(patch.joints.loader_started, early.starts, depth=5)
        patch.at(patch.joints.batch_drawn, drew)
        patch.on_undo(early.leave)
        early.patch = patch
        return early

    yield attach
    patch.undo()


def threads() -> int:
    return sum(one.name == "hotlap-draws-ahead" for one in threading.enumerate())


def none_left() -> bool:
    """Threads end soon after they are told to. The collector, which goes over all of torch, only where one is left."""
    return comes_true(lambda: not threads() or (gc.collect() >= 0 and not threads()))


def train(make: Callable[[], DataLoader], stops: Sequence[int] = (0, 0, 0)) -> list:
    """All that a script could see of some epochs, its own random draws included; each is left after so many batches."""
    torch.manual_seed(1)
    random.seed(1)
    loader, found = make(), []
    for stop in stops:
        for number, batch in enumerate(loader, 1):
            moved = batch["x"].to("meta")
            seen = batch["x"].tolist(), batch["drawn"].tolist(), batch["name"], list(batch), len(loader)
            assert moved.is_meta or torch.equal(moved, batch["x"])
            found.append((seen, torch.rand(1).item(), random.random()))
            if number == stop:
                break
        generator = loader.generator
        found.append((torch.rand(1).item(), random.random(), generator and generator.get_state().tolist()))
    return found


def seeded(**options) -> DataLoader:
    return DataLoader(Numbers(), batch_size=4, generator=torch.Generator().manual_seed(7), **options)


KINDS: dict[str, Callable[[], DataLoader]] = {
    "plain": lambda: DataLoader(Numbers(), 4, num_workers=2),
    "shuffled": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=2),
    "one worker, shallow": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=1, prefetch_factor=1),
    "persistent": lambda: DataLoader(Numbers(), 4, shuffle=True, num_workers=2, persistent_workers=True),
    "generator": lambda: seeded(shuffle=True, num_workers=2),
    "generator, persistent": lambda: seeded(shuffle=True, num_workers=2, persistent_workers=True),
    "with replacement": lambda: seeded(
        sampler=RandomSampler(range(40), True, 80, generator=torch.Generator().manual_seed(3)), num_workers=2
    ),
    "custom sampler": lambda: DataLoader(Numbers(), 4, sampler=Custom(), num_workers=2),
    "custom batch sampler": lambda: DataLoader(
        Numbers(), batch_sampler=BatchSampler(Custom(), 4, False), num_workers=1, persistent_workers=True
    ),
    "list of batches": lambda: DataLoader(Numbers(), batch_sampler=[[i, i + 1, 0] for i in range(12)], num_workers=1),
    "custom collate": lambda: DataLoader(
        Numbers(), 4, collate_fn=lambda rows: {k: rows[0][k] for k in rows[0]}, num_workers=1
    ),
    "shorter than the queue": lambda: DataLoader(Numbers(12), 4, num_workers=2, prefetch_factor=4, shuffle=True),
    "iterable": lambda: DataLoader(Stream(), 4, num_workers=1),
    "iterable, two workers": lambda: DataLoader(Stream(41), 4, num_workers=2, worker_init_fn=lambda number: None),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_the_same_batches_and_the_same_random_numbers(
    make: Callable[[], DataLoader], ahead, copier: CloneCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs left early and whole ones, each first, last and after the other."""
    monkeypatch.setattr(DataLoader, "__len__", lambda loader: 10)  # also for those that have none
    stops = (5, 0, 0, 5)
    expected = train(make, stops)
    early = ahead()
    assert train(make, stops) == expected
    assert len(copier.handed) >= 3, "else nothing was tested"
    assert copier.threads == {"hotlap-draws-ahead"} and early.patch.joints.withdrawn == []
    assert none_left()


def test_an_endless_stream(ahead, copier: CloneCopier) -> None:
    ahead()
    loader = DataLoader(Stream(None), 4, num_workers=1)
    for _ in range(2):
        for number, batch in enumerate(loader):
            moved = batch["x"].to("meta")
            assert moved.is_meta or moved[:, 0].tolist() == [4.0 * number + i for i in range(4)]
            if number == 30:
                break
        del batch
    assert len(copier.handed) >= 50
    assert len(copier.copied) <= len(copier.handed) + 3 * 2, "at most two ahead, and one begun"
    assert none_left()


def test_errors_come_at_their_batch_and_the_loader_goes_on(ahead, copier: CloneCopier) -> None:
    def run() -> list:
        found: list = []
        loader = DataLoader(Broken(), 1, sampler=Logged(found), num_workers=2)
        for _ in range(2):
            iterator = iter(loader)
            while True:
                try:
                    batch = next(iterator)
                    batch["x"].to("meta")
                    found.append(batch["name"])
                except KeyError as error:
                    found.append(str(error).splitlines()[0])
                    assert "__getitem__" in str(error)
                    names = []
                    step = error.__traceback__
                    while step is not None:
                        names.append(step.tb_frame.f_code.co_name)
                        step = step.tb_next
                    assert names[0] == "run" and names[-1] == "reraise"
                except StopIteration:
                    break
            with pytest.raises(StopIteration):
                next(iterator)
        return found

    expected = run()
    assert len(expected) == 160
    ahead()
    assert run() == expected and len(copier.handed) >= 10
    assert none_left()


def test_two_iterators_of_one_loader(ahead, copier: CloneCopier) -> None:
    ahead()
    loader = DataLoader(Numbers(), 4, num_workers=1)
    for batch in loader:
        batch["x"].to("meta")
    pairs = 0
    for one, other in zip(loader, loader, strict=True):
        assert one["name"] == other["name"]
        assert torch.equal(one["x"].to("meta").cpu() if pairs else one["x"], other["x"])
        other["x"].to("meta")
        pairs += 1
    assert pairs == 10 and len(copier.handed) >= 20
    assert none_left()


@pytest.mark.parametrize("draws", [8, 100], ids=["left early", "whole"])
def test_an_iterator_that_is_dropped_is_gone(ahead, copier: CloneCopier, draws: int) -> None:
    ahead()
    loader = DataLoader(Numbers(48), 4, num_workers=2)
    iterator = iter(loader)
    for batch, _ in zip(iterator, range(draws), strict=False):
        batch["x"].to("meta")
    assert threads() == 1 if draws == 8 else none_left()
    workers, reference = list(iterator._workers), weakref.ref(iterator)
    gc.disable()
    try:
        del iterator
        assert comes_true(lambda: reference() is None), (  # a draw at work holds it
            "a cycle would leave it to the collector, and to workers forked meanwhile"
        )
    finally:
        gc.enable()
    assert none_left() and not any(worker.is_alive() for worker in workers)


def test_undone_in_the_middle_no_batch_is_lost(ahead, copier: CloneCopier) -> None:
    early = ahead()
    loader = DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True)
    names = []
    for number, batch in enumerate(loader):
        batch["x"].to("meta")
        names += batch["name"]
        if number == 5:
            assert copier.copied
            early.patch.undo()
    assert names == [str(i) for i in range(40)]
    assert [name for batch in loader for name in batch["name"]] == names
    assert none_left()


def test_it_knows_which_loaders_it_served(ahead) -> None:
    ahead()
    loader, other = DataLoader(Numbers(), 4, num_workers=1), DataLoader(Numbers(), 4)
    for batch in loader:
        batch["x"].to("meta")
    assert all(batch["x"].to("meta").is_meta for batch in other)
    assert serves(loader) and not serves(other)


def test_an_iterable_whose_workers_live_on_is_left_alone(ahead, copier: CloneCopier) -> None:
    """They would have drawn other random numbers by the time a loop that was left starts again."""

    def make() -> DataLoader:
        return DataLoader(Stream(None), 4, num_workers=1, persistent_workers=True)

    def draws() -> list:
        torch.manual_seed(1)
        loader, found = make(), []
        for _ in range(3):
            for number, batch in enumerate(loader):
                batch["x"].to("meta")
                found.append(batch["drawn"].tolist())
                if number == 5:
                    break
        return found

    expected = draws()
    ahead()
    assert draws() == expected and copier.copied == []


def test_loaders_without_workers_are_left_alone_and_it_says_so(ahead, copier: CloneCopier) -> None:
    early = ahead()
    loader = DataLoader(Numbers(), 1)
    assert "without workers" in str(why_not(iter(loader)))
    for _ in range(3):
        for batch in loader:
            batch["x"].to("meta")
    assert copier.copied == []
    (said,) = early.patch.joints.withdrawn
    assert "without workers" in said


def test_batches_nobody_moves_are_not_copied(ahead, copier: CloneCopier) -> None:
    early = ahead()
    loader = DataLoader(Numbers(100), 4, num_workers=1)
    for _ in range(4):
        for batch in loader:
            batch["x"].double().to("meta")
    assert copier.copied == [] and "moves no tensor" in early.patch.joints.withdrawn[0]


def test_only_what_is_moved_is_copied(ahead, copier: CloneCopier) -> None:
    ahead()
    for batch in DataLoader(Numbers(), 4, num_workers=1):
        batch["x"].to("meta")
    assert copier.copied and all(one.shape == (4, 3) for one in copier.copied), "never `drawn`"


def test_a_script_that_changes_its_ways_is_learnt_anew(ahead, copier: CloneCopier) -> None:
    ahead()
    loader = DataLoader(Numbers(200), 4, num_workers=1)
    for number, batch in enumerate(loader):
        batch["x" if number < 6 else "drawn"].to("meta")
    assert {tuple(one.shape) for one in copier.handed} == {(4, 3), (4, 1)}
    wasted = len(copier.copied) - len(copier.handed)
    assert 16 <= wasted <= 22


WRITES = {
    "numpy": lambda x: x.numpy().fill(5),
    "data": lambda x: x.data.fill_(5),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writes_that_torch_does_not_count(ahead, copier: CloneCopier, write) -> None:
    early = ahead()
    loader = DataLoader(Numbers(100), 4, num_workers=1)
    for _ in range(4):
        for batch in loader:
            write(batch["x"])
            assert batch["x"].to("meta").is_meta
    assert copier.copied == [] and "without torch's knowledge" in early.patch.joints.withdrawn[0]


def test_batches_too_large_for_the_device(ahead, copier: CloneCopier) -> None:
    early = ahead()
    copier.room_bytes = 3 * 4 * 3 * 4 - 1
    loader = DataLoader(Numbers(100), 4, num_workers=1)
    for _ in range(3):
        assert all(batch["x"].to("meta").is_meta for batch in loader)
    assert copier.copied == [] and not early.patch.joints.withdrawn


def test_a_copier_that_fails_costs_nothing_but_the_copies(ahead, copier: CloneCopier) -> None:
    def fail(tensors):
        raise torch.OutOfMemoryError("out of memory\nand more")

    ahead()
    copier.copy = fail
    names = []
    for batch in DataLoader(Numbers(), 4, num_workers=1):
        names += batch["name"]
        assert batch["x"].to("meta").is_meta
    assert names == [str(i) for i in range(40)]


def test_in_inference_mode_batches_are_made_as_ever(ahead, copier: CloneCopier) -> None:
    ahead()
    with torch.inference_mode():
        for batch in DataLoader(Numbers(), 4, num_workers=1):
            assert batch["x"].is_inference()
            batch["x"].to("meta")
    assert copier.copied == []


EXIT = """
import torch, sys
sys.path[:0] = {paths!r}
from test_early_batches import Numbers, CloneCopier, EarlyBatches, Joints, Patch
from torch.utils.data import DataLoader
patch = Patch(Joints())
early = EarlyBatches(CloneCopier(), 2, patch.withdraw)
def drew(proceed, iterator):
    batch = proceed(iterator)
    early.drew(iterator, batch)
    return batch
patch.at(patch.joints.batch_drawn, drew)
iterator = iter(DataLoader(Numbers(400), 4, num_workers=2))
for number in range(8):
    next(iterator)["x"].to("meta")
import threading
print("ahead", [one.name for one in threading.enumerate()].count("hotlap-draws-ahead"))
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("raise SystemExit(3)", 3), ("import os, signal; os.kill(os.getpid(), signal.SIGINT); input()", -2)],
)
def test_the_interpreter_ends_as_ever(end: str, code: int) -> None:
    script = EXIT.format(paths=[path for path in sys.path if path], end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == code, done.stderr
    assert "ahead 1" in done.stdout
    assert "Fatal" not in done.stderr and ("Traceback" in done.stderr) is (code == -2)


def test_ctrl_c_while_the_script_waits_loses_no_batch(ahead, copier: CloneCopier) -> None:
    """Planted where it hurts: between the batch being ready and the script getting it."""
    from hotlap.parts.drawing_ahead import Drawing

    ahead()
    interrupt, take = [8], Drawing.take

    def interrupted(drawing):
        interrupt[0] -= 1
        if interrupt[0] == 0:
            raise KeyboardInterrupt
        return take(drawing)

    names = []
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(Drawing, "take", interrupted)
        iterator = iter(DataLoader(Numbers(), 2, num_workers=1))
        while True:
            try:
                batch = next(iterator)
            except KeyboardInterrupt:
                continue
            except StopIteration:
                break
            names += batch["name"]
            batch["x"].to("meta")
    assert interrupt[0] < 0 and names == [str(i) for i in range(40)]


# Prefetched, in a loop that is written for it -----------------------------------------------------------------------


class Movable:
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def to(self, device: torch.device) -> Movable:
        return Movable(self.x.to(device))


def test_a_plain_loop(copier: CloneCopier) -> None:
    data = [
        {"x": torch.full((2,), float(i)), "more": (torch.tensor(i), "text", Movable(torch.ones(1)))} for i in range(9)
    ]
    found = list(Prefetched(data, "meta", copier=copier))
    assert [batch["x"].tolist() for batch in found] == [[float(i)] * 2 for i in range(9)]
    assert [batch["more"][0].item() for batch in found] == list(range(9))
    assert found[0]["more"][1] == "text" and found[0]["more"][2].x.item() == 1
    assert len(copier.handed) == 27 and len(Prefetched(data, "meta", copier=copier)) == 9
    assert none_left()


def test_a_plain_loop_with_workers_errors_and_an_early_end(
    copier: CloneCopier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # how long torch waits for their end
    for keep in (False, True):
        loader = Prefetched(DataLoader(Broken(), 4, num_workers=2, persistent_workers=keep), "meta", copier=copier)
        assert loader.batch_size == 4
        for _ in range(3):
            names = [batch["name"][0] for batch, _ in zip(loader, range(3), strict=False)]
            assert names == ["0", "4", "8"]
        with pytest.raises(KeyError, match="sample 20"):
            list(loader)
    del loader
    assert none_left()


def test_a_plain_loop_draws_at_most_so_many_ahead(copier: CloneCopier) -> None:
    drawn = []

    def source():
        for number in range(20):
            drawn.append(number)
            yield torch.tensor([number])

    loop = iter(Prefetched(source(), "meta", ahead=2, copier=copier))
    for taken in range(10):
        assert next(loop).item() == taken
        time.sleep(0.02)
        assert len(drawn) <= taken + 1 + 2
    loop.close()
    assert none_left()


def test_habits_go_with_their_data_set(ahead, copier: CloneCopier) -> None:
    """A later data set may get the same number, and its script may write where this one's did not."""
    early = ahead()
    train(lambda: seeded(num_workers=1), stops=(0,))
    gc.collect()
    assert copier.handed and not early._habits


def test_a_forked_copy_draws_on_by_itself() -> None:
    """Its copy of the thread is not there; what that had drawn is."""
    numbers, lock = iter(range(9)), threading.RLock()
    drawing = Drawing(lambda: next(numbers), 2, lock)
    while drawing._made.qsize() < 2:
        time.sleep(0.01)
    with lock:
        child = os.fork()
    if child == 0:
        found = [drawing.take() for _ in range(3)]
        is_right = [one for one, _ in found] == [0, 1, None] and isinstance(found[2][1], Paused)
        os._exit(0 if is_right and next(numbers) == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    drawing.stop(None)
