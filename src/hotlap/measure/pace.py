"""The pace of a trial: seconds a step after warm-up, with what each epoch costs at its start spread over its steps."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from hotlap.measure.stats import evened, level
from hotlap.measure.warmup import recompiles, warmup_steps
from hotlap.observe.run import SHARES, Run

SHORT_EPOCH = 32  # steps: in blocks of eight its beginning and its end would be most of it


@dataclass(frozen=True)
class Pace:
    level: float
    warmup_steps: int
    settled: bool


def pace(run: Run) -> Pace:
    """Workers that are started anew, and loops that wait for their first batch, cost time once an epoch. No median of
    steps would show that, but the user waits for it: it is measured apart and added in."""
    starts = set(run.epoch_starts)
    inner = [number for number in range(len(run.step_seconds)) if number not in starts]
    seconds = [run.step_seconds[number] for number in inner]
    if len(seconds) < 3:
        return Pace(statistics.fmean(run.step_seconds), 0, False)
    whole = _busy(run)
    busy = [whole[number] for number in inner]
    warm = warmup_steps(seconds, busy)
    if warm is None and run.device != "cpu" and not recompiles(run):
        warm = warmup_steps(evened(seconds), evened(busy))  # the host may run ahead, and pay for many steps at one
    left_out = warm if warm is not None else len(seconds) // 3
    first = inner[left_out]
    epochs = _short_epochs(run, first)
    if len(epochs) > 1:
        return Pace(statistics.median(epochs), first, warm is not None)
    ordinary = level(seconds[left_out:])
    late = [number for number in run.epoch_starts if number >= first] or run.epoch_starts[1:]
    if not late:
        return Pace(ordinary, first, warm is not None)
    gaps = [b - a for a, b in zip(run.epoch_starts, run.epoch_starts[1:], strict=False)]
    extra = statistics.median(max(0.0, run.step_seconds[number] - ordinary) for number in late)
    return Pace(ordinary + extra / statistics.median(gaps or [len(run.step_seconds)]), first, warm is not None)


def _short_epochs(run: Run, first: int) -> list[float]:
    """Seconds a step of each whole epoch, where they are short: workers that ran ahead make its last steps fast, and
    its first ones wait for them. Not of the first, in which caches fill, nor of warm-up if enough is left."""
    whole = list(zip(run.epoch_starts[1:], run.epoch_starts[2:], strict=False))
    if any(end - start > SHORT_EPOCH for start, end in whole):
        return []
    settled = [(start, end) for start, end in whole if start >= first]
    return [statistics.fmean(run.step_seconds[start:end]) for start, end in (settled if len(settled) > 2 else whole)]


def _busy(run: Run) -> list[float]:
    """Every step without what it waited for data and device, where that is known."""
    waits = [SHARES.index("wait"), SHARES.index("sync")]
    if len(run.step_parts) != len(run.step_seconds):
        return run.step_seconds
    return [
        seconds - sum(parts[i] for i in waits) for seconds, parts in zip(run.step_seconds, run.step_parts, strict=True)
    ]
