"""What stands where a DataLoader's own iterator would, draws from the sampler at the same moments, and serves from a
store as far as that is filled."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from hotlap.parts.asked_in_time import asked_anew, batches_ahead
from hotlap.parts.known_order import Cut, in_cuts
from hotlap.parts.resident import Refused, Resident

if TYPE_CHECKING:
    from hotlap.parts.resident_loader import ResidentSamples

Original = Callable[[Any], Any]


def iterator(loader: Any, samples: ResidentSamples, original: Original) -> Any:
    """For one epoch: the loader's own where nothing may be kept, one with workers while they still have to fill the
    store, else one without."""
    if not samples.begins(loader):
        return original(loader)
    if loader.num_workers and not samples.is_ready:
        loader.check_worker_number_rationality()
        return WorkersIterator(loader, samples, original)
    return StoreIterator(loader, samples, original)


class Serving(_BaseDataLoaderIter):
    """Draws indices as far ahead of the batches as the script's own workers would have been sent them."""

    _samples: ResidentSamples
    _original: Original
    _given_workers: int
    _ahead: int
    _noted: deque[Any]  # drawn from the sampler, their batch not yet delivered
    _is_serving = True
    _left: Resident | None = None  # all that the workers this stands for would go on making

    @property
    def is_trusted(self) -> bool:
        """Whether batches come out of the store by now, and still do: those are the same whenever they are drawn."""
        return self._is_serving and self._samples.is_ready

    def _follow(self, loader: Any, samples: ResidentSamples, original: Original) -> None:
        self._samples, self._original = samples, original
        self._given_workers = loader.num_workers
        self._ahead = batches_ahead(loader)
        self._noted = deque()
        wants_it = loader.pin_memory or torch.cuda.is_initialized()
        self._is_locking = wants_it and torch.cuda.is_available()  # asked here, since it takes as long as a batch does

    def __next__(self) -> Any:
        """Torch's own also tells profilers of each draw, which takes about as long as all the rest: here only where one
        listens."""
        if _profiler_enabled():
            with torch.autograd.profiler.record_function(self._profile_name):
                batch: Any = self._next_data()
        else:
            batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_index(self) -> Any:
        index = super()._next_index()
        self._noted.append(index)
        return index

    def _draw_ahead(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(StopIteration):
                self._next_index()

    def _draw_in_cuts(self) -> None:
        """For the epoch that is about to begin, all of which comes from here: workers would have to be sent lists."""
        store = self._samples.store if self._left is None else self._left
        if store is not None:
            self._sampler_iter = in_cuts(self._sampler_iter, self._index_sampler, len(store))

    def _serve(self) -> Any:
        if not self._noted and self._ahead:
            raise StopIteration
        index = self._noted.popleft() if self._noted else next(self._sampler_iter)
        if self._ahead:
            self._draw_ahead(1)
        if self._left is None:
            return self._samples.batch(index, self._is_locking, self._made, self._given_workers, self._ahead)
        try:
            return self._left.batch(index, self._is_locking, lambda: False)
        except Refused:
            return self._made(index)

    def _made(self, index: Any) -> Any:
        batch = self._collate_fn(self._samples.read(index.tolist() if type(index) is Cut else index))
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _begin_again(self, loader: Any) -> None:
        """Workers that live on do not see what the script has done to its data set since."""
        if self._left is not None:
            return
        state = self._samples.state_of(loader)
        if self._is_serving:
            self._left = self._samples.outlived_by(state)
        if self._left is None:
            self._samples.begins(loader, state)

    def _start_over(self, loader: Any) -> None:
        """A loader that keeps its workers begins another epoch, from the store; or, where that is lost, with workers
        again, which draw no second seed: those they stand for would have lived on."""
        if self._samples.store is not None or self._left is not None:
            self._sampler_iter, self._num_yielded = asked_anew(self, loader), 0
            self._noted.clear()
            self._draw_in_cuts()
            self._draw_ahead(self._ahead)
            return
        own, loader.generator = loader.generator, torch.Generator()
        try:
            loader._iterator = self._original(loader)
        finally:
            loader.generator = own


class StoreIterator(Serving):
    """Makes every batch itself: gathered from the store, or loaded here and kept. May be driven from another thread
    than the one that made it, but by one at a time."""

    def __init__(self, loader: Any, samples: ResidentSamples, original: Original) -> None:
        super().__init__(loader)
        self._follow(loader, samples, original)
        self._num_workers = 0
        if self._ahead:
            _BaseDataLoaderIter._reset(self, loader, True)  # as an iterator with workers does
        self._draw_in_cuts()
        self._draw_ahead(self._ahead)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._begin_again(loader)
        self._start_over(loader)

    def _next_data(self) -> Any:
        return self._serve()

    def _shutdown_workers(self) -> None:
        """There are none."""


class WorkersIterator(Serving, _MultiProcessingDataLoaderIter):
    """Hands out what workers make, and keeps it. Once the store is filled, be it in the middle of an epoch, the workers
    are sent home: batches they were asked for but did not deliver come out of the store first."""

    def __init__(self, loader: Any, samples: ResidentSamples, original: Original) -> None:
        self._follow(loader, samples, original)
        self._is_serving = False
        super().__init__(loader)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        if first_iter:
            super()._reset(loader, first_iter)
            return
        self._begin_again(loader)
        if not self._is_serving and self._samples.is_ready:
            self._send_home()
        if self._is_serving:
            self._start_over(loader)
        else:
            self._noted.clear()
            super()._reset(loader, first_iter)

    def _next_data(self) -> Any:
        if not self._is_serving and self._samples.is_filled:
            self._send_home()
        if self._is_serving:
            return self._serve()
        received = self._rcvd_idx
        index = None
        try:
            batch = super()._next_data()
        finally:  # a batch that a worker failed to make has been delivered, too
            if self._rcvd_idx > received:
                index = self._noted.popleft()
        self._samples.keep(index, batch, self._given_workers)
        return batch

    def _send_home(self) -> None:
        self._is_serving = True
        self._shutdown_workers()
        self._num_workers = 0
