"""How long a trial has trained, by which it is cut off."""

from __future__ import annotations

import heapq
import statistics
from collections import deque

_ONE_OFF = 5.0  # times the usual step: compiling, kernels being chosen, a cache being filled
_USUAL = 32  # steps back that tell what is usual
_ONCE = 8  # steps that may be such: where there are more, as where workers deliver by turns, that is how it trains


class Trained:
    """Adds up steps. What is paid once counts for no more than a few usual ones, whether it comes first or later."""

    def __init__(self) -> None:
        self._whole = 0.0
        self._recent: deque[float] = deque(maxlen=_USUAL)
        self._longest: list[float] = []

    def add(self, seconds: float) -> None:
        self._whole += seconds
        self._recent.append(seconds)
        self._longest = heapq.nlargest(_ONCE, [*self._longest, seconds])

    @property
    def seconds(self) -> float:
        most = _ONE_OFF * statistics.median_low(self._recent) if self._recent else 0.0
        return self._whole - sum(max(0.0, one - most) for one in self._longest)
