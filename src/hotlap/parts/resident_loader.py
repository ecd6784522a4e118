"""A DataLoader whose samples stay in memory: its first epoch is its own, later ones are gathered from a store."""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate
from torch.utils.data.dataloader import _BaseDataLoaderIter

from hotlap.parts.purity import why_impure
from hotlap.parts.resident import Changed, Refused, Resident, Room

_ENOUGH = 0.9  # of the data set: what is missing is loaded as it is asked for
_PROBED = 8
_ENDLESS = 4  # a sampler that gives so many times more than there is never ends an epoch


def why_not(loader: DataLoader[Any]) -> str | None:
    """What rules a loader out before a sample is read."""
    if isinstance(loader.dataset, IterableDataset) or not hasattr(loader.dataset, "__len__"):
        return "its data set is iterable"
    if loader.collate_fn is not default_collate or loader.batch_sampler is None:
        return "it collates in a way of its own"
    if not getattr(loader, "in_order", True):
        return "its batches come in any order"
    try:
        size, drawn = len(loader.dataset), len(loader.sampler)  # type: ignore[arg-type]
    except TypeError:
        return "its sampler has no length"
    if not size or drawn > _ENDLESS * size:
        return "its sampler is endless"
    return None


class ResidentLoader:
    """Follows one loader. `state` gives a number that changes when the data set does; `given_up` hears why it ended."""

    def __init__(
        self, loader: DataLoader[Any], room: Room, state: Callable[[Any], int], given_up: Callable[[str], None],
        pinned: bool = False,
    ) -> None:  # fmt: skip
        self._store: Resident | None = Resident(loader.dataset, room, pinned)
        self._state, self._given_up = state, given_up
        self._seen_state: int | None = None
        self._indices: weakref.WeakKeyDictionary[Any, tuple[Any, deque[Any]]] = weakref.WeakKeyDictionary()

    @property
    def is_ready(self) -> bool:
        return self._store is not None and self._store.share >= _ENOUGH

    def starts(self, loader: Any) -> None:
        """An epoch is about to begin. The first time samples are tested; later the data set must not have changed."""
        if self._store is None:
            return
        now = self._state(loader.dataset)
        if self._seen_state is None:
            size = len(loader.dataset)
            reason = why_impure(loader.dataset, [number * (size - 1) // _PROBED for number in range(_PROBED + 1)])
            if reason is not None:
                self._give_up(reason)
            self._seen_state = self._state(loader.dataset)
        elif now != self._seen_state:
            self._give_up("the data set changed between two epochs")

    def iterator(self, loader: Any, original: Callable[[Any], Any], draws_seed: bool = True) -> Any:
        """What the epoch is drawn from: the loader's own iterator while the store fills, then the store's. Both draw
        from the random generators alike."""
        if not self.is_ready:
            return original(loader)
        own = loader.generator
        loader.generator = own if draws_seed else torch.Generator()  # every new iterator draws a seed for its workers
        try:
            return StoreIterator(loader, self)
        finally:
            loader.generator = own

    def next_index(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Take down which samples make the next batch, while the store fills."""
        index = original(iterator)
        if self._store is not None and not self.is_ready:
            sampler, noted = self._indices.get(iterator, (None, None))
            if noted is None or sampler is not iterator._sampler_iter:
                noted = deque()
                self._indices[iterator] = iterator._sampler_iter, noted
            noted.append(index)
        return index

    def drew(self, iterator: Any, batch: Any) -> None:
        """Keep what the loader made."""
        _, noted = self._indices.get(iterator, (None, None))
        if self._store is None or not noted:
            return
        index = noted.popleft()
        try:
            if not all(type(number) is int and number >= 0 for number in index):
                raise Refused("its sampler gives no plain numbers")
            self._store.keep(index, batch)
        except (Refused, IndexError, TypeError) as error:
            self._give_up(str(error))

    def batch(self, loader: Any, index: Any) -> Any:
        """From the store, or, once that cannot be trusted, as the loader itself would make it."""
        if self._store is not None:
            try:
                return self._store.batch(index)
            except Changed as error:
                self._give_up(str(error))
        return loader.collate_fn([loader.dataset[number] for number in index])

    def _give_up(self, reason: str) -> None:
        self._store = None
        self._indices.clear()
        self._given_up(reason)


class Residency:
    """Follows every loader of a process. Its methods stand round those of `DataLoader` and its iterators."""

    def __init__(self, limit_bytes: int, state: Callable[[Any], int], given_up: Callable[[str], None]) -> None:
        self._room, self._state, self._given_up = Room(limit_bytes), state, given_up
        self._followed: weakref.WeakKeyDictionary[Any, ResidentLoader | None] = weakref.WeakKeyDictionary()
        self._by_sampler: dict[int, weakref.ref[ResidentLoader]] = {}  # an iterator knows its sampler, not its loader
        self._live = 0
        self._replaced: weakref.WeakSet[Any] = weakref.WeakSet()

    def starts(self, loader: Any) -> None:
        """Before an epoch: workers that would live on are sent home once the store can serve."""
        resident = self._own(loader)
        if resident is None:
            return
        resident.starts(loader)
        if resident.is_ready and loader._iterator is not None and not isinstance(loader._iterator, StoreIterator):
            loader._iterator._shutdown_workers()
            loader._iterator = None
            self._replaced.add(loader)

    def iterator(self, original: Callable[[Any], Any], loader: Any) -> Any:
        resident = self._own(loader)
        if resident is None:
            return original(loader)
        was_kept = loader in self._replaced  # an iterator that lives on draws no second seed for its workers
        self._replaced.discard(loader)
        return resident.iterator(loader, original, draws_seed=not was_kept)

    def next_index(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        resident = self._of(iterator)
        return original(iterator) if resident is None else resident.next_index(original, iterator)

    def drew(self, iterator: Any, batch: Any) -> None:
        resident = self._of(iterator)
        if resident is not None:
            resident.drew(iterator, batch)

    def _own(self, loader: Any) -> ResidentLoader | None:
        if loader not in self._followed:
            found = None
            reason = why_not(loader)
            if reason is None:
                is_pinned = torch.cuda.is_available() and torch.cuda.is_initialized()
                self._live += 1
                found = ResidentLoader(loader, self._room, self._state, self._lost, is_pinned)
                self._by_sampler[id(loader._index_sampler)] = weakref.ref(found)
            self._followed[loader] = found
            if reason is not None and not self._live:
                self._given_up(reason)
        return self._followed[loader]

    def _of(self, iterator: Any) -> ResidentLoader | None:
        known = self._by_sampler.get(id(iterator._index_sampler))
        return None if known is None else known()

    def _lost(self, reason: str) -> None:
        """One loader is not kept any more; when it was the last, there is nothing left to do."""
        self._live -= 1
        if not self._live:
            self._given_up(reason)


def serves(loader: Any) -> bool:
    """Whether a loader's batches came out of a store."""
    return loader in _served


_served: weakref.WeakSet[Any] = weakref.WeakSet()


class StoreIterator(_BaseDataLoaderIter):
    """Stands where the loader's own iterator would, and draws from the sampler when that one would."""

    def __init__(self, loader: Any, resident: ResidentLoader) -> None:
        super().__init__(loader)
        self._loader, self._resident = loader, resident
        _served.add(loader)
        self._ahead = loader.num_workers > 0  # workers are sent the first indices at once
        self._num_workers = 0
        self._waiting: deque[Any] = deque()
        self._begin()

    def _begin(self) -> None:
        """Ask the sampler for the first batch where that would already have been asked for."""
        self._waiting.clear()
        if self._ahead:
            self._waiting.extend(itertools.islice(self._sampler_iter, 1))

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._begin()

    def _next_data(self) -> Any:
        index = self._waiting.popleft() if self._waiting else next(self._sampler_iter)
        return self._resident.batch(self._loader, index)

    def _shutdown_workers(self) -> None:
        """There are none."""
