"""What the script's loaders show of themselves when they are drawn from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from hotlap.observe.batches import tensor_sizes
from hotlap.observe.bearing import why_no_workers
from hotlap.observe.dataset_state import dataset_state
from hotlap.observe.facts import global_generators, loader_facts, start_method
from hotlap.observe.met import Met
from hotlap.observe.run import LoaderFacts

DRAWS_LOOKED_AT = (1, 2, 4, 8, 16, 32, 64, 128)
_DRAWS_PROBED = 5


class Loaders:
    """Loaders by the identity of their samplers, which they share with their iterators."""

    def __init__(self) -> None:
        self.no_workers: dict[int, str] = {}  # why they would not bear any; empty where they would
        self.batch_bytes: dict[int, int] = {}
        self._met = Met()
        self._random: dict[int, bool] = {}
        self._probes: dict[int, int] = {}
        self._datasets: dict[int, int] = {}
        self._changing: set[int] = set()

    def add(self, loader: Any) -> None:
        self._met.add(id(loader._index_sampler), loader)

    def describe(self, key: int, loader: Any) -> None:
        self._met.describe(key, loader, loader_facts)

    def ask_for_workers(self, key: int, loader: Any) -> None:
        method, carried = start_method(loader.multiprocessing_context), (loader.collate_fn, loader.worker_init_fn)
        self.no_workers[key] = why_no_workers(loader.dataset, method, carried, loader.num_workers > 0)

    def forget_dataset(self, key: int) -> None:
        """Between epochs it may change."""
        self._datasets.pop(key, None)

    def look_at_dataset(self, key: int, iterator: Any) -> None:
        """Whether the data set has changed since the first batch of this epoch, in the reading or by the loop, or what
        collates its batches."""
        now = hash((dataset_state(iterator._dataset), dataset_state(iterator._collate_fn)))
        if self._datasets.setdefault(key, now) != now:
            self._changing.add(key)

    def weigh(self, key: int, batch: Any) -> None:
        self.batch_bytes[key] = sum(size for size, _ in tensor_sizes(batch))

    def generators(self, key: int, iterator: Any) -> Any:
        """Their states before some draws of each loader, but never the first of an epoch: that starts the sampler,
        which draws a seed. None where this draw is not probed."""
        if iterator._num_workers or not iterator._num_yielded or self._probes.get(key, 0) >= _DRAWS_PROBED:
            return None
        self._probes[key] = self._probes.get(key, 0) + 1
        return _generators()

    def compare_generators(self, key: int, before: Any) -> None:
        self._random[key] = self._random.get(key, False) or before != _generators()

    def refresh(self) -> None:
        self._met.refresh(loader_facts)

    def facts(self, draws: Mapping[int, int]) -> dict[int, LoaderFacts]:
        return {
            key: dataclasses.replace(
                one,
                draws=draws.get(key, 0),
                draws_random=self._random.get(key, one.draws_random),
                changes=key in self._changing,
                batch_bytes=self.batch_bytes.get(key, 0),
                no_workers=self.no_workers.get(key, ""),
            )
            for key, one in self._met.facts.items()
        }


def _generators() -> Any:
    try:
        return global_generators()
    except Exception:  # a generator put in by the script, whose state is another
        return None
