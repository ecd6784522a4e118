"""How long a trial has trained, by which it is cut off."""

from __future__ import annotations

import statistics
from collections import deque

_ONE_OFF = 5.0  # times the usual step: compiling, kernels being chosen, a cache being filled
_USUAL = 32  # steps back that tell what is usual


class Trained:
    """Adds up steps. What is paid once counts for no more than a few usual ones, whether it comes first or later."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_USUAL)
        self._earlier = 0.0

    def add(self, seconds: float) -> None:
        if len(self._recent) == _USUAL:
            self._earlier += min(self._recent[0], self._most)
        self._recent.append(seconds)

    @property
    def seconds(self) -> float:
        most = self._most
        return self._earlier + sum(min(one, most) for one in self._recent)

    @property
    def _most(self) -> float:
        return _ONE_OFF * statistics.median_low(self._recent) if self._recent else 0.0
