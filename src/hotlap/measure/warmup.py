"""Warm-up is found, not assumed: compiling, algorithm search, allocator growth and caches filling look alike."""

from __future__ import annotations

import statistics

_SPIKE = 5.0  # times the level: a one-off cost, not part of the level
_STORM = 0.05  # more spikes than this share of the steps never settles


def warmup_steps(seconds: list[float]) -> int | None:
    """How many steps to leave out at the start; None when the series does not settle."""
    size = 8 if len(seconds) >= 48 else 3
    blocks = [seconds[i : i + size] for i in range(0, len(seconds) - size + 1, size)]
    if len(blocks) < 4:
        return None
    means = [statistics.fmean(block) for block in blocks]
    late = means[len(means) // 2 :]
    level = statistics.median(late)
    spread = 1.4826 * statistics.median(abs(value - level) for value in late)
    tolerance = max(0.05 * level, 3 * spread)
    for first in range(len(blocks) - 2):
        rest = seconds[first * size :]
        spikes = sum(value > _SPIKE * level for value in rest)
        calm = all(abs(mean - level) <= tolerance for mean in means[first : first + 3])
        if calm and max(rest[: 3 * size]) <= _SPIKE * level and spikes <= _STORM * len(rest):
            half = len(means[first:]) // 2
            early, end = statistics.median(means[first : first + half]), statistics.median(means[first + half :])
            if abs(early / end - 1) <= 0.10:
                return first * size
    return None
