"""The batches of a DataLoader out of the device's own memory, for a training loop written by hand:

    from hotlap.parts.resident_batches import ResidentBatches

    loader = DataLoader(dataset, batch_size=512, shuffle=True, num_workers=8)
    batches = ResidentBatches(loader, "cuda")
    for epoch in range(90):
        for images, labels in batches:      # on the device already, in the order of the loader's own sampler
            ...

The first epoch comes from the loader and fills the store; from then on a batch is one gather on the device. Samples
that are not always the same, or do not fit, are not kept: the batches then come from the loader in every epoch, and
`batches.reason` says why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

from hotlap.parts.resident import Room
from hotlap.parts.resident_iterators import iterator
from hotlap.parts.resident_loader import ResidentSamples, why_not

_SHARE_OF_MEMORY = 0.5  # of what is free on the device


class ResidentBatches:
    """`state` may give a number that changes when the data set does: then nothing that was kept is used any more."""

    def __init__(
        self, loader: DataLoader[Any], device: str | torch.device = "cuda", limit_bytes: int | None = None,
        state: Callable[[Any], int] = lambda dataset: 0,
    ) -> None:  # fmt: skip
        self._loader, self._device = loader, torch.device(device)
        self.reason = why_not(loader) or ""
        room = Room(int(_SHARE_OF_MEMORY * _free_bytes(self._device)) if limit_bytes is None else limit_bytes)
        self._samples = None if self.reason else ResidentSamples(loader, room, state, self._give_up, self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        drawn = iter(self._loader) if self._samples is None else iterator(self._loader, self._samples, iter)
        for batch in drawn:
            yield tree_map(self._moved, batch)  # what was gathered is there already

    def _moved(self, leaf: Any) -> Any:
        return leaf.to(self._device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"samples are not kept on the device: {reason}", stacklevel=2)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil

    return int(psutil.virtual_memory().available)
