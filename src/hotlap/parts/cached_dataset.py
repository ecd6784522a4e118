"""`CachedDataset`: each sample is made once and then read from memory shared by all workers.

    from torch.utils.data import DataLoader
    from hotlap.parts.cached_dataset import CachedDataset

    dataset = CachedDataset(Photos("train"), bytes="4 GiB")
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=8)
    for epoch in range(90):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

Forked and spawned workers share one copy, `bytes` at most."""

from __future__ import annotations

import contextlib
import io
import multiprocessing.context
import operator
import pickle
import re
import time
import warnings
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset, IterableDataset

from hotlap.parts.purity import same, why_impure
from hotlap.parts.shared_pool import SharedPool

_PROBED = 8
_CHECKED_EVERY = 16  # samples found; and never more than this share of the time:
_CHECK_SHARE = 0.01
_PLAIN = (int, float, str, bool, type(None))
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


class CachedDataset(Dataset[Any]):
    """A map-style data set whose samples are kept, `bytes` at most ("4 GiB", "500 MB" or a number).

    Only what is always the same may be kept. That is tested with a few samples, in a process of its own; a data set
    that draws at random, reads the clock or cannot be compared raises `ValueError` with the reason. Afterwards a sample
    is made again now and then and compared; at the first difference a warning says so, and nothing is kept any more.
    Samples are handed out as copies. Attributes are those of the data set inside, and setting one starts over. Forked
    and spawned workers share the one copy; a pickle or copy made for anything else starts empty."""

    def __init__(self, dataset: Any, bytes: int | str = "4 GiB") -> None:
        limit_bytes = bytes_in(bytes)
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise ValueError("samples cannot be kept: the data set is iterable, so they have no number")
        size = len(dataset)
        probed = [number * (size - 1) // _PROBED for number in range(_PROBED + 1)] if size else []
        reason = why_impure(dataset, probed)
        if reason is not None:
            raise ValueError(f"samples cannot be kept: {reason}; keep what comes before that, or leave it uncached")
        self.dataset, self.limit_bytes = dataset, limit_bytes
        self._begin(SharedPool(limit_bytes))

    def _begin(self, pool: SharedPool | None) -> None:
        self._pool, self._found = pool, 0
        self._check_at, self._check_time = _CHECKED_EVERY, 0.0

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        pool = self._pool
        try:
            key = f"{type(index)} {operator.index(index)} {self._state()}".encode(errors="replace")
        except TypeError:
            return self.dataset[index]
        kept = pool.get(key) if pool is not None else None
        if kept is None:
            sample = self.dataset[index]
            if pool is not None:
                with contextlib.suppress(Exception):  # what cannot be pickled raises anything
                    pool.put(key, *packed(sample))
            return sample
        sample = unpacked(kept)
        self._found += 1
        if self._found < self._check_at or time.monotonic() < self._check_time:
            return sample
        return self._checked(index, sample)

    def _checked(self, index: Any, sample: Any) -> Any:
        start = time.monotonic()
        fresh = self.dataset[index]
        if not same(fresh, sample):
            warnings.warn(f"sample {index} is no longer what it was, so samples are no longer kept", stacklevel=3)
            self._pool = None
        now = time.monotonic()
        self._check_at, self._check_time = self._found + _CHECKED_EVERY, now + (now - start) / _CHECK_SHARE
        return fresh

    def _state(self) -> list[Any]:
        """The data set's plain attributes, such as an epoch: what is made under others is another sample."""
        attributes = getattr(self.dataset, "__dict__", {})
        return [(name, value) for name, value in attributes.items() if type(value) in _PLAIN]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # `__getitems__` would go round the cache
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("dataset", "limit_bytes"):
            super().__setattr__(name, value)
            return
        setattr(self.dataset, name, value)
        self._begin(SharedPool(self.limit_bytes))

    def __getstate__(self) -> dict[str, Any]:
        is_for_worker = multiprocessing.context.get_spawning_popen() is not None
        return vars(self) | ({} if is_for_worker else {"_pool": None})

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if self._pool is None:
            self._begin(SharedPool(self.limit_bytes))


def bytes_in(size: int | str) -> int:
    """`"4 GiB"` and the like as a number."""
    if isinstance(size, int):
        return size
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?i?)b?\s*", size, re.IGNORECASE)
    if parts is None or parts[2].lower() not in _UNITS:
        raise ValueError(f'{size!r} is no size: give a number of bytes, or one such as "4 GiB"')
    return int(float(parts[1]) * _UNITS[parts[2].lower()])


class _Pickler(pickle.Pickler):
    """Tensors go as arrays, whose memory is passed as it is."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.layout is not torch.strided or value.device.type != "cpu":
            return NotImplemented
        if value.requires_grad or value.is_conj() or value.is_neg():
            return NotImplemented
        dense = value.clone()  # keeps the strides, unless there are holes between
        flat = dense.as_strided((dense.numel(),), (1,))
        return _tensor, (flat.view(torch.uint8).numpy(), value.dtype, tuple(value.shape), dense.stride())


def _tensor(flat: Any, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    return torch.from_numpy(flat).view(dtype).as_strided(shape, stride)


def packed(sample: Any) -> list[Any]:
    """A sample in pieces: the size of each, what holds them together, and the memory of every array in it."""
    buffers: list[pickle.PickleBuffer] = []
    body = io.BytesIO()
    _Pickler(body, protocol=5, buffer_callback=buffers.append).dump(sample)
    pieces = [memoryview(body.getvalue()), *(buffer.raw() for buffer in buffers)]
    sizes = numpy.array([len(pieces), *map(len, pieces)], numpy.int64).tobytes()
    padded = (piece for one in pieces for piece in (one, b"\0" * (-len(one) % 16)))
    return [sizes, b"\0" * (-len(sizes) % 16), *padded]


def unpacked(kept: memoryview) -> Any:
    """The sample again. Its arrays lie in `kept`, which is nobody else's."""
    count = int.from_bytes(kept[:8], "little")
    sizes = numpy.frombuffer(kept[8 : 8 * (count + 1)], numpy.int64).tolist()
    at, pieces = 8 * (count + 1), []
    for size in sizes:
        at += -at % 16
        pieces.append(kept[at : at + size])
        at += size
    return pickle.loads(pieces[0], buffers=pieces[1:])
