"""Loaders whose images are decoded and transformed in whole batches on the device, some batches ahead of the script.

`deferred_samples` makes workers send what images are made from; here a thread makes them, on a stream of its own. The
first samples of every kind of batch are also made the script's own way and held against the result. Whatever fails, at
any time, the batch at hand is made as the script's loader would have made it, by the same random numbers: none is lost,
none comes twice."""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from hotlap.parts.asked_in_time import when_asked
from hotlap.parts.cuda_copier import CudaCopier
from hotlap.parts.deferred_samples import Deferred, InWorkers, defer
from hotlap.parts.early_batches import Pass
from hotlap.parts.early_copies import copy_early, is_plain
from hotlap.parts.finished_images import Judge, Trial, begin, finished
from hotlap.parts.no_fork import no_fork
from hotlap.parts.transform_sites import mark, owners_of, sites_of, why_not
from hotlap.parts.undone_images import UndoneBatch, undone_in
from hotlap.parts.waiting_tensor import Waiting

_UNMOVED = 64  # batches in a row that the script did not move
_MISSED = 4  # batches in a row that workers could not defer
_STARTS = 3  # of loaders that cannot be helped


class Maker(Protocol):
    """How batches get to a device; see `CudaCopier`."""

    device: torch.device
    room_bytes: int

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[Any]: ...
    def make(self, work: Callable[[], Sequence[torch.Tensor]]) -> list[Any]: ...
    def hand_over(self, made: Any, blocking: bool) -> torch.Tensor: ...


class InMainMemory:
    """Where there is no device: the same work, on the processor."""

    device, room_bytes = torch.device("cpu"), 1 << 62

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        return list(tensors)

    def make(self, work: Callable[[], Sequence[torch.Tensor]]) -> list[Any]:
        return list(work())

    def hand_over(self, made: Any, blocking: bool) -> torch.Tensor:
        tensor: torch.Tensor = made
        return tensor


def maker_for(device: torch.device) -> Maker | None:
    if device.type == "cpu":
        return InMainMemory()
    return CudaCopier(device) if device.type == "cuda" else None


def device_in_use() -> torch.device | None:
    """CUDA's current one, if the script has begun to use CUDA: we would take memory on a device it may not want."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_initialized() else None


class DeviceBatches:
    """Every loader of a process. `starts` is to be called whenever a loader is about to be iterated; `given_up` hears
    why nothing is done, or not any more, in the thread that draws batches."""

    def __init__(
        self, judge: Judge, given_up: Callable[[str], object], ahead: int = 2,
        place: Callable[[], torch.device | None] = device_in_use,
        last: Callable[[torch.Tensor], torch.Tensor] = lambda batch: batch,
    ) -> None:  # fmt: skip
        """`last` is done to every batch of images, where and when they are made."""
        self._judge, self._given_up, self._ahead, self._place, self._last = judge, given_up, ahead, place, last
        self._trials: dict[Any, Trial] = {}
        self._makers: dict[torch.device, Maker] = {}
        self._wanted: torch.device | None = None  # where batches go; each thread has another current one
        self._process, self._reason = os.getpid(), ""
        self._refusals = self._unmoved = 0
        self._is_over = self._has_begun = False

    def starts(self, loader: Any) -> None:
        """For the one call that follows: nobody else's hold on `DataLoader` is touched, and nothing stays behind. Whom
        another one has claimed in this way is left to that."""
        is_new = loader._iterator is None or not loader.persistent_workers
        if not self._is_over and is_new and "_get_iterator" not in vars(loader):
            vars(loader)["_get_iterator"] = functools.partial(self._once, loader)

    def _once(self, loader: Any) -> Any:
        """What the loader's own `_get_iterator` would give, or the same with batches made on the device."""
        vars(loader).pop("_get_iterator", None)
        if self._is_over or os.getpid() != self._process:
            return loader._get_iterator()
        self._wanted = self._wanted or self._place()
        reason = why_not(loader)
        if self._maker() is None or reason is not None:
            self._refuse(reason or "the script does not use CUDA when an epoch begins")
            return loader._get_iterator()
        trial = self._trial(loader.dataset)
        if trial.is_refused:
            return loader._get_iterator()
        self._has_begun = True
        own = loader.worker_init_fn
        vars(loader)["worker_init_fn"] = InWorkers(own, trial.verdicts)
        try:
            return self._attended(loader, trial)
        finally:
            vars(loader)["worker_init_fn"] = own

    def leave(self) -> None:
        """Batches are made as ever from now on; those that are under way as well."""
        self._is_over = True
        for trial in self._trials.values():
            trial.refuse()

    def _attended(self, loader: Any, trial: Trial) -> Any:
        if loader.num_workers:
            loader.check_worker_number_rationality()  # as torch does before it builds one
            iterator, pins = self._with_workers(loader)
            made = functools.partial(self._made, trial, pins)
            handed, begun = functools.partial(self._handed, pins), functools.partial(self._begun, trial)
            when_asked(
                iterator, functools.partial(_Attended, trial, made=made, ahead=self._ahead, handed=handed, begun=begun)
            )
            return iterator
        iterator = _SingleProcessDataLoaderIter(loader)
        made = functools.partial(self._made, trial, False)  # it pins by itself
        defer(iterator._dataset_fetcher, trial.verdicts)
        reference = weakref.ref(iterator)

        def next_data() -> Any:
            own: Any = reference()
            return self._handed(own._pin_memory, own, made(type(own)._next_data(own)))

        vars(iterator)["_next_data"] = next_data
        return iterator

    def _with_workers(self, loader: Any) -> tuple[Any, bool]:
        """A loader's own iterator; and whether its batches are to be pinned here. One thread less wants the interpreter
        then: what is sent from here is pinned on the way."""
        maker = self._maker()
        pins = maker is not None and maker.device.type == "cuda" and bool(loader.pin_memory)
        own = loader.pin_memory
        vars(loader)["pin_memory"] = own and not pins
        try:
            return _MultiProcessingDataLoaderIter(loader), pins
        finally:
            vars(loader)["pin_memory"] = own

    def _begun(self, trial: Trial, batch: Any) -> Any:
        """A batch whose files are being decoded. Where that fails it is tried again, by whoever can deal with it."""
        maker = self._maker()
        if maker is not None and isinstance(batch, Deferred) and not trial.is_refused:
            with no_fork, contextlib.suppress(Exception):
                undone = undone_in(batch.batch)
                trial.has_files = bool(trial.has_files) or any(one.lengths for one in undone)
                for one in undone:
                    begin(one, maker.device)
        return batch

    def _made(self, trial: Trial, pins: bool, batch: Any) -> Any:
        """A batch on the device; or as it came, where it cannot be made, to be dealt with by `_handed`."""
        maker = self._maker()
        if not isinstance(batch, Deferred):
            trial.missed += 1
            if trial.missed == _MISSED and not trial.is_refused:
                self._stop(trial, "its data set does more with its images than hand them out")
            return pin_memory(batch) if pins else batch
        if trial.is_refused or maker is None:
            return batch
        trial.missed = 0
        try:
            with no_fork:
                if pins:
                    batch.pin_memory()
                return self._on_device(batch, trial, maker)
        except OSError:  # a file that Pillow cannot decode either: an error of the script's own, in this batch alone
            return batch
        except Exception as error:  # out of memory, above all
            self._stop(trial, f"{type(error).__name__} on {maker.device}: {error}".splitlines()[0])
            return batch

    def _on_device(self, batch: Deferred, trial: Trial, maker: Maker) -> Any:
        leaves, shape = tree_flatten(batch.batch)
        undone = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, UndoneBatch)}
        results: list[torch.Tensor] = []

        def work() -> list[torch.Tensor]:
            done = [finished(one, trial.pipelines, maker.device) for one in undone.values()]
            trial.hear(batch, done)
            results.extend(self._last(one.batch) for one in done)
            return results

        made = maker.make(work)
        if trial.is_refused:
            return batch
        if sum(one.nbytes for one in results) * (self._ahead + 1) > maker.room_bytes:
            self._stop(trial, "its batches are too large to have several of them on the device")
            return batch
        copy_early([leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and is_plain(leaf)], maker)
        for (place, one), each, result in zip(undone.items(), made, results, strict=True):
            ready = _Made(each, functools.partial(self._again, one, trial, maker.device), maker)
            leaves[place] = ready() if maker.device.type == "cpu" else self._waiting(result, ready)
        return tree_unflatten(leaves, shape)

    def _again(self, undone: UndoneBatch, trial: Trial, device: torch.device) -> torch.Tensor:
        return self._last(finished(undone, trial.pipelines, device).batch)

    def _waiting(self, result: torch.Tensor, ready: _Made) -> torch.Tensor:
        self._unmoved += 1
        return Waiting(result, ready, self._moved)

    def _handed(self, pins: bool, iterator: Any, batch: Any) -> Any:
        """In the thread that asked for it."""
        reason, self._reason = self._reason, ""
        if reason:
            self._given_up(reason)
        if isinstance(batch, Deferred):
            plain = batch.done_plainly(iterator._dataset)
            return pin_memory(plain) if pins else plain
        if self._unmoved > _UNMOVED and not self._is_over:
            self.leave()
            self._given_up("the script does not move its batches to the device as they come")
        return batch

    def _moved(self, device: torch.device) -> None:
        self._unmoved = 0
        if device.type == "cuda":
            self._wanted = torch.device("cuda", torch.cuda.current_device()) if device.index is None else device

    def _maker(self) -> Maker | None:
        place = self._wanted
        if place is not None and place not in self._makers:
            maker = maker_for(place)
            if maker is None:
                return None
            self._makers[place] = maker
        return self._makers[place] if place is not None else None

    def _trial(self, dataset: Any) -> Trial:
        sites = sites_of(dataset)
        key = tuple(map(type, owners_of(dataset))), mark(sites)
        if key not in self._trials:
            self._trials[key] = Trial([site.pipeline for site in sites], self._judge)
        return self._trials[key]

    def _stop(self, trial: Trial, reason: str) -> None:
        trial.refuse()
        self._reason = reason

    def _refuse(self, reason: str) -> None:
        """Another loader may still fit: only so many settle it."""
        self._refusals += 1
        if self._refusals >= _STARTS and not self._has_begun:
            self.leave()
            self._given_up(reason)


class _Made:
    """Hands over the images that were made ahead; later ones are made anew, since the script may have written into
    those."""

    def __init__(self, made: Any, again: Callable[[], torch.Tensor], maker: Maker) -> None:
        self._made, self._again, self._maker = made, again, maker

    def __call__(self) -> torch.Tensor:
        made, self._made = self._made, None
        if made is None:
            with no_fork:
                (made,) = self._maker.make(lambda: [self._again()])
        return self._maker.hand_over(made, False)


class _Attended(Pass):
    """One iterator with workers, for as long as it lives: each of its epochs is a pass. When one has ended, by an error
    or because it is over, what still comes is finished in line."""

    def __init__(
        self, trial: Trial, iterator: Any, made: Callable[[Any], Any], ahead: int, handed: Callable[[Any, Any], Any],
        begun: Callable[[Any], Any],
    ) -> None:  # fmt: skip
        """Where there are no files, nothing can be begun, and one thread does it all."""
        self._made, self._handed = made, handed
        self._next = functools.partial(type(self), trial, made=made, ahead=ahead, handed=handed, begun=begun)
        super().__init__(iterator, made, ahead, None if trial.has_files is False else begun)

    def _next_data(self) -> Any:
        return self._handed(self._reference(), super()._next_data())

    def end(self) -> None:
        super().end()
        vars(self._reference()).update({"_next_data": self._in_line, "_reset": self._anew})

    def _in_line(self) -> Any:
        iterator = self._reference()
        return self._handed(iterator, self._made(type(iterator)._next_data(iterator)))

    def _anew(self, *args: Any, **kwargs: Any) -> None:
        iterator = self._reference()
        for name in ("_next_data", "_reset"):
            vars(iterator).pop(name, None)
        type(iterator)._reset(iterator, *args, **kwargs)
        when_asked(iterator, self._next)
