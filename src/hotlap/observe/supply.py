"""What a record says of the supply of batches, where nobody looked into the processes that make them."""

from __future__ import annotations

from hotlap.observe.run import SHARES, Run

_CALM = 0.05  # of a spell's time spent waiting, at most
_ENOUGH_SPELLS, _ENOUGH_STEPS = 4, 20


def crowding(run: Run) -> float:
    """The part of the time that threads of the training stood runnable without a core: fewer workers could give it
    back, and more cannot help."""
    return min(1.0, run.queue_seconds / max(run.wall_seconds * run.threads, 1e-9))


def rates_vary(run: Run, capacity: int) -> bool:
    """Whether a deeper queue may help; `capacity` is what the queues hold now, 0 without workers. With workers: there
    are calm spells, each as long as the queue, so that they keep up on average. Without: some batches take far longer
    to make than the usual one."""
    waits = [parts[SHARES.index("wait")] for parts in run.step_parts]
    starts = set(run.epoch_starts)  # what an epoch costs at its start is another matter
    if not capacity:
        usual = sorted(wait for number, wait in enumerate(waits) if number not in starts)
        return len(usual) >= _ENOUGH_STEPS and usual[len(usual) * 9 // 10] > 2 * usual[len(usual) // 2]
    spells = [range(first, first + capacity) for first in range(0, len(waits) - capacity + 1, capacity)]
    spells = [spell for spell in spells if starts.isdisjoint(spell)]
    calm = [spell for spell in spells if _sum(waits, spell) <= _CALM * sum(sum(run.step_parts[i]) for i in spell)]
    return len(spells) >= _ENOUGH_SPELLS and 2 * len(calm) >= len(spells)


def _sum(values: list[float], where: range) -> float:
    return sum(values[number] for number in where)
