"""Batches that come in used memory: the same as ever, for as long as anybody looks at them."""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections import namedtuple
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from hotlap.parts import recycled_batches as part
from hotlap.parts.recycled_batches import MOST_ALIKE, Blocks, Handover, recycled_batches

LARGE = 3 * part.INLINE  # numbers
Pair = namedtuple("Pair", "x y")


class Numbered(Dataset):
    """Each batch is one item, which tells by all of its values what number it has."""

    def __init__(self, length: int = 40, made=lambda index: torch.full((LARGE,), index)) -> None:
        self.length, self.made = length, made

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return self.made(index)


def loader(data: Dataset, **options) -> DataLoader:
    return DataLoader(data, **{"batch_size": None, "num_workers": 1, **options})


@pytest.fixture(autouse=True)
def recycled():
    with recycled_batches():
        yield


def is_number(batch: torch.Tensor, number: int) -> bool:
    return bool((batch == number).all())


def test_memory_is_used_again() -> None:
    places = []
    for number, batch in enumerate(loader(Numbered())):
        assert is_number(batch, number)
        places.append(batch.data_ptr())
    assert len(set(places)) <= 5, "two on their way, one in use, one being taken"


def test_batches_that_are_kept_stay_what_they_are() -> None:
    kept = list(loader(Numbered(4 * MOST_ALIKE)))
    assert all(is_number(batch, number) for number, batch in enumerate(kept))
    assert len({batch.data_ptr() for batch in kept}) == len(kept)


@pytest.mark.parametrize(
    "part_of",
    [
        lambda batch: batch[7:9],
        lambda batch: batch.numpy()[5:],
        lambda batch: batch.view(torch.uint8).view(torch.int64),
        lambda batch: batch.untyped_storage(),
        lambda batch: torch.utils.dlpack.to_dlpack(batch),
        lambda batch: (batch.float().requires_grad_() * batch).sum().grad_fn,
    ],
    ids=["a slice", "an array", "a view", "its storage", "a capsule", "what backward saved"],
)
def test_whoever_holds_a_part_holds_the_block(part_of) -> None:
    kept, places = [], []
    for batch in loader(Numbered()):
        places.append(batch.data_ptr())
        if len(kept) < 2:
            kept.append(part_of(batch))
    assert not set(places[:2]) & set(places[2:]), "memory that is still looked at was used again"


def test_a_batch_changed_in_place_changes_no_other() -> None:
    for number, batch in enumerate(loader(Numbered())):
        assert is_number(batch, number)
        batch.fill_(-1)


MADE = {
    "small": lambda index: torch.full((3,), index),
    "a number": lambda index: torch.tensor(index),
    "nothing": lambda index: torch.empty(0, 4),
    "half": lambda index: torch.full((LARGE,), index % 100, dtype=torch.bfloat16),
    "truths": lambda index: torch.full((3 * LARGE,), index % 2 == 0),
    "complex": lambda index: torch.full((LARGE,), 1j * index),
    "on its side": lambda index: torch.arange(LARGE).reshape(-1, 4).t() + index,
    "for pictures": lambda index: torch.full((2, 3, 64, 64), float(index)).to(memory_format=torch.channels_last),
    "part of another": lambda index: torch.arange(4 * LARGE)[LARGE : 2 * LARGE] + index,
    "in a dict": lambda index: {"x": torch.full((LARGE,), index), "name": str(index), "y": [torch.tensor(index)]},
    "named": lambda index: Pair(torch.full((LARGE,), index), index),
    "trained": lambda index: torch.full((LARGE,), float(index)).requires_grad_(),
    "a parameter": lambda index: torch.nn.Parameter(torch.full((LARGE,), float(index))),
    "sparse": lambda index: torch.eye(300).mul(index).to_sparse(),
    "one colour": lambda index: torch.full((2, 1, 99, 99), float(index)).to(memory_format=torch.channels_last),
}


def leaves(batch) -> list:
    found, spec = torch.utils._pytree.tree_flatten(batch)
    return [spec, *found]


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_everything_arrives_as_it_would(made) -> None:
    data = Numbered(12, made)
    for number, batch in enumerate(loader(data)):
        for got, wanted in zip(leaves(batch), leaves(made(number)), strict=True):
            assert type(got) is type(wanted)
            if not isinstance(wanted, torch.Tensor):
                assert got == wanted
            else:
                assert (got.dtype, got.shape, got.requires_grad) == (wanted.dtype, wanted.shape, wanted.requires_grad)
                assert got.layout is not torch.strided or got.stride() == wanted.stride()
                assert torch.equal(got.to_dense(), wanted.to_dense())


def in_shared_memory(index: int) -> torch.Tensor:
    return torch.full((LARGE,), index).share_memory_()


def twice(index: int):
    batch = torch.full((LARGE,), index)
    return batch, batch.view(-1, 2)


def test_what_shares_memory_goes_on_sharing_it() -> None:
    for batch, view in loader(Numbered(6, twice)):
        batch.fill_(-1)
        assert is_number(view, -1)
    assert all(batch.is_shared() for batch in loader(Numbered(6, in_shared_memory)))


class OneForAll(Dataset):
    """Fills the same tensor for every item."""

    def __init__(self) -> None:
        self.batch = torch.zeros(LARGE)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        return self.batch.fill_(index)


def test_a_tensor_that_its_worker_goes_on_using_is_sent_as_it_was() -> None:
    assert [batch[0].item() for batch in loader(OneForAll())] == list(range(12))


class Endless(IterableDataset):
    def __iter__(self):
        number = torch.utils.data.get_worker_info().id
        while True:
            yield torch.full((LARGE,), number)


def test_workers_that_are_left_amid_an_epoch() -> None:
    data = loader(Endless(), num_workers=2, persistent_workers=True)
    for _ in range(3):
        for number, batch in zip(range(9), data, strict=False):
            assert is_number(batch, number % 2)
    plain = loader(Numbered(), persistent_workers=True, prefetch_factor=4)
    for _ in range(3):
        for number, batch in zip(range(5), plain, strict=False):
            assert is_number(batch, number)


def test_workers_that_were_spawned() -> None:
    rows = torch.arange(16 * LARGE).view(16, LARGE)
    data = DataLoader(torch.utils.data.TensorDataset(rows), 1, num_workers=1, multiprocessing_context="spawn")
    got = [(row.data_ptr(), row.clone()) for (row,) in data]
    assert torch.equal(torch.cat([row for _, row in got]), rows)
    assert len({place for place, _ in got}) <= 5


def test_what_torch_puts_together() -> None:
    data = Numbered(16, lambda index: (torch.full((LARGE,), index), torch.full((8,), index)))
    for start, (large, small) in zip(range(0, 16, 4), DataLoader(data, 4, num_workers=2), strict=True):
        wanted = torch.arange(start, start + 4)
        assert (
            torch.equal(large[:, 0], wanted) and torch.equal(large[:, -1], wanted) and torch.equal(small[:, 3], wanted)
        )


def test_a_fork_that_drops_a_batch_has_no_say() -> None:
    batches = iter(loader(Numbered()))
    kept = [next(batches)]
    place = kept[0].data_ptr()
    child = os.fork()
    if child == 0:
        kept.clear()
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert all(batch.data_ptr() != place for batch in batches)
    assert is_number(kept[0], 0)


def test_the_memory_of_workers_that_ended_is_forgotten() -> None:
    for _ in range(4):
        for _batch in loader(Numbered(4)):
            pass
    assert len(part._known) <= 2, "those of the last epoch, and at most one before"


def test_a_batch_that_outlives_its_worker() -> None:
    kept = list(loader(Numbered(4)))
    list(loader(Numbered(4)))  # by which the first worker is forgotten
    assert all(is_number(batch, number) for number, batch in enumerate(kept))
    del kept
    gc.collect()
    assert not part._lent


def test_what_cannot_be_sent_fails_as_it_does_in_torch() -> None:
    sent: queue.Queue = queue.Queue()
    message = (0, lambda: None)
    Handover(sent).put(message)
    assert sent.get() is message


def test_batches_of_changing_length_share_blocks() -> None:
    sizes = {part._rounded(count) for count in range(100_000, 1_000_000, 1000)}
    assert len(sizes) < 20 and all(part._rounded(count) >= count for count in (1, 4096, 4097, 99_999))


def test_no_room_for_blocks(monkeypatch) -> None:
    monkeypatch.setattr(part, "_has_room_for", lambda size: False)  # which workers are forked with
    places = [batch.data_ptr() for number, batch in enumerate(loader(Numbered())) if is_number(batch, number)]
    assert len(places) == 40
    reduced = Blocks().reduced(torch.zeros(LARGE))
    assert reduced[0] is not part._received and ForkingPickler.dumps(reduced[1][0]) is not None


def test_what_cannot_be_put_into_blocks_ends_none_that_can() -> None:
    def made(index: int):
        batch = torch.full((LARGE,), index)
        return (batch, torch.nested.nested_tensor([torch.ones(2), torch.ones(1)])) if index < 3 else (batch,)

    assert all(is_number(batch, number) for number, (batch, *_) in enumerate(loader(Numbered(12, made))))


class Moody:
    """Cannot be pickled the first time."""

    asked = 0

    def __reduce__(self):
        Moody.asked += 1
        if Moody.asked == 1:
            raise ValueError
        return str, ()


def test_blocks_of_a_message_that_went_another_way_are_used_again() -> None:
    made = loader(Numbered(MOST_ALIKE, lambda index: (torch.full((LARGE,), index), Moody())))
    assert all(is_number(batch, number) for number, (batch, _) in enumerate(made))


@pytest.mark.parametrize("length", [3, LARGE])
def test_a_batch_is_nobodys_view(length) -> None:
    for batch in loader(Numbered(2, lambda index: torch.zeros(length, 2))):
        assert batch._base is None
        batch.detach_()
        assert batch.data_ptr() % 64 == 0, "some products round by where their factors begin"


def test_a_fork_that_keeps_a_batch_sees_it_stay() -> None:
    batches = iter(loader(Numbered()))
    batch = next(batches)
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(int(batch.numpy().any()))
    del batch
    places = [batch.data_ptr() for number, batch in enumerate(batches, 1) if is_number(batch, number)]
    os.write(theirs, b"!")
    os.close(ours), os.close(theirs)
    assert os.waitpid(child, 0)[1] == 0, "what the fork looks at was used again"
    assert len(places) == 39 and len(set(places)) <= 6, "the block that it keeps was not made up for"


def test_an_array_of_a_batch_that_is_shared_later() -> None:
    batches = iter(loader(Numbered()))
    batch = next(batches)
    array = batch.numpy()
    batch.share_memory_()  # also what sending it to another process does
    assert all(is_number(later, number) for number, later in enumerate(batches, 1))
    assert (array == 0).all() and is_number(batch, 0)
    del array, batch
    gc.collect()
    assert not part._lent


def padded(rows: list) -> torch.Tensor:
    """Trusts in new shared memory to be full of zeros."""
    storage = rows[0].untyped_storage()._new_shared(2 * LARGE * 8)
    batch = rows[0].new(storage).resize_(2 * LARGE)
    batch[: LARGE // len(rows)] = rows[0][0] + 1
    return batch


def test_memory_that_a_script_asks_for_itself_is_new() -> None:
    data = Numbered(9, lambda index: torch.full((4,), index))
    for batch in DataLoader(
        data, batch_sampler=[[0], [1, 2], [3, 4, 5], [6, 7], [8]], num_workers=1, collate_fn=padded
    ):
        assert is_number(batch[LARGE:], 0)


def test_two_threads_of_a_worker_put_a_batch_together_each(monkeypatch) -> None:
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared", part.Workplace())
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_info", object())
    collate, made, plain = torch.utils.data.default_collate, [], torch.frombuffer

    def meanwhile(*args, **options):
        monkeypatch.setattr(torch, "frombuffer", plain)
        other = threading.Thread(target=lambda: made.append(collate([torch.ones(LARGE)])))
        other.start()
        other.join()
        return plain(*args, **options)

    monkeypatch.setattr(torch, "frombuffer", meanwhile)
    made.append(collate([torch.zeros(LARGE)]))
    assert is_number(made[0], 1) and is_number(made[1], 0)
    del made[:]
    places = {collate([torch.ones(LARGE)]).data_ptr() for _ in range(9)}
    assert len(places) == 1


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_no_file_stays_open_for_a_block() -> None:
    batches = iter(loader(Numbered(40, lambda index: [torch.full((LARGE,), index) for _ in range(4)])))
    for batch, _ in zip(batches, range(9), strict=False):
        del batch
    where = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    assert not [path for path in where if os.path.islink(path) and "torch_" in os.readlink(path)]


def test_half_of_the_shared_memory_is_left_to_others(monkeypatch) -> None:
    Room = namedtuple("Room", "f_frsize f_blocks f_bavail")
    for available, has_room in ((4000, True), (2049, True), (2048, False), (3, False)):
        monkeypatch.setattr(os, "statvfs", lambda _, available=available: Room(4096, 4096, available))
        assert part._has_room_for(4096) is has_room
