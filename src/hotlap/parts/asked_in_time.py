"""Loaders with another number of workers than the script gave them, whose samplers draw when they would have drawn.

Workers want to know early which samples to make: a loader that has some asks its sampler for a few batches as soon as
an iterator is made, and stays so many ahead of the loop; one without asks when a batch is wanted. Where a script has
two iterators of a loader at once, leaves an epoch early, or draws at random between `iter(loader)` and the first batch,
seeds would come in another order."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from hotlap.parts import made_here
from hotlap.parts.known_order import is_torchs

_DUE = "_drawn_at_the_end"  # where an iterator carries its own


def changed(loader: Any, ahead: int) -> None:
    """It has other workers than those that would have been sent the indices of `ahead` batches; 0 stands for none."""
    _ahead[loader] = ahead


def batches_ahead(loader: Any) -> int:
    """How far its sampler is to be ahead of the loop."""
    return _ahead.get(loader, loader.num_workers * (loader.prefetch_factor or 0))


def begin(loader: Any) -> None:
    """For an iterator that lives on: what one that is made anew does before it draws its seed."""
    order = iter(loader._index_sampler)
    if not batches_ahead(loader):  # else torch begins a second time
        _begun[loader] = order


def asked_anew(iterator: Any, loader: Any) -> Iterator[Any]:
    """What such an iterator asks in its next epoch."""
    vars(iterator).pop(_DUE, None)
    return _begun.pop(loader, None) or iter(loader._index_sampler)


def stand_ins() -> list[tuple[type, str, Callable[..., Any]]]:
    """For torch's own methods, which are asked for all other loaders."""
    with_workers, without = _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter
    return [
        (with_workers, "_reset", _resetting(with_workers._reset)),
        (without, "__init__", _beginning(without.__init__)),
        *made_here.stand_ins(),
    ]


def _resetting(original: Callable[..., None]) -> Callable[..., None]:
    """For loaders that have workers: an epoch begins."""

    @functools.wraps(original)
    def _reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
        if loader not in _ahead:
            original(iterator, loader, first_iter)
            return
        sampler, is_late = iterator._index_sampler, not _ahead[loader]
        order = _without_its_end(iterator, sampler, _ahead[loader])
        if is_late and order is None:
            order = iterator._sampler_iter if first_iter else asked_anew(iterator, loader)
        iterator._index_sampler = () if is_late else order or sampler  # which torch asks now
        try:
            original(iterator, loader, first_iter)
        finally:
            iterator._index_sampler = sampler
        if is_late:
            iterator._sampler_iter = order
            vars(iterator)["_next_data"] = _Opening(iterator)
            made_here.begin(iterator)
        _draw(iterator, -1)

    return _reset


def _beginning(original: Callable[..., None]) -> Callable[..., None]:
    """For loaders that have none and would have had some."""

    @functools.wraps(original)
    def __init__(iterator: Any, loader: Any) -> None:
        original(iterator, loader)
        if _ahead.get(loader):
            order = iter(iterator._index_sampler)
            asked = deque(itertools.islice(order, _ahead[loader]))
            iterator._sampler_iter = _followed(asked, order)

    return __init__


def draw_what_is_due(proceed: Callable[[Any], Any], iterator: Any) -> Any:
    """Round each draw of the script's."""
    _draw(iterator, iterator._num_yielded)
    return proceed(iterator)


def when_asked(iterator: Any, then: Callable[[Any], object]) -> None:
    """Do that as soon as workers have been told what to make: now, or when the script draws its first batch."""
    opening = vars(iterator).get("_next_data")
    if isinstance(opening, _Opening):
        opening.then = then
    else:
        then(iterator)


class _Opening:
    """Stands before an iterator's own `_next_data` until that is called."""

    def __init__(self, iterator: Any) -> None:
        before = vars(iterator).get("_next_data")
        self.then: Callable[[Any], object] | None = before.then if isinstance(before, _Opening) else None
        self._reference: Callable[[], Any] = weakref.ref(iterator)  # one that is dropped sends its workers home at once

    def __call__(self) -> Any:
        iterator = self._reference()
        del vars(iterator)["_next_data"]
        for _ in range(iterator._prefetch_factor * iterator._num_workers):
            iterator._try_put_index()
        if self.then is not None:
            self.then(iterator)
        return iterator._next_data()


def _followed(asked: deque[Any], order: Iterator[Any]) -> Iterator[Any]:
    while asked:
        asked.extend(itertools.islice(order, 1))
        yield asked.popleft()


def _draw(iterator: Any, yielded: int) -> None:
    due = vars(iterator).get(_DUE)
    if due is not None and yielded >= due[0]:
        del vars(iterator)[_DUE]
        due[1]()


def _without_its_end(iterator: Any, batches: Any, ahead: int) -> Iterator[Any] | None:
    """Where torch's own shuffling was given a generator, it draws another order at an epoch's end, and takes nothing
    from it. Asked further ahead it would do that too early, or although the loop is left before. What is handed out
    here leaves it to `_draw`."""
    vars(iterator).pop(_DUE, None)
    sampler = getattr(batches, "sampler", None)
    if not is_torchs(BatchSampler, batches) or not is_torchs(RandomSampler, sampler) or sampler.generator is None:
        return None
    count = len(sampler.data_source)
    if sampler.replacement or sampler.num_samples != count:
        return None
    draw = functools.partial(torch.randperm, count, generator=sampler.generator)
    vars(iterator)[_DUE] = max(-1, count // batches.batch_size - ahead), draw
    return _batched(draw, batches)


def _batched(draw: Callable[[], torch.Tensor], batches: Any) -> Iterator[Any]:
    yield from BatchSampler(draw().tolist(), batches.batch_size, batches.drop_last)


_ahead: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_begun: weakref.WeakKeyDictionary[Any, Iterator[Any]] = weakref.WeakKeyDictionary()
