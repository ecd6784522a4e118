"""Whether batches are made of tensors that the data set goes on holding.

Torch moves such a tensor into shared memory when a worker first sends it, and from then on the worker's data set and
the script hold the same: what the script writes into a batch is there when the worker sends it again. Workers that are
started for every epoch know nothing of that."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate, default_convert
from torch.utils.data.dataloader import _DatasetKind

from hotlap.parts.forked import NoAnswer, asked

_PATIENCE_SECONDS = 20.0


def hands_out_its_own(loader: Any) -> bool:
    """So it is said, too, where there is no answer. Torch's own collation copies always."""
    if loader._auto_collation and loader.collate_fn is default_collate:
        return False

    def two() -> tuple[Any, Any]:
        index = next(iter(loader._index_sampler))
        return _batch(loader, index), _batch(loader, index)

    return _share_memory(two) is not False


def would_hand_out_its_own(dataset: Any, collate: Callable[[Any], Any] | None, is_batched: bool) -> bool:
    """The same before there is a loader, by its first sample; not said where there is no answer."""
    if is_batched and collate is None:
        return False

    def batch() -> Any:
        sample = dataset[0]
        return (collate or default_convert)([sample] if is_batched else sample)

    return _share_memory(lambda: (batch(), batch())) is True


def _share_memory(made: Callable[[], tuple[Any, Any]]) -> bool | None:
    """Whether two batches of the same samples do, made in a forked copy. None: there is no answer."""

    def share() -> bool:
        one, other = made()  # both are there, so new memory is never the same
        return bool(_memory(one) & _memory(other))

    try:
        return bool(asked(share, _PATIENCE_SECONDS))
    except NoAnswer:
        return None


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
