"""The figures that a process keeps of the batches it makes or draws, and leaves for `feed_record` to read."""

from __future__ import annotations

from types import CodeType
from typing import Any

from hotlap.observe.batches import shared_length, tensor_sizes
from hotlap.observe.stacks import Label, Labels

LOOKED_AT = 8  # batches whose size is taken
_WATCHED = 16  # of quick batches one in so many is watched, and of short ones metered, for all of them
_QUICK_SECONDS, _SHORT_SECONDS = 0.0005, 0.005


class FeedLedger:
    """What one process did for one data set."""

    def __init__(self, dataset: Any, collating: CodeType) -> None:
        self.dataset, self.name = id(dataset), type(dataset).__name__
        self.labels = Labels(collating)
        self.fetcher: Any = lambda: None
        self.seen: dict[Label, float] = {}  # samples, by weight
        self.batches = self.samples = self.passed = self.unmetered = 0
        self.sizes: list[int] = []
        self.seconds = self.collate_seconds = 0.0
        self.read_bytes = self.asked_bytes = 0
        self.waited_seconds = 0.0
        self.draws = self.draws_from_empty = self.depths = self.capacity = 0
        self.batch_bytes: list[int] = []
        self.drawn_samples = 0
        self.unwatched = ""

    def passes(self) -> bool:
        """Whether the next batch is one of the quick ones for which another stands."""
        is_quick = self.batches >= _WATCHED and self.seconds < _QUICK_SECONDS * self.batches
        if is_quick and self.passed < _WATCHED - 1:
            self.passed += 1
            return True
        return False

    def meters(self, weight: int) -> bool:
        """Whether the next batch, which stands for so many, is measured: of short ones only some, for all of them."""
        is_short = self.batches >= _WATCHED and self.seconds < _SHORT_SECONDS * self.batches
        return not is_short or self.unmetered >= _WATCHED - weight

    def made(self, samples: int, weight: int) -> None:
        self.samples += samples * weight
        if len(self.sizes) < LOOKED_AT:
            self.sizes.append(samples)

    def drew(self, iterator: Any, depth: int) -> None:
        if not self.draws:
            self.capacity = iterator._num_workers * iterator._prefetch_factor
            method = getattr(getattr(iterator._workers[0], "_popen", None), "method", "fork")
            if method != "fork":
                self.unwatched = f"workers are started by {method}, which cannot be looked into"
        self.draws += 1
        self.depths += depth
        self.draws_from_empty += not depth

    def look_at(self, batch: Any) -> None:
        self.batch_bytes.append(sum(size for size, _ in tensor_sizes(batch)))
        self.drawn_samples = self.drawn_samples or shared_length(batch)

    def record(self) -> dict[str, Any]:
        skipped = ("labels", "fetcher", "seen")
        plain = {name: value for name, value in vars(self).items() if name not in skipped}
        return plain | {"seen": [[*label, weight] for label, weight in list(self.seen.items())]}
