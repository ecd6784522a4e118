"""Samples that stay in memory once they have been loaded: one row each, gathered into batches by index.

    from hotlap.parts.resident import Resident, Room, reader

    store = Resident(len(dataset), reader(dataset), Room(4 << 30))
    batch = store.batch([3, 1, 4])    # what a DataLoader with default collation would give; loads what is not kept yet
    store.keep([1, 5], batch)         # takes down the rows of a batch that somebody else made
    store.fill(reader(dataset), 4)    # four processes load the rest, with the lowest priority, while training goes on

With `place=lambda: torch.device("cuda")` the rows of a full store lie there as well, and batches that the script moves
there are gathered there. With `device="cuda"` they lie there only; `hotlap.parts.resident_batches` is that in one line.
One thread at a time may change a store, which a lock sees to; gathering needs none.
"""

from __future__ import annotations

import math
import mmap
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import default_collate

from hotlap.parts.known_order import Cut
from hotlap.parts.purity import reader as reader
from hotlap.parts.purity import same
from hotlap.parts.resident_filler import Filler, Form, Reader, why_no_rows
from hotlap.parts.resident_mirror import Mirror, has_room, on_device

_CHECKED_EVERY = 16  # batches; and never more than this share of the time:
_CHECK_SHARE = 0.01
_PROVEN = 4  # samples that somebody else made
_HOST = torch.device("cpu")


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
    """The samples of one map-style data set. A store without room for all of them raises `Refused`."""

    def __init__(
        self, length: int, read: Reader, room: Room, device: Any = None, place: Callable[[], Any] | None = None
    ) -> None:
        """`place`: where batches will go, asked once the store is full; None as long as that is not known."""
        self._length, self._read, self._room = length, read, room
        self._device = None if device is None else torch.device(device)
        self._place, self._mirror = place, None
        self._rows: list[Any] = []  # of the host or of the device
        self._form = Form(None, [])
        self._packed: Callable[[list[Any]], Any] = list
        self._has = numpy.zeros(0, dtype=bool)
        self._count = self._drawn = 0
        self._check_at, self._check_time = _CHECKED_EVERY, 0.0
        self._filler: Filler | None = None
        self._changing = threading.RLock()
        self._is_proven = self._has_others = False  # samples that somebody else made

    def __len__(self) -> int:
        return self._length

    @property
    def share(self) -> float:
        """How much of the data set is kept by now."""
        if self._filler is not None:
            with self._changing:
                self._collect()
        return self._count / self._length if self._length else 0.0

    @property
    def is_laid_out(self) -> bool:
        """Whether a batch was kept, so that the form of all is known."""
        return bool(self._rows)

    @property
    def has_served(self) -> bool:
        """Whether a batch came out without loading anything."""
        return self._drawn > 0

    def keep(self, index: Sequence[int], batch: Any) -> None:
        """Take down the rows of a batch that the loader made."""
        with self._changing:
            self._has_others = True
            self._keep(self._places(index), batch)

    def prove(self) -> None:
        """Once: some of the samples that somebody else made are what is made here, or `Changed` is raised. Workers may
        have been told something by the script that this process was not."""
        if self._has_others and not self._is_proven:
            self._check_some()
            self._is_proven = True

    def look_again(self) -> None:
        """At the start of an epoch: what all samples rest on may have changed since the last one."""
        if self._count:
            self._check_some()

    def _check_some(self) -> None:
        kept = numpy.flatnonzero(self._has)
        steps = numpy.arange(_PROVEN) * len(kept) // _PROVEN
        self._check(kept[(self._drawn + steps) % len(kept)])  # others each time

    def batch(
        self, index: Sequence[int] | Cut, pinned: bool = False, may_check: Callable[[], bool] = lambda: True
    ) -> Any:
        """The batch the loader would have made. A sample that is not kept yet is loaded now. `may_check` is asked when
        a sample is about to be loaded again."""
        places = self._places(index)
        if self._count == self._length or not self._load_missing(places):
            self._drawn += 1
            if self._drawn >= self._check_at and time.monotonic() >= self._check_time and may_check():
                self._check(places[self._drawn % len(places)][None])
        where = index if type(index) is Cut else places
        mirror = self._mirrored() if self._place is not None else None
        if mirror is not None:
            return self._packed(mirror.batch(where))
        return self._gathered(places if self._device is None else on_device(where, self._device), pinned)

    def _mirrored(self) -> Mirror | None:
        """The rows on the device, where the script will want its batches."""
        if self._mirror is None and self._count == self._length:
            device = self._place() if self._place is not None else None
            if device is None:
                return None
            if has_room(sum(rows.array.nbytes for rows in self._rows), device):
                self._mirror = Mirror([rows.tensor for rows in self._rows], device)
            else:
                self._place = None
        if self._mirror is not None and not self._mirror.is_of_use:
            self._mirror = self._place = None
        return self._mirror

    def fill(self, read: Reader, processes: int) -> None:
        """Load what is missing in processes of their own; what they have made is taken in as batches are drawn."""
        if self._filler is None and self._device is None and self._rows and self._count < self._length:
            arrays = [rows.array for rows in self._rows]
            self._filler = Filler(read, arrays, self._has, self._form, processes)
            weakref.finalize(self, self._filler.close)

    def close(self) -> None:
        """End what still fills the store."""
        if self._filler is not None:
            self._filler.close()

    def _places(self, index: Sequence[int] | Cut) -> Any:
        places = index.places if type(index) is Cut else numpy.asarray(index)
        if type(index) is Cut and index.lie_below(self._length):
            return places
        if places.dtype.kind not in "iu" or places.ndim != 1 or not len(places):
            raise Refused("its sampler gives no plain numbers")
        if places.astype(numpy.uint64).max() >= self._length:  # negative ones become large
            raise Refused("its sampler gives numbers outside the data set")
        return places

    def _collect(self) -> None:
        made = self._filler.collect() if self._filler is not None else ()
        if len(made):
            self._has[made] = True
            self._count = int(numpy.count_nonzero(self._has))

    def _load_missing(self, places: Any) -> bool:
        """Whether there was something to load."""
        with self._changing:
            self._collect()
            missing = places[~self._has[places]] if self._rows else places
        if len(missing):
            batch = default_collate(self._read(missing.tolist()))  # may fork, and wait for who waits for this lock
            with self._changing:
                self._keep(missing, batch)
        return bool(len(missing))

    def _keep(self, places: Any, batch: Any) -> None:
        leaves, structure = tree_flatten(batch)
        reason = why_no_rows(leaves, len(places))
        if reason:
            raise Refused(reason)
        form = Form.of(leaves, structure)
        if not self._rows:
            self._make(form)
        if form != self._form:
            raise Refused("its samples are not all of one shape")
        for leaf, rows in zip(leaves, self._rows, strict=True):
            rows.write(places, leaf)
        self._has[places] = True
        self._count = int(numpy.count_nonzero(self._has))

    def _gathered(self, places: Any, pinned: bool = False) -> Any:
        """From places on the device where the rows are there."""
        return self._packed([rows.gather(places, pinned) for rows in self._rows])

    def _check(self, places: Any) -> None:
        """Now and then, for ever: samples are loaded again and must be what is kept."""
        start = time.monotonic()
        try:
            fresh = tree_leaves(default_collate(self._read(places.tolist())))
        except Exception as error:
            raise Changed(f"sample {places[0]} cannot be loaded again: {type(error).__name__}") from error
        kept = tree_leaves(self._gathered(places if self._device is None else on_device(places, self._device)))
        if not same(fresh, [leaf.cpu() for leaf in kept]):
            raise Changed(f"sample {places[0]} is no longer what it was")
        now = time.monotonic()
        self._check_at, self._check_time = self._drawn + _CHECKED_EVERY, now + (now - start) / _CHECK_SHARE

    def _make(self, form: Form) -> None:
        self._room.take(self, sum(math.prod(shape) * dtype.itemsize for shape, dtype in form.kinds) * self._length)
        self._form, self._packed = form, _packing(form)
        try:
            self._has = numpy.frombuffer(mmap.mmap(-1, self._length), dtype=bool)
            if self._device is None:
                self._rows = [_HostRows(self._length, *kind) for kind in form.kinds]
            else:
                self._rows = [_DeviceRows(self._length, *kind, self._device) for kind in form.kinds]
        except (OSError, torch.OutOfMemoryError) as error:  # the system counts otherwise than we do
            raise Refused("there is no memory for it") from error


def _packing(form: Form) -> Callable[[list[Any]], Any]:
    """How leaves become a batch: a list or a dict of tensors is made at once, anything else as torch does it."""
    leaves = [object() for _ in form.kinds]
    batch = tree_unflatten(leaves, form.structure)
    if type(batch) is list and batch == leaves:
        return lambda leaves: leaves
    if type(batch) is dict and list(batch.values()) == leaves:
        names = list(batch)
        return lambda leaves: dict(zip(names, leaves, strict=True))
    return lambda leaves: tree_unflatten(leaves, form.structure)


class _HostRows:
    """Bytes in memory that forked processes share. NumPy moves them: torch's own threads would take a core from the
    training for so little, and the interpreter's lock is free meanwhile."""

    def __init__(self, length: int, shape: Any, dtype: Any) -> None:
        self._shape, self._dtype = shape, dtype
        row_bytes = math.prod(shape) * dtype.itemsize
        memory = mmap.mmap(-1, length * row_bytes)
        self.array = numpy.frombuffer(memory, dtype=numpy.uint8).reshape(length, row_bytes)
        kind = _numpys(dtype)
        self._rows = self.array.view(kind).reshape(length, *shape) if kind is not None else None

    @property
    def tensor(self) -> torch.Tensor:
        return torch.from_numpy(self.array).view(self._dtype).view(-1, *self._shape)

    def write(self, places: Any, leaf: Any) -> None:
        self.array[places] = leaf.contiguous().view(len(leaf), -1).view(torch.uint8).numpy()

    def gather(self, places: Any, pinned: bool) -> Any:
        out = torch.empty((len(places), *self._shape), dtype=self._dtype, device=_HOST, pin_memory=pinned)
        if self._rows is not None:
            self._rows.take(places, 0, out.numpy(), "clip")  # the other modes go through a buffer
        else:
            self.array.take(places, 0, out.view(len(places), -1).view(torch.uint8).numpy(), "clip")
        return out


def _numpys(dtype: torch.dtype) -> Any:
    """The same kind of number in NumPy, or None."""
    try:
        return torch.empty(0, dtype=dtype, device=_HOST).numpy().dtype
    except TypeError:
        return None


class _DeviceRows:
    """A tensor on the device."""

    def __init__(self, length: int, shape: Any, dtype: Any, device: Any) -> None:
        self._rows = torch.empty((length, *shape), dtype=dtype, device=device)

    def write(self, places: Any, leaf: Any) -> None:
        self._rows[torch.from_numpy(places).to(self._rows.device)] = leaf.detach().to(self._rows.device)

    def gather(self, places: Any, pinned: bool) -> Any:
        return self._rows.index_select(0, places)
