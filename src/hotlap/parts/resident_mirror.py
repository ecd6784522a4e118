"""The rows of a store that is full, once more on a device. Batches are gathered there by index; for all the script can
tell they lie in main memory, and moving one to the device costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hotlap.parts.known_order import Cut
from hotlap.parts.waiting_tensor import Waiting

_UNMOVED = 16  # batches in a row that the script did not move to the device
_SHARE = 0.25  # of the memory that is free there


def has_room(wanted_bytes: int, device: torch.device) -> bool:
    return device.type != "cuda" or wanted_bytes <= _SHARE * torch.cuda.mem_get_info(device)[0]


class Mirror:
    """`rows`: tensors in main memory, a row for each sample."""

    def __init__(self, rows: Sequence[torch.Tensor], device: torch.device) -> None:
        self._device, self._unmoved = device, 0
        self._rows = [one.to(device) for one in rows]

    @property
    def is_of_use(self) -> bool:
        """Not where the script goes on in main memory: every batch would be brought back."""
        return self._unmoved <= _UNMOVED

    def batch(self, places: Any) -> list[torch.Tensor]:
        """`places`: an array or a cut."""
        self._unmoved += 1
        stream = _current_stream(self._device)
        index = on_device(places, self._device, stream)
        return [self._waiting(_Gathered(rows, index, stream)) for rows in self._rows]

    def _waiting(self, gathered: _Gathered) -> torch.Tensor:
        return Waiting(gathered.made, gathered, self._moved)

    def _moved(self, device: torch.device) -> None:
        self._unmoved = 0


class _Gathered:
    """Gives what was gathered; later ones are gathered anew, since the script may have written into that."""

    def __init__(self, rows: torch.Tensor, index: torch.Tensor, stream: Any) -> None:
        self._rows, self._index, self._stream = rows, index, stream
        self.made: Any = rows.index_select(0, index)

    def __call__(self) -> torch.Tensor:
        made, self.made = self.made, None
        now = _current_stream(self._rows.device)
        if now is not None and now != self._stream:
            now.wait_stream(self._stream)
            for one in (self._index, made):
                if one is not None:
                    one.record_stream(now)
        found: torch.Tensor = self._rows.index_select(0, self._index) if made is None else made
        return found


def on_device(places: Any, device: torch.device, stream: Any = None) -> torch.Tensor:
    """An array or a cut there, for use on the current stream, which may be given."""
    if type(places) is Cut:
        return places.on(device, _current_stream(device) if stream is None else stream)
    return torch.from_numpy(places).to(device, torch.int64, non_blocking=True)


def _current_stream(device: torch.device) -> Any:
    return torch.cuda.current_stream(device) if device.type == "cuda" else None
