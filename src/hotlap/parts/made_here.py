"""Batches of workers that a script knows nothing of. What one of them failed to make is made again in the training
process, where the script meets its own error in its own words; so is all that has not been drawn yet once the script
changes its data set, or what collates its samples, in the middle of an epoch: workers would see it in the next one, and
have made batches ahead."""

from __future__ import annotations

import functools
import gc
import os
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _DatasetKind, _MultiProcessingDataLoaderIter

from hotlap.parts.glance import glance

_OWN = "_not_yet_drawn"  # where an iterator carries its own


class _Notes:
    """The indices that workers were sent and whose batches were not drawn yet; and what they know."""

    def __init__(self, iterator: Any) -> None:
        self.indices: deque[Any] = deque()
        self.known, self.is_left = _glances(iterator), False


def begin(iterator: Any) -> None:
    """An epoch for which no index was asked yet."""
    vars(iterator)[_OWN] = _Notes(iterator)
    _begun.add(iterator)


def has_left(iterator: Any) -> bool:
    """Whether its workers were sent home in the middle of an epoch. It may be of any kind."""
    notes = getattr(iterator, _OWN, None)
    return notes is not None and notes.is_left


def send_home() -> None:
    """Whatever still has such workers, also where nobody can reach it any more, as after an error."""
    for iterator in list(_begun):
        iterator._shutdown_workers()


def stand_ins() -> list[tuple[type, str, Callable[..., Any]]]:
    """For torch's own methods."""
    kind = _MultiProcessingDataLoaderIter
    return [(kind, "_next_index", _noting(kind._next_index)), (kind, "_next_data", _giving(kind._next_data))]


def _noting(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def _next_index(iterator: Any) -> Any:
        index = original(iterator)
        if _OWN in vars(iterator):
            vars(iterator)[_OWN].indices.append(index)
        return index

    return _next_index


def _giving(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def _next_data(iterator: Any) -> Any:
        notes = vars(iterator).get(_OWN)
        if notes is None:
            return original(iterator)
        if not notes.is_left and _glances(iterator) != notes.known:
            notes.is_left = True
            iterator._shutdown_workers()
            iterator._tasks_outstanding = iterator._prefetch_factor * iterator._num_workers  # so that none is sent one
        if notes.is_left:
            if not notes.indices:
                iterator._next_index()
            return _made(iterator, notes.indices.popleft())
        received = iterator._rcvd_idx
        try:
            batch = original(iterator)
        except StopIteration:
            raise
        except Exception:
            if iterator._rcvd_idx == received:  # no sample's fault: a worker has died
                raise
        else:
            notes.indices.popleft()
            return batch
        return _made(iterator, notes.indices.popleft())

    return _next_data


def _glances(iterator: Any) -> Any:
    return glance(iterator._dataset), glance(iterator._collate_fn)


def _made(iterator: Any, index: Any) -> Any:
    fetcher: Any = _DatasetKind.create_fetcher(
        iterator._dataset_kind, iterator._dataset, iterator._auto_collation, iterator._collate_fn, iterator._drop_last
    )
    batch = fetcher.fetch(index)
    return pin_memory(batch, iterator._pin_memory_device) if iterator._pin_memory else batch


def _disown() -> None:
    """In a forked copy, where an iterator's workers are the parent's: one that is thrown away here may not end them."""
    for iterator in list(_begun):
        iterator._shutdown = True
    _go_on_collecting()


def _stop_collecting() -> None:
    """Around a fork: what is thrown away by the collector would be ended before it is disowned."""
    _collects.append(gc.isenabled())
    gc.disable()


def _go_on_collecting() -> None:
    if _collects.pop():
        gc.enable()


_begun: weakref.WeakSet[Any] = weakref.WeakSet()
_collects: list[bool] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_stop_collecting, after_in_parent=_go_on_collecting, after_in_child=_disown)
