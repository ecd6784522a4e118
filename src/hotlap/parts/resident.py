"""Samples that stay in memory once they have been loaded. The first epoch fills the store from the batches it draws
anyway; from then on batches are gathered from it, in the sampler's own order.

    store = Resident(dataset, Room(4 << 30))
    for index, batch in ...:          # while the first epoch runs
        store.keep(index, batch)
    batch = store.batch(index)        # what the loader would have given
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import default_collate

from hotlap.parts.purity import same

_CHECKED_EVERY = 16  # batches; and never more than this share of the time:
_CHECK_SHARE = 0.01


class Changed(Exception):
    """A sample is no longer what was kept of it."""


class Refused(Exception):
    """These batches cannot be kept, with the reason."""


class Room:
    """Bytes that several stores share. What one took comes back when it is gone."""

    def __init__(self, limit_bytes: int) -> None:
        self.left_bytes = limit_bytes

    def take(self, store: Resident, wanted_bytes: int) -> None:
        if wanted_bytes > self.left_bytes:
            raise Refused(f"it would take {wanted_bytes / 2**30:.1f} GiB of {self.left_bytes / 2**30:.1f} GiB left")
        self.left_bytes -= wanted_bytes
        weakref.finalize(store, self._give_back, wanted_bytes)

    def _give_back(self, taken_bytes: int) -> None:
        self.left_bytes += taken_bytes


class Resident:
    """The samples of one map-style data set, one row of bytes each, as far as there is room. NumPy moves the rows:
    torch's own threads would take a core from the training for so little."""

    def __init__(self, dataset: Any, room: Room, pinned: bool = False) -> None:
        self._dataset, self._room, self._pinned = dataset, room, pinned
        self._length = len(dataset)
        self._has = numpy.zeros(self._length, dtype=bool)
        self._rows: list[Any] = []
        self._kinds: list[tuple[Any, Any]] = []  # shape and dtype of a sample in each
        self._shape: Any = None  # of the batch as a structure
        self._count = self._drawn = 0
        self._check_at, self._check_time = _CHECKED_EVERY, 0.0

    @property
    def share(self) -> float:
        """How much of the data set is kept by now."""
        return self._count / self._length if self._length else 0.0

    def keep(self, index: Sequence[int], batch: Any) -> None:
        """Take down the rows of a batch that the loader made."""
        leaves, shape = tree_flatten(batch)
        if not self._rows:
            self._make(leaves, shape, len(index))
        if shape != self._shape or [(leaf.shape[1:], leaf.dtype) for leaf in leaves] != self._kinds:
            raise Refused("its samples are not all of one shape")
        places = numpy.asarray(index)
        for leaf, rows in zip(leaves, self._rows, strict=True):
            rows[places] = _bytes(leaf)
        self._has[places] = True
        self._count = int(numpy.count_nonzero(self._has))

    def batch(self, index: Sequence[int]) -> Any:
        """The batch the loader would have made. A sample that is not kept yet is loaded now."""
        places = numpy.asarray(index)
        if self._count < self._length:
            for missing in places[~self._has[places]].tolist():
                self.keep([missing], default_collate([self._dataset[missing]]))
        self._drawn += 1
        if self._drawn >= self._check_at and time.monotonic() >= self._check_time:
            self._check(index[self._drawn % len(index)])
        return self._gathered(places, self._pinned)

    def _gathered(self, places: Any, pinned: bool) -> Any:
        found = []
        for rows, (shape, dtype) in zip(self._rows, self._kinds, strict=True):
            out = torch.empty((len(places), *shape), dtype=dtype, pin_memory=pinned)
            numpy.take(rows, places, axis=0, out=_bytes(out), mode="clip")  # the other modes go through a buffer
            found.append(out)
        return tree_unflatten(found, self._shape)

    def _check(self, index: int) -> None:
        """Now and then, for ever: a sample is loaded again and must be what is kept."""
        start = time.monotonic()
        fresh = default_collate([self._dataset[index]])
        if not same(tree_leaves(fresh), tree_leaves(self._gathered(numpy.asarray([index]), False))):
            raise Changed(f"sample {index} is no longer what it was")
        now = time.monotonic()
        self._check_at, self._check_time = self._drawn + _CHECKED_EVERY, now + (now - start) / _CHECK_SHARE

    def _make(self, leaves: list[Any], shape: Any, size: int) -> None:
        if not leaves or not all(isinstance(leaf, torch.Tensor) and leaf.dim() for leaf in leaves):
            raise Refused("its batches hold more than tensors")
        if any(len(leaf) != size or leaf.is_cuda or leaf.layout is not torch.strided for leaf in leaves):
            raise Refused("its batches are not one row a sample in main memory")
        if any(not leaf.numel() for leaf in leaves):
            raise Refused("its samples are empty")
        sizes = [leaf[0].numel() * leaf.element_size() for leaf in leaves]
        self._room.take(self, sum(sizes) * self._length)
        self._rows = [numpy.empty((self._length, row), dtype=numpy.uint8) for row in sizes]
        self._kinds = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
        self._shape = shape


def _bytes(tensor: Any) -> Any:
    """The memory of a batch as rows of bytes, whatever its dtype."""
    flat = tensor.detach().contiguous().reshape(len(tensor), -1)
    return flat.view(torch.uint8).numpy()
