"""cuDNN's search for the fastest convolution algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run


class CudnnBenchmark(Technique):
    """Each convolution runs with the algorithm that was fastest for its size on this very chip.

    ## Why it is faster
    cuDNN knows several algorithms for a convolution, and which is fastest depends on its sizes. By default a heuristic
    picks one; with `torch.backends.cudnn.benchmark = True` the first call with a new size tries them all and remembers
    the winner.

    ## When it does not help
    Sizes that keep changing are searched anew each time, which makes every such step slow. Networks without
    convolutions have nothing to search for, and on recent chips the heuristic is mostly right already. A script that
    asks for deterministic algorithms has made its choice.

    ## What changes numerically
    Another algorithm adds in another order: the same mathematics, other rounding, and a winner that may differ from run
    to run.

    ## Claims
    The lists give 1.27x to 1.70x, and warn of slow first steps and of sizes that change. The gain depends on chip and
    network; `hotlap tune` measures it on yours.
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda")
    aliases = ("cudnn.benchmark", "torch.backends.cudnn.benchmark", "autotune")
    suits = "CNN"
    start_up_seconds = 20.0  # a ResNet-50 in bf16 took 39 on an H200, where it also compiles kernels to choose from

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        return run.searches_kernels if run.device == "cuda" else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not any("Conv" in layer for root in run.roots for layer in root.layers):
            return CannotHelp("no model here has convolutions")
        if run.deterministic:
            return CannotHelp("the script asks for deterministic algorithms")
        return [Try({}, run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        patch.set(torch.backends.cudnn, "benchmark", True)  # a script that sets it later has the last word
