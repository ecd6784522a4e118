"""What a script does with its batches, learnt from the first of them: which tensors it moves, and where to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hotlap.parts.early_copies import Copier, Dress, Wish, copy_early, is_plain, tensors_in
from hotlap.parts.purity import same

_LEARNT = 2  # batches of which the script moved something
_TAUGHT = 16  # batches, after which one that moved none is believed to move none
_LEFT = 16  # batches in a row whose copies nobody wanted


class Habits:
    """Which tensors of a loader's batches the script moves, and where to, by their position in the batch."""

    def __init__(self, copiers: Callable[[torch.device], Copier | None]) -> None:
        self.refused = ""  # why nothing can be done for these batches
        self._copiers_for = copiers
        self._copiers: dict[torch.device, Copier] = {}
        self._moved: dict[int, torch.device] = {}
        self._seen: list[dict[int, torch.device]] = []
        self._noted: dict[int, torch.device] = {}
        self._taught = self._left = 0

    @property
    def known(self) -> bool:
        return bool(self._moved) and not self.refused

    def learn(self, batch: Any) -> None:
        """Note what becomes of a batch that the script is about to get, and judge by those before it."""
        if self._noted:
            self._seen.append(self._noted)
        if len(self._seen) >= _LEARNT:
            self._settle(self._seen[-2], self._seen[-1])
        elif self._taught >= _TAUGHT:
            self.refused = self.refused or "the script moves no tensor of its batches to a device"
        if self.refused or self._moved:
            return
        self._taught += 1
        self._noted = {}
        for position, tensor in enumerate(tensors_in(batch)):
            if is_plain(tensor):
                Dress(tensor, _Note(self, self._noted, position, tensor))

    def _settle(self, one: dict[int, torch.device], other: dict[int, torch.device]) -> None:
        self._seen, self._noted = [], {}
        moved = {position: device for position, device in one.items() if other.get(position) == device}
        for device in set(moved.values()):
            copier = self._copiers.get(device) or self._copiers_for(device)
            if copier is None:
                self.refused = f"its batches go to {device.type}, where nothing can be copied aside"
                return
            self._copiers[device] = copier
        self._moved, self._left = moved, 0

    def begin_copies(self, batch: Any, ahead: int) -> Any:
        """In the thread that draws; gives the batch back. Whatever goes wrong here, the script will copy for itself."""
        if self.known:
            self._begin_copies(batch, ahead)
        return batch

    def _begin_copies(self, batch: Any, ahead: int) -> None:
        by_device: dict[torch.device, list[torch.Tensor]] = {}
        for position, tensor in enumerate(tensors_in(batch)):
            device = self._moved.get(position)
            if device is not None and is_plain(tensor):
                by_device.setdefault(device, []).append(tensor)
        try:
            for device, tensors in by_device.items():
                copier = self._copiers[device]
                size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                if size * (ahead + 1) > copier.room_bytes:
                    self.refused = "its batches are too large to have several of them on the device"
                    return
                copy_early(tensors, copier, self._was_taken)
        except RuntimeError as error:  # out of memory, above all
            self.refused = f"copying ahead failed: {str(error).splitlines()[0]}"
            return
        self._left += 1
        if self._left > _LEFT:  # the script does otherwise now: learn anew
            self._moved, self._taught = {}, 0

    def _was_taken(self) -> None:
        self._left = 0


class _Note:
    """What becomes of one tensor. Its values are kept until it is moved: what a script writes into it through NumPy
    or `.data`, torch does not count, and an early copy would miss it."""

    __slots__ = ("_habits", "_noted", "_position", "_values", "_version")

    def __init__(self, habits: Habits, noted: dict[int, torch.device], position: int, tensor: torch.Tensor) -> None:
        self._habits, self._noted, self._position = habits, noted, position
        self._values, self._version = tensor.clone(), tensor._version

    def __call__(self, tensor: torch.Tensor, wish: Wish) -> None:
        if tensor._version != self._version:
            return  # written to before it is moved: not worth a copy
        if same(tensor, self._values):
            self._noted[self._position] = wish.device
        else:
            self._habits.refused = "the script writes into its batches without torch's knowledge"
