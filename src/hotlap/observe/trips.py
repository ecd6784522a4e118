"""Where one trip round the training loop ends and the next begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

BY_HAND_AFTER = 8  # backwards without an update or a training loader
BY_UPDATES_AFTER = 32  # of one optimizer, between two draws of training loaders


class Trips:
    """Follows a training loop as it happens and tells when a trip round it is over: when a training loader is asked
    again after training; without a training loader, when an optimizer updates again that already has.

    A loader trains if a backward or an update follows its draw, unless an evaluation used the batch up, or the loader
    ended, before that. Where a batch serves many updates, as one that holds all the data, its loader is put aside and
    updates tell, until it is drawn from at every few of them."""

    def __init__(self, trainers: Iterable[int] = ()) -> None:
        self.trainers = set(trainers)
        self.aside: set[int] = set()
        self._since: Counter[int] = Counter()  # by optimizer its updates since the last draw
        self.drawn: set[int] = set()  # loaders drawn from in this trip
        self._known: set[int] = set()
        self._unused: list[int] = []  # drawn since the last backward, and not judged
        self._used = self._trained = False
        self._cycle: set[int] = set()
        self._backwards = 0

    def started(self, key: int) -> bool:
        """A new loader begins a new trip; one that starts again before it trained takes its draw back."""
        is_new = key not in self._known
        self._known.add(key)
        if is_new:
            self._unused = []
        if self._trained:
            return is_new and bool(self.trainers) and self._over()
        if is_new or key in self.drawn:
            self.drawn.clear()
        return False

    def asked(self, key: int) -> bool:
        return self._trained and key in self.drawn and key in self.trainers and self._over()

    def drew(self, key: int) -> None:
        if key in self.aside and not self._serves_many():
            self.aside.remove(key)
        if key in self.trainers or key in self.aside:
            self._since.clear()
        if self._used or key in self._unused:
            self._unused, self._used = [], False
        self._unused.append(key)
        self.drawn.add(key)

    def ended(self, key: int) -> None:
        if key in self._unused:
            self._unused.remove(key)
        if not self._trained and key in self.drawn:
            self.drawn.clear()

    def judged(self) -> None:
        self._unused = []

    def trained(self) -> None:
        self._trained = True
        if not self._used:
            new = {key for key in self._unused if key not in self.aside} - self.trainers
            if new:
                self.trainers |= new
                self._since.clear()
            self._used = True

    def went_back(self) -> bool:
        """After a backward: over where neither a loader nor an optimizer tells of trips, which takes some to see."""
        self._backwards += 1
        return self._backwards > BY_HAND_AFTER and not self.trainers and not self._cycle

    def updated(self, key: int) -> bool:
        self.trained()
        if self.trainers:
            self._since[key] += 1
            if not self._serves_many():
                return False
            self.aside |= self.trainers
            self.trainers.clear()
            self._cycle.clear()
        is_over = key in self._cycle
        self._cycle = {key} if is_over else self._cycle | {key}
        return is_over

    def _serves_many(self) -> bool:
        return max(self._since.values(), default=0) > BY_UPDATES_AFTER

    def _over(self) -> bool:
        self._trained = False
        self.drawn.clear()
        return True
