"""Orders known as a whole: the numbers torch's own samplers give, with every generator where it would be after each
batch, or the sampler itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler

from hotlap.parts.known_order import Cut, in_cuts

META = torch.device("meta")


class Backwards(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(list(super().__iter__())[::-1])


class Doubled(BatchSampler):
    def __iter__(self) -> Iterator[list[int]]:
        return (batch + batch for batch in super().__iter__())


KNOWN: dict[str, Callable[[Any, torch.Generator], Any]] = {
    "sequential": lambda data, own: SequentialSampler(data),
    "random": lambda data, own: RandomSampler(data),
    "random, all of them": lambda data, own: RandomSampler(data, num_samples=len(data)),
    "random, own generator": lambda data, own: RandomSampler(data, generator=own),
    "random, the script's generator": lambda data, own: RandomSampler(data, generator=torch.default_generator),
}
UNKNOWN: dict[str, Callable[[Any, torch.Generator], Any]] = {
    "replacement": lambda data, own: RandomSampler(data, replacement=True, generator=own),
    "some": lambda data, own: RandomSampler(data, num_samples=9, generator=own),
    "more": lambda data, own: RandomSampler(data, num_samples=50, generator=own),
    "subset": lambda data, own: SubsetRandomSampler(range(5), own),
    "a class of its own": lambda data, own: Backwards(data, generator=own),
    "a list": lambda data, own: [3, 1, 2, 0],
}


def walked(draws: Iterator[Any], own: torch.Generator) -> Iterator[tuple[Any, ...]]:
    """What each draw gives, and where the generators are after it."""
    while True:
        index = next(draws, None)
        numbers = index.tolist() if type(index) is Cut else index
        yield numbers, torch.get_rng_state().tolist(), own.get_state().tolist()
        if index is None:
            return


def epochs(
    make: Callable[[Any, torch.Generator], Any], size: int, drops: bool, in_order: Callable[[Any, Any], Any]
) -> list[Any]:
    torch.manual_seed(4)
    own = torch.Generator().manual_seed(5)
    batches = BatchSampler(make(range(24), own), size, drops)
    return [list(walked(in_order(iter(batches), batches), own)) for _ in range(3)]


def cut(plain: Any, batches: Any) -> Any:
    return in_cuts(plain, batches, 24)


@pytest.mark.parametrize("drops", [False, True], ids=["all", "drop_last"])
@pytest.mark.parametrize("size", [1, 5, 8, 24, 30])
@pytest.mark.parametrize("make", [*KNOWN.values(), *UNKNOWN.values()], ids=[*KNOWN, *UNKNOWN])
def test_the_same_numbers_and_generators_after_each_batch(make: Any, size: int, drops: bool) -> None:
    assert epochs(make, size, drops, cut) == epochs(make, size, drops, lambda plain, batches: plain)


def kinds(batches: Any, length: int = 24) -> set[type]:
    return {type(index) for index in in_cuts(iter(batches), batches, length)}


def test_which_orders_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    own, data = torch.Generator(), range(24)
    assert all(kinds(BatchSampler(make(data, own), 5, False)) == {Cut} for make in KNOWN.values())
    assert all(kinds(BatchSampler(make(data, own), 5, False)) == {list} for make in UNKNOWN.values())
    assert kinds(Doubled(RandomSampler(data), 5, False)) == {list}
    assert kinds(BatchSampler(RandomSampler(data), 5, False), length=23) == {list}  # numbers outside a data set
    monkeypatch.setattr(RandomSampler, "__iter__", lambda sampler: iter([7, 7]))
    batches = BatchSampler(RandomSampler(data), 5, False)
    assert list(in_cuts(iter(batches), batches, 24)) == [[7, 7]]


def test_nothing_is_drawn_before_the_first_batch_is_asked_for() -> None:
    batches, before = BatchSampler(RandomSampler(range(24)), 5, False), torch.get_rng_state()
    draws = in_cuts(iter(batches), batches, 24)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(8)
    found = next(draws).tolist()
    torch.manual_seed(8)
    assert found == next(iter(batches))


@pytest.mark.parametrize("drops", [False, True], ids=["all", "drop_last"])
def test_what_changes_in_the_middle_of_an_epoch(drops: bool) -> None:
    """As torch takes it: a data set that grows, another size of batches, another generator."""

    def given(in_order: Callable[[Any, Any], Any]) -> list[Any]:
        data, own = list(range(24)), torch.Generator().manual_seed(5)
        found = []
        batches = BatchSampler(RandomSampler(data, generator=own), 5, drops)
        for number, one in enumerate(walked(in_order(iter(batches), batches), own)):
            found.append(one)
            if number == 1:
                batches.batch_size, batches.sampler.generator = 3, None
                data.extend([0, 0])
        return found

    assert given(cut) == given(lambda plain, batches: plain)


def test_an_order_is_sent_to_a_device_once() -> None:
    batches = BatchSampler(RandomSampler(range(24)), 5, False)
    first, second, *_ = in_cuts(iter(batches), batches, 24)
    there = first.on(META), second.on(META)
    assert [one.shape for one in there] == [(5,), (5,)] and there[0]._base is there[1]._base is not None
    assert second.on(torch.device("cpu")).tolist() == second.tolist() == second.places.tolist()
