"""Loops that have several iterators of one loader open, or open one before they draw from it, as scripts write them.
Each tells what it saw, and the random numbers it drew between the batches. As a script: `python open_loops.py WORKERS`
goes through all of them."""

import random
import sys

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, TensorDataset, WeightedRandomSampler

COUNT, BATCH = 18, 4  # the last batch is a short one


class Squares(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.tensor([index, index * index]), index


def in_memory():
    indices = torch.arange(COUNT)
    return TensorDataset(torch.stack([indices, indices * indices], dim=1), indices)


class Buckets(BatchSampler):
    """Shuffles whole batches, not when it is asked for the first one but when it is begun."""

    def __iter__(self):
        batches = list(super().__iter__())
        random.shuffle(batches)
        return iter([batches[number] for number in torch.randperm(len(batches)).tolist()])


def shuffled(data, **given):
    return DataLoader(data, BATCH, shuffle=True, **given)


def shuffled_by_its_own(data, **given):
    return DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(3), **given)


def without_the_last(data, **given):
    return DataLoader(data, 3, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(3), **given)


def weighted(data, **given):
    sampler = WeightedRandomSampler([1.0 + one % 3 for one in range(COUNT)], 23)
    return DataLoader(data, BATCH, sampler=sampler, **given)


def in_buckets(data, **given):
    return DataLoader(data, batch_sampler=Buckets(range(COUNT), BATCH, False), **given)


def numbers(batch):
    """As the script needs it on a device, and what it draws by itself for that batch."""
    squares, indices = batch
    moved = squares.to("meta")
    assert moved.is_meta or torch.equal(moved, squares)
    assert torch.equal(squares, torch.stack([indices, indices * indices], dim=1)), "a sample under another's number"
    return indices.tolist(), torch.rand(1).item(), random.random()


def two_at_once(loader):
    for _ in range(2):
        for one, other in zip(loader, loader, strict=True):
            yield numbers(one), numbers(other)


def a_first_look(loader):
    """Which is kept."""
    iterator = iter(loader)
    yield numbers(next(iterator))
    for _ in range(2):
        yield [numbers(batch) for batch in loader]
    yield [numbers(batch) for batch in iterator]


def opened_long_before(loader):
    iterators = [iter(loader), iter(loader)]
    yield torch.rand(3).tolist(), random.random()
    yield [numbers(batch) for iterator in reversed(iterators) for batch in iterator]
    iter(loader)  # and never drawn from
    yield [numbers(batch) for batch in loader]


def again_before_its_end(loader):
    iterator = iter(loader)
    for step in range(7):
        if step % 3 == 2:
            iterator = iter(loader)
        yield numbers(next(iterator))


def in_circles(loader):
    iterator = iter(loader)
    for _ in range(14):
        try:
            batch = next(iterator)
        except StopIteration:
            iterator = iter(loader)
            batch = next(iterator)
        yield numbers(batch)


def a_look_amid_an_epoch(loader):
    for _ in range(2):
        for step, batch in enumerate(loader):
            yield numbers(batch)
            if step % 2:
                yield numbers(next(iter(loader)))


def one_within_the_other(loader):
    for batch in loader:
        yield numbers(batch)
        for other in loader:
            yield numbers(other)


def left_early(loader):
    for _ in range(2):
        for step, (one, other) in enumerate(zip(loader, loader, strict=True)):
            yield numbers(one), numbers(other)
            if step == 1:
                break
        yield [numbers(batch) for batch in loader]


def ended_one_after_the_other(loader):
    first, second = iter(loader), iter(loader)
    yield numbers(next(first)), numbers(next(second)), numbers(next(second))
    yield [numbers(batch) for batch in first]
    yield [numbers(batch) for batch in loader]
    yield [numbers(batch) for batch in second]
    yield list(first), list(second)


def left_with_the_last_batch(loader):
    for _ in range(2):
        for step, batch in enumerate(loader, 1):
            yield numbers(batch)
            if step == len(loader):
                break
    for _ in range(2):
        yield [numbers(batch) for batch in loader]


LOOPS = (
    two_at_once, a_first_look, opened_long_before, again_before_its_end, in_circles, a_look_amid_an_epoch,
    one_within_the_other, left_early, ended_one_after_the_other, left_with_the_last_batch,
)  # fmt: skip


def seen(loop, build, data=None, **given):
    """And what the script would draw next."""
    torch.manual_seed(7), random.seed(7)
    loader = build(data or Squares(), **given)
    return [*loop(loader), torch.rand(1).item(), random.random()]


if __name__ == "__main__":
    for loop in LOOPS:
        for build in (shuffled, weighted):
            print(loop.__name__, build.__name__, seen(loop, build, num_workers=int(sys.argv[1])))
