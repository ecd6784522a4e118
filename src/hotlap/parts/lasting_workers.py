"""Loader workers that live on between epochs, while every epoch comes in the order it would have had without that.

    from hotlap.parts.lasting_workers import LastingWorkers

    loader = DataLoader(dataset, shuffle=True, num_workers=8, persistent_workers=True)
    lasting = LastingWorkers(state_of=lambda copied: getattr(copied, "epoch", 0))
    lasting.keep(loader)
    for epoch in range(90):
        lasting.start(loader)
        for images, labels in loader:
            ...

Workers have copies of the data set, of `collate_fn` and of `worker_init_fn`. What never changes has a state of 0."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hotlap.parts.asked_in_time import batches_ahead, begin
from hotlap.parts.made_here import has_left, send_home
from hotlap.parts.read_again import of_loader

_REFERENCES = 2  # the loader's, and the one that counting takes


class LastingWorkers:
    """Loaders with `persistent_workers`, minded at the start of each of their epochs.

    Workers keep what they were forked with: where `state_of` says that the data set, `collate_fn` or `worker_init_fn`
    has changed since, as by `set_epoch`, they are forked anew; so are they where it hands out tensors of its own,
    which the script may write into, or where reading changes it, or what collates its samples. A loader that starts
    also begins with its sampler and draws a seed for its workers, before the sampler draws one for the order; without
    that, later epochs would come in another order.
    """

    def __init__(self, state_of: Callable[[Any], int]) -> None:
        self._state_of = state_of
        self._states: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._starts_anew: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._process = os.getpid()
        atexit.register(_send_home, weakref.ref(self))
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=functools.partial(_leave, weakref.ref(self)))

    def send_home(self) -> None:
        """At the end of the script, which otherwise ends its workers in the midst of what they do: each would leave an
        empty folder behind."""
        for loader in list(self._states) if os.getpid() == self._process else ():
            if isinstance(loader._iterator, _MultiProcessingDataLoaderIter):
                loader._iterator._shutdown_workers()
        send_home()

    def leave(self) -> None:
        """In a forked copy, where workers are the parent's: it can neither ask them nor send them home."""
        for loader in list(self._states):
            iterator, loader._iterator = loader._iterator, None
            if isinstance(iterator, _MultiProcessingDataLoaderIter):
                iterator._shutdown = True

    def keep(self, loader: Any) -> None:
        self._states[loader] = 0

    def release(self, loader: Any) -> None:
        """To be called before anybody else looks at a loader that is about to be iterated. An iterator that somebody
        still holds, as in `zip(loader, loader)`, goes on by itself: without us there would be one for each of them,
        and none would have workers when it is over. One that is not torch's own cannot be started anew."""
        if loader not in self._states:
            return
        if multiprocessing.current_process().daemon and not batches_ahead(loader):
            loader.num_workers = 0  # as the script has it: a daemon may have no children
        if loader._iterator is None:
            return
        is_held = sys.getrefcount(loader._iterator) > _REFERENCES
        is_torchs = isinstance(loader._iterator, _BaseDataLoaderIter)
        if is_held and _is_over(loader._iterator):
            loader._iterator._shutdown_workers()
        if is_held or has_left(loader._iterator) or not is_torchs:
            loader._iterator = None

    def start(self, loader: Any) -> None:
        """To be called whenever a loader is about to be iterated."""
        import torch

        if loader not in self._states:
            return
        before, self._states[loader] = self._states[loader], self._state(loader)
        if loader._iterator is None:
            return
        if loader not in self._starts_anew:
            reads = of_loader(loader, self._state_of)
            self._starts_anew[loader] = reads.share_memory or bool(reads.changed)
        if self._states[loader] != before or self._starts_anew[loader]:
            loader._iterator._shutdown_workers()
            loader._iterator = None
        else:
            begin(loader)
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _state(self, loader: Any) -> int:
        """Of what its workers were given when they were started, and have copies of."""
        copied = loader.dataset, loader.collate_fn, loader.worker_init_fn
        return hash(tuple(self._state_of(one) for one in copied if one is not None))


def _send_home(lasting: weakref.ref[LastingWorkers]) -> None:
    own = lasting()
    if own is not None:
        own.send_home()


def _leave(lasting: weakref.ref[LastingWorkers]) -> None:
    own = lasting()
    if own is not None:
        own.leave()


def _is_over(iterator: Any) -> bool:
    """Whether everything its workers were told to make has been drawn; not one that has yet to tell them."""
    if not isinstance(iterator, _MultiProcessingDataLoaderIter) or "_next_data" in vars(iterator):
        return False
    return iterator._rcvd_idx == iterator._send_idx
