"""Whether batches are made of tensors that the data set goes on holding.

Torch moves such a tensor into shared memory when a worker first sends it, and from then on the worker's data set and
the script hold the same: what the script writes into a batch is there when the worker sends it again. Workers that are
started for every epoch know nothing of that."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data.dataloader import _DatasetKind

from hotlap.parts.forked import NoAnswer, asked

_PATIENCE_SECONDS = 20.0


def hands_out_its_own(loader: Any) -> bool:
    """Asked of a forked copy, which makes a batch twice; so it is said, too, where that has no answer. Torch's own
    collation copies always."""
    if loader._auto_collation and loader.collate_fn is default_collate:
        return False
    try:
        return bool(asked(lambda: _are_the_same(loader), _PATIENCE_SECONDS))
    except NoAnswer:
        return True


def _are_the_same(loader: Any) -> bool:
    index = next(iter(loader._index_sampler))
    made = [_batch(loader, index) for _ in range(2)]  # both are there, so new memory is never the same
    one, other = map(_memory, made)
    return bool(one & other)


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
