"""How far two samples of draws may be apart by chance, whatever the shape of what they were drawn from.

Where both come from the same distribution, any pair of draws could as well have come the other way round. So a figure
is held against what it would have been with pairs swapped at random: losses with heavy tails are far apart then, too,
where a fixed limit would call them different. Swaps keep what the two of a pair have in common."""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections.abc import Sequence
from functools import cache
from typing import Any

_SWAPS = 1000  # the first of which swaps nothing
_AT_ONCE = 8  # pairs whose sums are made for all their swaps beforehand


def spread(ours: Sequence[float], theirs: Sequence[float], rate: float) -> tuple[float, float]:
    """Log of how much wider theirs are spread, and how far from 0 chance takes that, but for this rate."""
    import numpy

    middle = statistics.fmean([*ours, *theirs])
    ours, theirs = [x - middle for x in ours], [x - middle for x in theirs]
    squares = math.fsum(x * x for x in [*ours, *theirs])
    least, count = 1e-14 * squares or 1e-300, 2 * len(ours)  # less is rounding
    shifts = _swapped([b - a for a, b in zip(ours, theirs, strict=True)])
    growths = _swapped([b * b - a * a for a, b in zip(ours, theirs, strict=True)])
    with numpy.errstate(all="ignore"):  # losses without bounds are for whoever looks at the figure
        mean_parts = shifts * shifts / count
        wider, narrower = squares + growths - mean_parts, squares - growths - mean_parts
        ratios = numpy.maximum(wider, least) / numpy.maximum(narrower, least)
    figures = [0.5 * math.log(ratio) for ratio in ratios.tolist()]  # numpy's differs in the last bit now and then
    return figures[0], _reach(figures, rate)


def mean(ours: Sequence[float], theirs: Sequence[float], rate: float) -> tuple[float, float]:
    """By how much theirs are larger, and how far from 0 chance takes that, but for this rate."""
    shifts: list[float] = _swapped([b - a for a, b in zip(ours, theirs, strict=True)]).tolist()
    return shifts[0] / len(ours), _reach(shifts, rate) / len(ours)


def _reach(figures: list[float], rate: float) -> float:
    """What no more than this share of all swaps goes beyond: so what is right does so at this rate at most."""
    beyond = max(1, int(rate * len(figures)))
    return heapq.nlargest(beyond + 1, map(abs, figures))[-1]


def _swapped(differences: Sequence[float]) -> Any:
    """The sum of the differences after each of the swaps, which turn signs."""
    import numpy

    totals = numpy.zeros(_SWAPS)
    with numpy.errstate(all="ignore"):
        for start in range(0, len(differences), _AT_ONCE):
            sums = numpy.zeros(1)
            for difference in differences[start : start + _AT_ONCE]:
                sums = numpy.concatenate((sums + difference, sums - difference))
            totals += sums[_places(start, len(sums) - 1)]
    return totals


@cache
def _places(start: int, last: int) -> Any:
    """Which of their sums so many pairs have in each swap. Always the same: no judgement depends on luck of its own."""
    import numpy

    dice = random.Random(start)
    return numpy.array([0, *(dice.randrange(2**_AT_ONCE) & last for _ in range(_SWAPS - 1))])
