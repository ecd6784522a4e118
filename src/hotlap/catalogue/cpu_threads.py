"""As many threads as the arithmetic of a run on the CPU is worth."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from hotlap.technique import CannotHelp, Family, Needs, Numbers, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

_SMALL = 1_000_000  # parameters: in larger models a single thread is left far behind
_MANY = 4  # cores, from which on half of them may be as good: two often share one set of arithmetic units


class CpuThreads(Technique):
    """A training on the CPU computes with as many threads as its operations are large enough for, and cores are free.

    ## Why it is faster
    torch splits each large operation over as many threads as it finds cores, and waits for the last of them. In small
    operations waking and joining threads takes longer than the arithmetic. Loader workers want cores as well: a thread
    that stands without one holds up all the others. And a machine with two hardware threads a core has half as many
    arithmetic units as cores.

    ## When it does not help
    On a GPU, where the threads have next to nothing to do. Where operations are large and the cores idle, all of them
    are right, which is what torch starts with. A script that sets the number itself is left alone. Threads between
    operations (`set_num_interop_threads`) are not touched: training hardly uses them.

    ## What changes numerically
    Sums are split at other places, so they are rounded otherwise: the same mathematics.

    ## Claims
    No list of tips has it. What is right depends on the sizes of the operations and on the company, so it is measured.
    """

    family = Family.COMPUTE
    needs = Needs(device="cpu")
    aliases = ("set_num_threads", "OMP_NUM_THREADS", "intra-op threads", "oversubscription")
    default: ClassVar[Setting] = {"threads": 0}  # 0: as many as there are cores
    values: ClassVar[Values] = {"threads": Numbers(0, 1024)}  # more than any machine has: far more crash

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        workers = max((loader.num_workers for loader in run.loaders if loader.trains), default=0)
        wanted = [1] if sum(root.elements for root in run.roots) < _SMALL else []
        wanted += [run.cores - workers] if workers else []
        wanted += [run.cores // 2] if run.cores >= _MANY else []
        wanted += [run.cores]
        numbers = [one for one in dict.fromkeys(wanted) if 1 <= one != run.threads]
        if not numbers:
            return CannotHelp(f"{run.threads} threads on {run.cores} cores: no other number is worth a trial")
        most = run.share("forward", "backward", "update")
        # twice the threads save half at most; with fewer it is the crowding that goes, and nobody knows how much it is
        return [Try({"threads": one}, most * (1 - run.threads / one if one > run.threads else 1)) for one in numbers]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        from hotlap.observe.whose import is_users

        original, before = torch.set_num_threads, torch.get_num_threads()

        def set_num_threads(count: int) -> None:
            if is_users(sys._getframe(1).f_code.co_filename):  # not one of torch's own helpers
                patch.withdraw("the script sets the number of threads itself")
            original(count)

        patch.on_undo(lambda: original(before))
        patch.set(torch, "set_num_threads", set_num_threads)
        original(int(setting["threads"]) or _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
