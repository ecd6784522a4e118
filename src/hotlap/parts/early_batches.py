"""Loaders whose batches are drawn a little ahead, by a thread that begins their copies to the device.

The script still gets the batches its loader made. What it moves, and where to, is learnt from its first batches; from
then on the copies are already there when it does. Batches, their order, and the moment at which a sampler is asked for
the next indices stay as they are."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

from hotlap.parts.batch_habits import Habits
from hotlap.parts.drawing_ahead import Drawing, Paused, Relay
from hotlap.parts.early_copies import Copier
from hotlap.parts.no_fork import no_fork
from hotlap.parts.resident_iterators import Serving

_PATIENCE, _STARTS = 64, 3  # batches and epochs of loaders that cannot be helped
_LOADERS_KEPT = 64
_PASS = "_drawn_ahead"  # where an iterator carries its own; with anything else, errors held would keep it alive
_DRAW_AT_START = (SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


def why_not(iterator: Any) -> str | None:
    """What rules out that this epoch is drawn ahead."""
    if type(iterator) is _MultiProcessingDataLoaderIter:
        is_iterable = iterator._dataset_kind == _DatasetKind.Iterable
        asks_too_early = is_iterable and iterator._persistent_workers
        return (
            "workers that live on would read further in its data set than the loop has come" if asks_too_early else None
        )
    if not isinstance(iterator, Serving):
        return "without workers, samples would be drawn ahead of the loop's own random numbers"
    if not iterator.is_trusted:
        return "its samples are not kept yet, or not any more"
    sampler = iterator._index_sampler
    sampler = sampler.sampler if type(sampler) is BatchSampler else sampler
    draws_at_start = type(sampler) in _DRAW_AT_START or (type(sampler) is RandomSampler and sampler.generator is None)
    return None if draws_at_start else "its sampler may draw at random in the middle of an epoch"


class Pass:
    """One epoch of one iterator, drawn ahead. Stands before some of the iterator's own methods until it is over. What
    the thread draws goes through `made`, and is handed out as that returns it; with `begun`, which must not fail,
    through that first, in a thread of its own, so that both are at work at once.

    Workers are sent indices long before their batches are drawn, so only this store of theirs is emptied earlier. The
    sampler is asked for the next indices when the script draws, as ever, and by the script's own thread: a sampler of
    any kind gives what it would have given."""

    def __init__(
        self, iterator: Any, made: Callable[[Any], Any], ahead: int, begun: Callable[[Any], Any] | None = None
    ) -> None:
        self._reference: Callable[[], Any] = weakref.ref(iterator)
        self._indices: deque[Any] | None = None  # asked for, and not yet sent to the workers
        if type(iterator) is _MultiProcessingDataLoaderIter:
            ahead = min(ahead, _capacity(iterator))  # something must be on its way whenever a batch is waited for
            if begun is not None and ahead == _capacity(iterator):
                ahead -= 1  # the one that is begun
            if iterator._dataset_kind == _DatasetKind.Map:
                self._indices = deque()
        own = {"_next_data": self._next_data, "_next_index": self._next_index, "_reset": self._reset}
        vars(iterator).update(own | {_PASS: self})
        held = no_fork if isinstance(iterator, Serving) else None  # workers are of no use to a forked copy anyway
        if begun is None or not ahead:
            self._drawing = Drawing(_draws(self._reference, self._indices, made), max(1, ahead), held)
        else:
            drawing = Drawing(_draws(self._reference, self._indices, begun), 1, held)
            self._drawing = Relay(drawing, made, ahead, held)

    def _next_data(self) -> Any:
        iterator = self._reference()
        batch, error = self._drawing.take()
        if error is None:
            self._ask(iterator)
            self._drawing.more()
            return batch
        if not isinstance(error, Paused | StopIteration):
            self._ask(iterator)  # a loader whose worker raised does that first, and can be drawn from again
        self.end()
        if isinstance(error, Paused):
            return type(iterator)._next_data(iterator)
        try:
            raise error
        finally:
            del error  # else its own traceback would keep it and the iterator alive

    def _ask(self, iterator: Any) -> None:
        if self._indices is not None:
            with contextlib.suppress(StopIteration):
                self._indices.append(type(iterator)._next_index(iterator))

    def _next_index(self) -> Any:
        """For the workers: what has been asked for, or nothing yet."""
        if self._indices is None:
            iterator = self._reference()
            return type(iterator)._next_index(iterator)
        if not self._indices:
            raise StopIteration
        return self._indices.popleft()

    def _reset(self, *args: Any, **kwargs: Any) -> None:
        self.end()
        self._reference()._reset(*args, **kwargs)

    def end(self) -> None:
        """Batches not taken are dropped, as those in the workers are. What was asked for is sent all the same: workers
        that live on must have drawn the random numbers they would have drawn."""
        iterator = self._reference()
        self._drawing.stop(None)
        while self._indices and not iterator._shutdown:
            iterator._try_put_index()
        for name in ("_next_data", "_next_index", "_reset", _PASS):
            vars(iterator).pop(name, None)


def _capacity(iterator: Any) -> int:
    return int(iterator._prefetch_factor * iterator._num_workers)


def _draws(reference: Any, indices: deque[Any] | None, made: Callable[[Any], Any]) -> Callable[[], Any]:
    """What the thread does for each batch. It holds the iterator only meanwhile: a loop that is left lets it go."""

    def draw() -> Any:
        iterator = reference()
        if iterator is None:
            raise StopIteration
        if isinstance(iterator, Serving) and not iterator.is_trusted:
            raise Paused
        while indices and iterator._tasks_outstanding < _capacity(iterator):
            iterator._try_put_index()
        return made(type(iterator)._next_data(iterator))

    return draw


class EarlyBatches:
    """Follows every loader of a process. `copiers` gives the one for a device, or None; `given_up` hears why nothing
    could be done for any of them."""

    def __init__(
        self, copiers: Callable[[torch.device], Copier | None], ahead: int, given_up: Callable[[str], None]
    ) -> None:
        self._copiers, self._ahead, self._given_up = copiers, ahead, given_up
        self._habits: dict[tuple[int, int], Habits] = {}
        self._loaders: dict[int, weakref.ref[Any]] = {}  # an iterator knows its sampler, not its loader
        self._refused = self._starts = 0
        self._is_over = self._has_begun = False

    def starts(self, loader: Any) -> None:
        """Before an epoch: an iterator that lives on must not be at work when it starts again."""
        running = vars(loader._iterator).get(_PASS) if loader._iterator is not None else None
        if running is not None:
            running.end()
        if len(self._loaders) >= _LOADERS_KEPT:
            self._loaders.clear()
        self._loaders[id(loader._index_sampler)] = weakref.ref(loader)
        self._starts += 1

    def drew(self, iterator: Any, batch: Any) -> None:
        """After the script has drawn: learn from the batch, or begin to draw ahead."""
        if self._is_over or torch.is_inference_mode_enabled():  # a thread would make other tensors than that wants
            return
        is_ahead = _PASS in vars(iterator)
        reason = None if is_ahead else why_not(iterator)
        if reason is None:
            habits = self._habits_of(iterator)
            if not habits.known and not habits.refused:
                habits.learn(batch)
            if habits.known and not is_ahead:
                self._begin(iterator, habits)
            reason = habits.refused
        if reason:
            self._refuse(reason)

    def leave(self) -> None:
        """No further epoch is drawn ahead. One that is goes on by itself, so that no batch is lost."""
        self._is_over = True

    def _begin(self, iterator: Any, habits: Habits) -> None:
        Pass(iterator, functools.partial(habits.begin_copies, ahead=self._ahead), self._ahead)
        self._has_begun = True
        loader = self._loaders.get(id(iterator._index_sampler), lambda: None)()
        if loader is not None:
            _served.add(loader)

    def _habits_of(self, iterator: Any) -> Habits:
        """Of all loaders that make the same batches: many scripts build one anew for each epoch."""
        owner = iterator._dataset if type(iterator._dataset).__weakrefoffset__ else iterator
        key = id(owner), id(iterator._collate_fn)
        if key not in self._habits:
            self._habits[key] = Habits(self._copiers)
            weakref.finalize(owner, self._habits.pop, key, None).atexit = False  # another may get its number
        return self._habits[key]

    def _refuse(self, reason: str) -> None:
        """Another loader, or a later epoch of this one, may still fit: only so many batches settle it."""
        self._refused += 1
        if not self._has_begun and self._refused >= _PATIENCE and self._starts >= _STARTS:
            self.leave()
            self._given_up(reason)


def serves(loader: Any) -> bool:
    """Whether a loader's batches were drawn ahead."""
    return loader in _served


_served: weakref.WeakSet[Any] = weakref.WeakSet()
