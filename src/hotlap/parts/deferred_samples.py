"""Samples without pixels: a data set runs as it is, but its transforms only draw, and images stay encoded.

What its `__getitem__` does, in which order, and what it draws from which generator is the script's own. For the time of
a fetch its recognised transforms are replaced by ones that draw their random numbers and leave the work for later, and
`Image.open` by one that leaves JPEG files undecoded. A whole batch then travels as a few tensors. Where anything goes
wrong on the way, the generators are put back and the batch is made the script's own way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import Subset, default_collate, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from hotlap.parts.generators import generator_states, put_back
from hotlap.parts.purity import reader, same
from hotlap.parts.transform_sites import mark, owners_of, sites_of
from hotlap.parts.undone_images import Undone, collated_undone, is_undone, left_undone, undone_in

PROVEN = 16  # samples of each site made both ways, and of each batch until then: soon, since much is under way
ON_TRIAL, TRUSTED, REFUSED = 0, 1, 2


class Deferred:
    """A batch that is not done, and what is needed to make it the script's own way after all. `own`: what that way made
    of the first samples, a list of images for each. `is_like`: whether the rest of them was the same, and so were the
    generators afterwards."""

    def __init__(self, batch: Any, index: Any, states: Any, own: list[Any], is_like: bool = True) -> None:
        self.batch, self.index, self.states, self.own, self.is_like = batch, index, states, own, is_like
        self._is_from_worker = get_worker_info() is not None

    def pin_memory(self) -> Deferred:
        self.batch = pin_memory(self.batch)
        return self

    def done_plainly(self, dataset: Any) -> Any:
        """The batch as the script's own loader would have made it, by the same random numbers. Generators stand
        afterwards where they would have, also where it raises: those of a worker are not those of this process."""
        here = generator_states()
        put_back(self.states)
        try:
            return default_collate(reader(dataset)(self.index))
        finally:
            if self._is_from_worker:
                put_back(here)


class Deferring:
    """Stands before the data set in a loader's fetcher. `verdicts`, one for each site, are shared with whoever holds
    the first samples against the script's own."""

    def __init__(self, dataset: Any, verdicts: torch.Tensor) -> None:
        self.__wrapped__ = dataset  # for whoever wants the script's own
        self._verdicts, self._read = verdicts, reader(dataset)
        self._proven = sys.maxsize if _reads_whole_batches(dataset) else PROVEN
        self._sites = sites_of(dataset)
        self._mark = mark(self._sites)

    def __getitems__(self, index: list[Any]) -> Any:
        """A `Deferred`, which `collated` passes on, or samples."""
        verdicts = self._verdicts.tolist()
        if REFUSED in verdicts or not self._is_as_found():
            return self._read(index)
        states = generator_states()
        if TRUSTED in verdicts:
            batch = self._batch(self._undone(index))
            if batch is not None and all(verdicts[site] == TRUSTED for one in undone_in(batch) for site in one.recipes):
                return Deferred(batch, index, states, [])
            put_back(states)
            if batch is None:
                return self._read(index)  # where an error of the script's own comes again
        return self._on_trial(index, states)

    def _on_trial(self, index: list[Any], states: Any) -> Any:
        """Some samples the script's own way first. What a data set keeps of them is then its own, and wherever the
        rest cannot be left undone, the script's own way goes on from there."""
        first, rest = index[: self._proven], index[self._proven :]
        own, after = self._read(first), generator_states()
        put_back(states)
        samples = self._undone(first)
        is_like = same(after, generator_states())
        if samples is not None and rest and any(map(is_undone, samples)):
            others = self._undone(rest)
            samples = None if others is None else [*samples, *others]
        batch = self._batch(samples)
        images = [] if batch is None else [_images(*pair) for pair in zip(samples, own, strict=False)]
        if images and is_like and None not in images:
            return Deferred(batch, index, states, images)
        put_back(after)
        plain = [*own, *self._read(rest)] if rest else own
        return plain if batch is None else Deferred(batch, index, states, [], is_like=False)

    def _undone(self, index: list[Any]) -> Any:
        """Samples; None where something went wrong, which the script's own way may show as well."""
        try:
            with left_undone(self._sites):
                return self._read(index)
        except Exception:
            return None

    def _batch(self, samples: Any) -> Any:
        """None where there is nothing undone in it, or not in all of its samples."""
        if samples is None:
            return None
        try:
            batch = collated_undone(samples)
        except Exception:
            return None
        return batch if undone_in(batch) else None

    def _is_as_found(self) -> bool:
        """A transform may be replaced, or set to another size, while an epoch runs."""
        is_there = all(vars(site.owner).get(site.name) is site.held for site in self._sites)
        return bool(self._sites) and is_there and mark(self._sites) == self._mark


def _reads_whole_batches(dataset: Any) -> bool:
    """Samples of such a data set may depend on one another."""
    while type(dataset) is Subset:  # whose own way is to read them one by one
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


def collated(made: Any) -> Any:
    return made if isinstance(made, Deferred) else default_collate(made)


class InWorkers:
    """As a loader's `worker_init_fn`: the script's own comes first; then the worker's fetcher is given what defers. Not
    where the script's own changed the data set: should a batch fail, the main process could not make it."""

    def __init__(self, own: Callable[[int], object] | None, verdicts: torch.Tensor) -> None:
        self._own, self._verdicts = own, verdicts

    def __call__(self, worker: int) -> None:
        from torch.utils.data._utils.fetch import _MapDatasetFetcher

        info: Any = get_worker_info()
        if self._own is not None:
            sites, before = sites_of(info.dataset), _held(info.dataset)
            settings = mark(sites)
            self._own(worker)
            after = _held(info.dataset)
            if len(after) != len(before) or not all(map(is_, after, before)) or mark(sites) != settings:
                return
        original, verdicts = _MapDatasetFetcher.__init__, self._verdicts

        def __init__(fetcher: Any, dataset: Any, *rest: Any) -> None:
            original(fetcher, dataset, *rest)
            if dataset is info.dataset:
                defer(fetcher, verdicts)

        _MapDatasetFetcher.__init__ = __init__  # type: ignore[assignment, method-assign]  # in this worker alone


def _held(dataset: Any) -> list[Any]:
    """Names and values of all attributes of a data set and those inside it."""
    return [part for owner in owners_of(dataset) for item in vars(owner).items() for part in item]


def defer(fetcher: Any, verdicts: torch.Tensor) -> None:
    fetcher.dataset, fetcher.collate_fn = Deferring(fetcher.dataset, verdicts), collated


def _images(sample: Any, own: Any) -> list[Any] | None:
    """What stands in the script's own sample where the other has something undone; None where anything else differs."""
    (leaves, shape), (own_leaves, own_shape) = tree_flatten(sample), tree_flatten(own)
    if shape != own_shape:
        return None
    pairs = list(zip(leaves, own_leaves, strict=True))
    if not all(isinstance(leaf, Undone) or same(leaf, other) for leaf, other in pairs):
        return None
    return [other for leaf, other in pairs if isinstance(leaf, Undone)]
