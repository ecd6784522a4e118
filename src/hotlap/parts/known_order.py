"""The order of an epoch as one array, where the sampler is torch's own and gives every number once. Batches are cut out
of it; walking through it number by number takes about as long as gathering the samples of a small batch. Random
generators move when and as far as they would have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
from torch.utils.data import sampler as torchs

from hotlap.parts.cuda_copier import pinned


class Cut:
    """The numbers of one batch: as an array, as the list that the sampler would have given, or on a device, to which
    the whole order is sent once."""

    __slots__ = ("order", "places", "start")

    def __init__(self, order: Order, start: int, stop: int) -> None:
        self.order, self.start = order, start
        self.places = order.places[start:stop]

    def __len__(self) -> int:
        return len(self.places)

    def tolist(self) -> list[int]:
        numbers: list[int] = self.places.tolist()
        return numbers

    def lie_below(self, length: int) -> bool:
        return self.order.most <= length

    def on(self, device: torch.device, queue: Any = None) -> torch.Tensor:
        """There, for use on that stream, which is the current one."""
        return self.order.on(device, queue)[self.start : self.start + len(self.places)]


class Order:
    """`numbers` from zero up to `most`, which is not one of them."""

    def __init__(self, numbers: torch.Tensor, most: int) -> None:
        self.most, self._numbers = most, numbers.cpu()
        self.places: Any = self._numbers.numpy()
        self._sent: dict[Any, torch.Tensor] = {}

    def on(self, device: torch.device, queue: Any) -> torch.Tensor:
        """Once for each stream, whatever tells them apart."""
        if (device, queue) not in self._sent:
            is_cuda = device.type == "cuda"  # from ordinary memory the host would wait for what is queued there
            numbers = pinned(self._numbers) if is_cuda else self._numbers
            self._sent[device, queue] = numbers.to(device, non_blocking=is_cuda)
        return self._sent[device, queue]


def in_cuts(plain: Iterator[Any], sampler: Any, length: int) -> Iterator[Any]:
    """In the place of `plain`, which is `iter(sampler)`, not yet begun: the same batches of numbers as cuts, where all
    of them lie below `length`; where the order is not known ahead, what `plain` gives."""
    return _cuts(plain, sampler, length) if is_torchs(BatchSampler, sampler) else plain


def _cuts(plain: Iterator[Any], batches: Any, length: int) -> Iterator[Any]:
    """Torch's samplers begin to draw when the first batch is asked for, and so does this."""
    sampler = batches.sampler
    is_random = is_torchs(RandomSampler, sampler)
    count = len(sampler.data_source) if is_random or is_torchs(SequentialSampler, sampler) else 0
    if not 0 < count <= length or (is_random and (sampler.replacement or sampler.num_samples != count)):
        yield from plain
        return
    own = sampler.generator if is_random else None
    generator = own if own is not None or not is_random else _seeded()
    numbers = torch.randperm(count, generator=generator) if is_random else torch.arange(count, device="cpu")
    order, start, size, drops_last = Order(numbers, count), 0, batches.batch_size, batches.drop_last
    while start + size <= count:
        yield Cut(order, start, start + size)
        start += size
        size = size if drops_last else batches.batch_size  # as torch reads it
    more = sampler.num_samples % count if is_random else 0  # of a data set that has grown meanwhile
    if own is not None or more:  # torch draws another order at the end, even if it takes nothing from it
        last = torch.randperm(count, generator=generator)[:more]
    if more:
        yield from BatchSampler([*numbers[start:].tolist(), *last.tolist()], size, drops_last)
    elif start < count and not drops_last:
        yield Cut(order, start, count)


def _seeded() -> torch.Generator:
    """As torch makes one for an epoch where a sampler was given none."""
    seed = int(torch.empty((), dtype=torch.int64).random_().item())
    return torch.Generator().manual_seed(seed)


def is_torchs(kind: Any, sampler: Any) -> bool:
    """Not one of a class made from it, nor where somebody has put another method into torch's class."""
    return type(sampler) is kind and getattr(kind.__iter__, "__globals__", None) is vars(torchs)
