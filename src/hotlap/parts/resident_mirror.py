"""The rows of a store that is full, once more on a device. Batches are gathered there by index; for all the script can
tell they lie in main memory, and moving one to the device costs nothing."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from hotlap.parts.current_queue import Queue, current_queue, stream_of
from hotlap.parts.known_order import Cut, Order
from hotlap.parts.lone_pieces import left_alone
from hotlap.parts.waiting_tensor import Waiting

_UNMOVED = 16  # batches in a row that the script did not move to the device
_SHARE = 0.25  # of the memory that is free there
_TOGETHER = 32  # batches gathered at once: to launch a kernel takes the host longer than all else that a batch needs
_TOGETHER_BYTES = 8 << 20  # of them: whoever keeps one keeps the memory of those beside it
_ALIGNED_BYTES = 256  # what libraries look at when they choose a kernel


def has_room(wanted_bytes: int, device: torch.device) -> bool:
    return device.type != "cuda" or wanted_bytes <= _SHARE * torch.cuda.mem_get_info(device)[0]


class Mirror:
    """`rows`: tensors in main memory, a row for each sample."""

    def __init__(self, rows: Sequence[torch.Tensor], device: torch.device) -> None:
        self._device, self._unmoved = device, 0
        self._rows = [one.to(device) for one in rows]
        self._row_bytes = [one[:1].nbytes for one in rows]
        self._ahead: weakref.WeakKeyDictionary[Order, _Ahead] = weakref.WeakKeyDictionary()

    @property
    def is_of_use(self) -> bool:
        """Not where the script goes on in main memory: every batch would be brought back."""
        return self._unmoved <= _UNMOVED

    def batch(self, places: Any) -> list[torch.Tensor]:
        """`places`: an array or a cut."""
        self._unmoved += 1
        queue = current_queue(self._device)
        made = self._cut_out(places, queue) if type(places) is Cut else None
        if made is None:
            index = on_device(places, self._device)
            made = [rows.index_select(0, index) for rows in self._rows]
        given = [_Gathered(rows, places, one, queue) for rows, one in zip(self._rows, made, strict=True)]
        return [Waiting(one, gathered, self._moved) for one, gathered in zip(made, given, strict=True)]

    def _cut_out(self, cut: Cut, queue: Queue) -> Sequence[torch.Tensor] | None:
        """Of what was gathered for several batches of this order; None where each is better off alone."""
        ahead = self._ahead.get(cut.order)
        found = None if ahead is None else ahead.taken(cut, queue)
        if found is not None:
            return found
        batch_bytes = [len(cut) * one for one in self._row_bytes]
        together = min(_TOGETHER, _TOGETHER_BYTES // max(1, sum(batch_bytes)))
        if together < 2 or any(one % _ALIGNED_BYTES for one in batch_bytes):
            return None
        ahead = self._ahead[cut.order] = _Ahead(self._rows, cut, together, queue)
        return ahead.taken(cut, queue)

    def _moved(self, device: torch.device) -> None:
        self._unmoved = 0


class _Ahead:
    """The next batches of an order, by where they start. Each has a version of its own, as if it were made alone."""

    def __init__(self, rows: Sequence[torch.Tensor], cut: Cut, together: int, queue: Queue) -> None:
        index = cut.order.on(rows[0].device, queue)[cut.start : cut.start + together * len(cut)]
        parts = [torch.unsafe_split(one.index_select(0, index), len(cut)) for one in rows]
        starts = range(cut.start, cut.start + len(index), len(cut))
        self._batches = dict(zip(starts, zip(*parts, strict=True), strict=True))
        self._queue, self._is_inference = queue, torch.is_inference_mode_enabled()

    def taken(self, cut: Cut, queue: Queue) -> Sequence[torch.Tensor] | None:
        found = self._batches.pop(cut.start, None)
        if found is None or len(found[0]) != len(cut):
            return None
        if queue != self._queue or torch.is_inference_mode_enabled() is not self._is_inference:
            return None
        for one in found:
            left_alone(one)
        return found


class _Gathered:
    """Gives what was gathered; later ones are gathered anew, since the script may have written into that."""

    def __init__(self, rows: torch.Tensor, places: Any, made: torch.Tensor, queue: Queue) -> None:
        self._rows, self._places, self._queue = rows, places, queue
        self._made: torch.Tensor | None = made

    def __call__(self) -> torch.Tensor:
        made, self._made = self._made, None
        if made is None:
            return self._rows.index_select(0, on_device(self._places, self._rows.device))
        if self._queue is not None and current_queue(self._rows.device) != self._queue:
            now = torch.cuda.current_stream(self._rows.device)
            now.wait_stream(stream_of(self._queue))
            made.record_stream(now)
        return made


def on_device(places: Any, device: torch.device) -> torch.Tensor:
    """An array or a cut there, for use on the current stream."""
    if type(places) is Cut:
        return places.on(device, current_queue(device))
    return torch.from_numpy(places).to(device, torch.int64, non_blocking=True)
