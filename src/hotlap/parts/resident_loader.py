"""DataLoaders whose samples stay in memory. One store belongs to a data set, not to a loader: loaders built anew for
every epoch, and several over one data set, share it."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from hotlap.parts.forked import NoAnswer, asked, why_no_fork
from hotlap.parts.glance import glance
from hotlap.parts.open_files import open_handle, shared_value
from hotlap.parts.purity import Verdict, judged, reader
from hotlap.parts.resident import Changed, Refused, Resident, Room
from hotlap.parts.resident_iterators import iterator
from hotlap.parts.worker_reads import or_raised, read_as_a_worker, read_or_raised

_ENOUGH = 0.9  # of the data set at the start of an epoch: what is missing is loaded as it is asked for
_ENOUGH_NOW = 0.99  # in the middle of one, while workers still load the rest faster
_PROBED = 8
_ENDLESS = 4  # a sampler that gives so many times more than there is never ends an epoch
_MOST_FILLERS = 8
_PATIENCE_SECONDS = 20.0


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
    except Exception:  # whatever the script raises there: torch itself never asks
        return "its sampler has no length"
    if not size or drawn > _ENDLESS * size:
        return "its sampler is endless"
    return None


def free_cores(workers: int) -> int:
    """Cores that neither the training nor its workers need, shared with the other training processes here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - workers - 1


class ResidentSamples:
    """The data set of a loader, and its store. `state` gives a number that changes when the data set does; `given_up`
    hears why the store ended. Nothing here keeps the data set alive where it can be referred to weakly."""

    def __init__(
        self, loader: Any, room: Room, state: Callable[[Any], int], given_up: Callable[[str], None],
        device: Any = None, place: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        self._dataset = _reference(loader)
        self.store: Resident | None = Resident(len(loader.dataset), self.read, room, device, place)
        self._owner, self._has_served = id(_owner(loader)), False
        weakref.finalize(_owner(loader), _served.discard, self._owner)
        self._state, self._given_up = state, given_up
        self._seen_state: int | None = None
        self._seen_at_a_glance: list[Any] = []
        self._process = os.getpid()
        self._has_workers = True  # of all loaders so far
        self._is_read_here = False  # by a loader without workers, or because that was seen to leave nothing behind
        self._reading = threading.RLock()
        self._has_fillers = False  # or had, or was found to bear none

    @property
    def is_ready(self) -> bool:
        return self._has(_ENOUGH)

    @property
    def is_filled(self) -> bool:
        return self._has(_ENOUGH_NOW)

    def _has(self, share: float) -> bool:
        if self.store is None or self.store.share < share:
            return False
        try:
            self.store.prove()
        except Changed:
            self._give_up("its workers make other samples than the training process would")
        return self.store is not None

    def begins(self, loader: Any, state: int | None = None) -> bool:
        """An epoch is about to begin: may it use the store? The first time samples are tested; later the data set must
        not have changed. Who knows its state already may give it."""
        if self.store is None:
            return False
        dataset = loader.dataset
        self._has_workers = self._has_workers and loader.num_workers > 0
        self._is_read_here = self._is_read_here or not self._has_workers
        if self._seen_state is None:
            try:
                verdict = self._judged(loader)
            except Exception as error:  # a look that fails must not end the training
                verdict = Verdict(f"its samples could not be tested ({type(error).__name__}: {error})")
            if verdict.reason is not None:
                self._give_up(verdict.reason)
            self._is_read_here = self._is_read_here or not verdict.leaves_something
            self._seen_state = self._state(dataset)
        elif (self._state(dataset) if state is None else state) != self._seen_state:
            self._give_up("the data set changed between two epochs")
        else:
            self._look_again()
        self._seen_at_a_glance = glance(dataset)
        self._fill(loader.num_workers)
        return self.store is not None

    def state_of(self, loader: Any) -> int:
        """Of its data set; it takes longer than a batch."""
        return self._state(loader.dataset)

    def outlived_by(self, state: int) -> Resident | None:
        """The store, where all samples are in it and the script has changed the data set since."""
        is_whole = self.store is not None and self.store.share == 1.0
        return self.store if is_whole and state != self._seen_state else None

    def _look_again(self) -> None:
        try:
            assert self.store is not None
            self.store.look_again()
        except Changed as error:
            self._give_up(str(error))

    def _judged(self, loader: Any) -> Verdict:
        handle, shared, size = open_handle(loader.dataset), shared_value(loader.dataset), len(loader.dataset)
        if handle:
            return Verdict(f"its data set holds an open file ({handle}), whose place a fork would share")
        if shared:
            return Verdict(f"its data set shares {shared} with other processes, which would see samples being tested")
        probed = [number * (size - 1) // _PROBED for number in range(_PROBED + 1)]
        return judged(loader.dataset, probed, self._state)

    def keep(self, index: Any, batch: Any, workers: int) -> None:
        """Take down what a loader made."""
        if self.store is None or os.getpid() != self._process:
            return
        if index is None:  # it was not made by a worker
            self._give_up("the data set changed in the middle of an epoch")
            return
        try:
            self.store.keep(index, batch)
        except Refused as error:
            self._give_up(str(error))
        self._fill(workers)

    def batch(self, index: Any, pinned: bool, otherwise: Callable[[Any], Any], workers: int, ahead: int) -> Any:
        """From the store, or, once that cannot be trusted, as the loader itself would make it. Without workers of the
        script's, which are `ahead` of it, a loader sees at once what the script does to its data set; they see it in
        the next epoch."""
        if os.getpid() != self._process:  # a forked copy would write into our rows
            return otherwise(index)
        if self.store is not None and not ahead and not self._is_as_before():
            self._give_up("the data set changed in the middle of an epoch")
        if self.store is not None:
            try:
                batch = self.store.batch(index, pinned, self._is_as_before)
            except (Changed, Refused) as error:
                self._give_up(str(error))
            else:
                if not self._has_served:
                    self._serves(workers)
                return batch
        return otherwise(index)

    def _is_as_before(self) -> bool:
        return glance(self._dataset()) == self._seen_at_a_glance

    def _serves(self, workers: int) -> None:
        self._fill(workers)
        if self.store is not None and self.store.has_served and self.is_ready:
            self._has_served = True
            _served.add(self._owner)

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def _fill(self, workers: int) -> None:
        """Load the rest in the background, where a core is free for it. Only the main thread may fork: another one may
        end before the training does."""
        is_main = threading.current_thread() is threading.main_thread()
        if self.store is None or not self.store.is_laid_out or not is_main or self._has_fillers:
            return
        spare = min(free_cores(workers), _MOST_FILLERS)
        if spare > 0:
            self._has_fillers, dataset = True, self._dataset()
            if why_no_fork() is None and not open_handle(dataset):  # which may have been opened by the first sample
                self.store.fill(reader(dataset), spare)

    def read(self, index: Any) -> Any:
        """Samples as the loader would make them. What only workers read, and what leaves something behind, is read in a
        forked copy, which takes longer than the reading: a data set that opens its file when it is read would open it
        here, and workers forked later would share its place."""
        dataset = self._dataset()
        if not self._is_read_here:
            with contextlib.suppress(NoAnswer):
                return or_raised(asked(lambda: read_or_raised(dataset, index), _PATIENCE_SECONDS))
        with self._reading:  # several loaders may be drawn ahead, by a thread each
            return read_as_a_worker(dataset, index) if self._has_workers else reader(dataset)(index)

    def _give_up(self, reason: str) -> None:
        self.close()
        self.store = None
        self._given_up(reason)


class Residency:
    """Every loader of a process. `iterator` stands in the place of `DataLoader._get_iterator`, or `claim_tests` is told
    of every loader that starts."""

    def __init__(
        self, limit_bytes: int, state: Callable[[Any], int], given_up: Callable[[str], None],
        place: Callable[[], Any] | None = None,
    ) -> None:  # fmt: skip
        """`place`: of the device that batches go to, where their rows shall lie there as well."""
        self._room, self._state, self._given_up, self._place = Room(limit_bytes), state, given_up, place
        self._kept: dict[int, ResidentSamples] = {}  # by the identity of what owns them
        self._live, self._process = 0, os.getpid()

    def iterator(self, original: Callable[[Any], Any], loader: Any) -> Any:
        return iterator(loader, self._samples(loader), original) if self._may_keep(loader) else original(loader)

    def claim_tests(self, loader: Any) -> None:
        """A loader is about to be iterated: where gradients are off and its samples may be kept, nobody else has it.
        What a class of the script's own makes of its iterators is left to it."""
        is_new = loader._iterator is None or not loader.persistent_workers
        is_torchs = type(loader)._get_iterator is DataLoader._get_iterator
        if is_new and is_torchs and not torch.is_grad_enabled() and self._may_keep(loader):
            vars(loader)["_get_iterator"] = functools.partial(self._once, loader)

    def _once(self, loader: Any) -> Any:
        vars(loader).pop("_get_iterator", None)
        return self.iterator(type(loader)._get_iterator, loader)

    def _may_keep(self, loader: Any) -> bool:
        if os.getpid() != self._process:  # a forked copy would write into our rows
            return False
        reason = why_not(loader)
        if reason is not None and not self._live:
            self._given_up(reason)
        kept = self._kept.get(id(_owner(loader)))
        return reason is None and (kept is None or kept.store is not None)

    def close(self) -> None:
        """End what still fills stores in the background."""
        for samples in list(self._kept.values()):  # an owner may die meanwhile, and is forgotten then
            samples.close()

    def _samples(self, loader: Any) -> ResidentSamples:
        owner = _owner(loader)
        if id(owner) not in self._kept:
            self._live += 1
            self._kept[id(owner)] = ResidentSamples(loader, self._room, self._state, self._lost, place=self._place)
            weakref.finalize(owner, self._forget, id(owner))
        return self._kept[id(owner)]

    def _forget(self, owner: int) -> None:
        samples = self._kept.pop(owner)
        samples.close()
        samples.store = None

    def _lost(self, reason: str) -> None:
        """One data set is not kept any more; when it was the last, there is nothing left to do."""
        self._live -= 1
        if not self._live:
            self._given_up(reason)


def serves(loader: Any) -> bool:
    """Whether batches of a loader's data set came out of a store, for this loader or another one."""
    return id(_owner(loader)) in _served


_served: set[int] = set()  # owners, as long as they live


def _owner(loader: Any) -> Any:
    """Whose samples they are: the data set's, or the loader's where it cannot be referred to weakly, as a list."""
    return loader.dataset if type(loader.dataset).__weakrefoffset__ else loader


def _reference(loader: Any) -> Callable[[], Any]:
    dataset = loader.dataset
    return weakref.ref(dataset) if _owner(loader) is dataset else lambda: dataset
