"""A plain training loop whose next batches are already on their way to the device.

    from hotlap.parts.drawing_ahead import Prefetched

    for batch in Prefetched(loader, "cuda"):
        loss = model(batch["x"], batch["y"])

Batches come in the loader's order, with the structure they have, and at most two are drawn ahead, by one thread. A
loader without workers reads its data set in that thread: where the samples are drawn at random, the random numbers of
the loop then come in another order.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch.utils._pytree import tree_map

from hotlap.parts.early_copies import Copier, copier_for, copy_early, is_plain, tensors_in

_AHEAD = 2
_EXIT_SECONDS = 10.0  # one that waits for data that never come is not waited for any longer


class Paused(Exception):
    """The next one must be drawn by whoever wants it."""


class Drawing:
    """Calls `draw` in a thread of its own, as often as there was a call of `more`. The first error ends it, the end of
    an iterator included. With `held` taken while it draws, a forked copy of the process loses nothing: what was drawn
    is there, and the rest is for itself to draw."""

    def __init__(self, draw: Callable[[], Any], ahead: int, held: Any = None) -> None:
        self._process, self._is_stopped = os.getpid(), False
        self._wanted: SimpleQueue[bool] = SimpleQueue()  # queues that may be used wherever the collector comes in
        self._made: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        for _ in range(ahead):
            self.more()
        arguments = (
            draw,
            self._wanted,
            self._made,
            held or contextlib.nullcontext(),
        )  # not this object: it must be free to go
        self._thread = threading.Thread(target=_work, args=arguments, name="hotlap-draws-ahead", daemon=True)
        _running.add(self)
        _threads.add(self._thread)
        self._thread.start()

    def take(self) -> tuple[Any, BaseException | None]:
        """The next result, or the error there was instead."""
        if os.getpid() == self._process:
            return self._made.get()
        try:
            return self._made.get_nowait()
        except Empty:
            return None, Paused()

    def more(self) -> None:
        self._wanted.put(True)

    def stop(self, wait_seconds: float | None = 0.0) -> None:
        """What was drawn and not taken is dropped. None waits for as long as the draw at work takes."""
        self._is_stopped = True
        with contextlib.suppress(Empty):
            while True:
                self._wanted.get_nowait()
        self._wanted.put(False)
        if wait_seconds != 0.0 and threading.current_thread() is not self._thread:
            self._thread.join(wait_seconds)

    def __del__(self) -> None:
        if not self._is_stopped:  # all are before the interpreter goes down, and nothing here works after that
            self.stop()


class Relay(Drawing):
    """What another one draws goes through `work` in a second thread, while the first draws the next."""

    def __init__(self, source: Drawing, work: Callable[[Any], Any], ahead: int, held: Any = None) -> None:
        self._source = source
        super().__init__(functools.partial(_relayed, source, work), ahead, held)

    def stop(self, wait_seconds: float | None = 0.0) -> None:
        self._source.stop(wait_seconds)  # first: its end is what the second thread may be waiting for
        super().stop(wait_seconds)


def _relayed(source: Drawing, work: Callable[[Any], Any]) -> Any:
    result, error = source.take()
    if error is not None:
        raise error
    source.more()
    return work(result)


def _work(draw: Callable[[], Any], wanted: SimpleQueue[bool], made: SimpleQueue[Any], held: Any) -> None:
    while wanted.get():
        with held:
            try:
                result = draw(), None
            except StopIteration as end:
                made.put((None, end.with_traceback(None)))  # its frames would keep the iterator alive
                return
            except BaseException as error:  # the script's to handle, in its own thread
                made.put((None, error))
                return
            made.put(result)
            del result
    made.put((None, Paused()))


_running: weakref.WeakSet[Drawing] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # also of those that are gone, which end in their time


@atexit.register
def _end_all() -> None:
    """A thread at work in torch or in the driver while the interpreter goes down would end the process by a signal."""
    for drawing in list(_running):
        drawing.stop()
    until = time.monotonic() + _EXIT_SECONDS
    for thread in list(_threads):
        thread.join(max(0.0, until - time.monotonic()))


class Prefetched:
    """A loader whose batches come on the device. `copier` makes the copies: by default one that fits the device."""

    def __init__(self, loader: Any, device: Any, ahead: int = _AHEAD, copier: Copier | None = None) -> None:
        self._loader, self._ahead = loader, ahead
        place = torch.device(device)
        if place.type == "cuda" and place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
        self._device, self._copier = place, copier or copier_for(place)
        self._drawing: Drawing | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        if self._drawing is not None and getattr(self._loader, "persistent_workers", False):
            self._drawing.stop(None)  # one iterator for all epochs: it must not be at work when it starts again
        iterator = iter(self._loader)  # here, not in the thread: workers are started by whoever asked for them

        def draw() -> Any:
            batch = next(iterator)
            if self._copier is not None:
                copy_early([one for one in tensors_in(batch) if is_plain(one)], self._copier)
            return batch

        self._drawing = drawing = Drawing(draw, self._ahead)
        try:
            while True:
                batch, error = drawing.take()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    try:
                        raise error
                    finally:
                        del error  # else its own traceback would keep it alive
                drawing.more()
                yield tree_map(self._moved, batch, is_leaf=lambda leaf: hasattr(leaf, "to"))
        finally:
            drawing.stop()

    def _moved(self, leaf: Any) -> Any:
        """Tensors, and objects that know how to move themselves; anything else is left as it is."""
        if isinstance(leaf, torch.Tensor):
            return leaf.to(self._device, non_blocking=True)
        return leaf.to(self._device) if hasattr(leaf, "to") else leaf
