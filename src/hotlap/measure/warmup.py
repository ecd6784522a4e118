"""Warm-up is found, not assumed: compiling, algorithm search, allocator growth and caches filling look alike."""

from __future__ import annotations

import statistics

from hotlap.observe.run import Run

_SPIKE = 5.0  # times an ordinary step: a one-off cost, not part of the level
_STORM = 0.04  # more spikes than this share of the steps, and more than one, never settle
_FEW = 3  # times that something may be compiled late
_GROWTH, _STRAIGHT = 0.10, 0.95  # growing by so much, along a line: what busy neighbours do reaches 0.94 (recorded)


def warmup_steps(seconds: list[float], busy: list[float] | None = None) -> int | None:
    """How many steps to leave out at the start; None when the series does not settle. `busy` is each step without its
    waits: loaders deliver in bursts, and one step in eight that waits for eight batches is no spike."""
    busy = seconds if busy is None else busy
    size = 8 if len(seconds) >= 48 else 3
    means = [statistics.fmean(seconds[i : i + size]) for i in range(0, len(seconds) - size + 1, size)]
    if len(means) < 4:
        return None
    late = means[len(means) // 2 :]
    level = statistics.median(late)
    # Of single steps: means would rise with the spikes they should show. Where steps mostly wait, it must still matter.
    spike = max(_SPIKE * statistics.median(busy), level)
    if _grows(means[len(means) // 4 :]) or _storms(busy[len(busy) // 4 :], spike):
        return None
    spread = 1.4826 * statistics.median(abs(value - level) for value in late)
    tolerance = max(0.05 * level, 3 * spread)
    for first in range(len(means) - 2):
        rest = busy[first * size :]
        calm = all(abs(mean - level) <= tolerance for mean in means[first : first + 3])
        if calm and max(rest[: 3 * size]) <= spike and not _storms(rest, spike):
            half = len(means[first:]) // 2
            early, end = statistics.median(means[first : first + half]), statistics.median(means[first + half :])
            if abs(early / end - 1) <= 0.10:
                return first * size
    return None


# Both are asked of the whole but its first quarter: of a leak or of a storm some late piece always looks settled.


def recompiles(run: Run) -> str:
    """Said of a run that compiles again and again; empty for all others. New shapes at an epoch's end are not that."""
    late = [step for step in run.compiled_at if step >= run.steps // 4]
    if len(late) <= max(_FEW, _STORM * run.steps):
        return ""
    return f"recompiles again and again ({len(run.compiled_at)} times in {run.steps} steps)"


def _storms(busy: list[float], spike: float) -> bool:
    return sum(value > spike for value in busy) > max(1.0, _STORM * len(busy))


def _grows(means: list[float]) -> bool:
    """Whether steps become slower all the way, as with a leak. Becoming faster is what warm-up does."""
    if len(means) < 5 or min(means) == max(means):
        return False
    places = range(len(means))
    slope = statistics.linear_regression(places, means).slope
    growth = slope * len(means) / statistics.fmean(means)
    return growth > _GROWTH and statistics.correlation(places, means) > _STRAIGHT
