"""What it does to a data set that its samples are read again: whether batches are made of tensors that it goes on
holding, and whether reading changes it, as where it counts, or works on what it holds in place.

Torch moves such a tensor into shared memory when a worker first sends it, and from then on the worker's data set and
the script hold the same: what the script writes into a batch is there when the worker sends it again. Workers that are
started for every epoch know nothing of that, nor of what reading did to the copy that those before them had."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data.dataloader import _DatasetKind

from hotlap.parts.forked import NoAnswer
from hotlap.parts.purity import reader
from hotlap.parts.without_a_trace import asked_of

_PATIENCE_SECONDS = 20.0
_CHANGED = ("data set changes while it is read", "collate_fn changes while it works")


@dataclass(frozen=True)
class Reads:
    """What two readings of the same samples showed."""

    share_memory: bool  # the batches: so they will the next time
    changed: str = ""  # what was not after the second one as it was after the first, in words


def of_loader(loader: Any, state_of: Callable[[Any], int]) -> Reads:
    """Made as its workers make them. Where there is no answer they may share their memory, but for torch's own
    collation, which always copies."""
    is_torchs = loader._auto_collation and loader.collate_fn is default_collate

    def reading() -> Callable[[], Any]:
        index = next(iter(loader._index_sampler))
        return lambda: _batch(loader, index)

    reads = _read_twice(loader.dataset, loader.collate_fn, reading, state_of)
    return Reads(share_memory=not is_torchs) if reads is None else reads


def of_first_sample(
    dataset: Any, collate: Callable[[Any], Any] | None, is_batched: bool, state_of: Callable[[Any], int]
) -> Reads:
    """The same before there is a loader. Where there is no answer they share none."""
    together = collate or (default_collate if is_batched else default_convert)

    def batch() -> Any:
        sample = reader(dataset)([0])[0]
        return together([sample] if is_batched else sample)

    return _read_twice(dataset, collate, lambda: batch, state_of) or Reads(share_memory=False)


def _read_twice(
    dataset: Any, collate: Any, reading: Callable[[], Callable[[], Any]], state_of: Callable[[Any], int]
) -> Reads | None:
    """In a forked copy. The first reading may open files and fill what keeps samples."""

    def read() -> Reads:
        batch = reading()
        one = batch()
        before = state_of(dataset), state_of(collate)
        other = batch()  # both are there, so new memory is never the same
        after = state_of(dataset), state_of(collate)
        changed = next((what for what, was, now in zip(_CHANGED, before, after, strict=True) if was != now), "")
        return Reads(bool(_memory(one) & _memory(other)), changed)

    try:
        reads: Reads = asked_of(dataset, read, _PATIENCE_SECONDS)
    except NoAnswer:
        return None
    return reads


def _batch(loader: Any, index: Any) -> Any:
    fetcher: Any = _DatasetKind.create_fetcher(
        loader._dataset_kind, loader.dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
    )
    return fetcher.fetch(index)


def _memory(batch: Any) -> set[int]:
    """Where its tensors lie, whatever objects hold them."""
    found: set[int] = set()

    class Looking(pickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if isinstance(thing, torch.Tensor):
                if thing.layout is torch.strided and thing.numel():
                    found.add(thing.untyped_storage().data_ptr())
                return int, ()
            return NotImplemented

    Looking(io.BytesIO()).dump(batch)
    return found
