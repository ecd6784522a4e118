"""Batches in shared memory that is used again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

_HOLDING_UP = 1e-3  # seconds a step: while it receives a batch, a pinning thread keeps the training one from Python
_MOST_OF_THAT = 0.25


class RecycledBatches(Technique):
    """Workers hand over their batches in blocks of shared memory that come back to them and are used again.

    ## Why it is faster
    For every tensor of every batch torch makes a file in shared memory, fills it page by page, and sends word of it.
    The receiver asks a thread of the worker for the file's descriptor, which waits until that worker's Python has time
    for it, maps the file and touches every page once more; at the end all of it is thrown away. Here a worker keeps a
    few blocks. It copies a batch into a free one and sends its number; the training process reads it in place, and the
    block is free as soon as nobody there holds the batch, or a view of it. What has up to 16 KiB, such as labels,
    travels in the message.

    ## When it does not help
    Where batches are made in the training process, or come faster than they are needed and a step has time to spare.
    Where the script keeps its batches, each worker has eight blocks of a size; from then on, and for everything that is
    more than a plain tensor of its own memory (views, subclasses, tensors that are shared on purpose, sparse ones),
    torch's way is taken. So it is where less than half of /dev/shm is free: blocks stay as long as their worker lives.
    A block that somebody held while the script forked a process is never used again.

    ## What changes numerically
    Nothing: the same bytes arrive, in the same order.

    ## Claims
    None of the lists has it. By `bench/handing_over.py`, on two cores of a virtual machine, medians of five turns: a
    batch of 64 x 128 numbers takes the training thread 0.64 ms as torch sends it and 0.16 ms like this, 128 images of
    32 x 32 take 0.91 and 0.20 ms, 64 of 224 x 224 take 6.2 and 0.6 ms; and two workers that have nothing else to do
    make 2.6 to 3.7 times as many of them. How much of that a training gains depends on whether it waits for its
    batches.
    """

    family = Family.WAIT
    aliases = ("shared memory", "shm", "file descriptors", "received 0 items of ancdata", "sharing strategy")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        training = [loader for loader in run.loaders if loader.trains]
        if not training:
            return CannotHelp("no training loader was seen")
        if not any(loader.num_workers for loader in training):
            return [Try({}, 0.0)]  # until others give it some
        steps = sorted(run.step_seconds)
        usual = steps[len(steps) // 2] if steps else 0.0
        held_up = min(_MOST_OF_THAT, _HOLDING_UP / usual) if usual else 0.0
        return [Try({}, min(1.0, run.share("wait") + held_up))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from torch.utils.data._utils import worker

        from hotlap.parts.recycled_batches import worker_loop

        patch.set(worker, "_worker_loop", worker_loop)
