"""How long a trial has trained, by which it is cut off."""

from __future__ import annotations

import statistics
from collections import deque

_ONE_OFF = 5.0  # times the usual step: compiling, kernels being chosen, a cache being filled
_USUAL = 32  # steps back that tell what is usual


class Trained:
    """Adds up steps. What is paid once counts for no more than a few usual ones, whether it comes first or later."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._recent: deque[float] = deque(maxlen=_USUAL)
        self._earlier = self._most = 0.0

    def add(self, seconds: float) -> None:
        if len(self._recent) == _USUAL:
            self._earlier += min(self._recent[0], self._most)
        self._recent.append(seconds)
        self._most = _ONE_OFF * statistics.median_low(self._recent)
        self.seconds = self._earlier + sum(min(one, self._most) for one in self._recent)
