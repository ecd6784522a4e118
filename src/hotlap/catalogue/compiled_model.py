"""The model compiled by torch.compile."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run


class CompiledModel(Technique):
    """The model's forward and backward run as a few fused kernels, on a GPU replayed with a single launch.

    ## Why it is faster
    Eager PyTorch starts one kernel for every operation, and each reads its input from memory and writes its output
    back. `torch.compile` fuses chains of element-wise operations into single kernels, so that intermediate results
    never leave the chip. In the mode `reduce-overhead` it also records all kernels of forward and backward into CUDA
    graphs: the host starts a whole pass with one call. On a fast GPU with a small model the host's launches are the
    step, and this is where the large factors come from; plain fusion does not remove them.

    ## When it does not help
    Compiling takes seconds to minutes, again in every run: a short training never earns that back. Large matrix
    products and convolutions are already as fast as they get. Shapes that change from step to step are compiled again
    and again; with graphs only the first shape is recorded and the others run as they are. Double backward (gradient
    penalties) is not supported. Code that Python must decide in between breaks the graph into pieces, each with its own
    overhead. On one public CIFAR network the compiled step was slower than the plain one.

    ## What changes numerically
    Fused kernels keep intermediate results at higher precision and add in another order: the same mathematics, other
    rounding. Dropout draws other numbers of the same distribution. Only calls in training mode with gradients are
    compiled; evaluation, `state_dict`, pickles and hooks stay as they are. Outputs of graphs are copied, so that what
    the script keeps across steps is its own.

    ## Claims
    The lists speak of `torch.jit` fusion and of 4x for one gelu; `torch.jit.script` is deprecated, and compiling took
    its place. "43 % faster over 163 models" is the figure of torch 2.0's announcement, a mean. Measured on one H200 by
    hand: a gelu alone 5.3x; minGPT's chargpt from 20.5 to 16 ms a step by plain compiling and to 4.5 ms with graphs; a
    small CIFAR network slower. `hotlap tune` proved 24.8 -> 8.7 ms on chargpt, unedited, with graphs.
    """

    family = Family.COMPUTE
    aliases = ("torch.compile", "compile", "jit", "inductor", "cuda graphs", "reduce-overhead")
    traits = frozenset({"compiled"})
    helps_with = frozenset({"low precision", "image layout"})
    start_up_seconds = 40.0
    default: ClassVar[Setting] = {"mode": "default"}

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        if run.script_compiles:
            return True
        return all(root.compiled for root in run.roots) if run.roots else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        aside = next((root.stands_aside for root in run.roots if root.stands_aside), None)
        if aside:
            return CannotHelp(aside)
        if any(optimizer.closure for optimizer in run.optimizers):
            return CannotHelp("an optimizer that calls the model itself (a closure) is not compiled")
        if run.device == "cuda":
            modes = ["reduce-overhead", "default"]
        elif any(map(shutil.which, ("c++", "g++", "clang++"))):
            modes = ["default"]
        else:
            return CannotHelp("compiling for the CPU needs a C++ compiler: install g++ or clang")
        most = run.share("forward", "backward")
        return [Try({"mode": mode}, most) for mode in modes]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        from hotlap.parts.compiled_call import CompiledCall, is_compilers

        roots, compiled = patch.joints.roots, weakref.WeakKeyDictionary[Any, CompiledCall]()
        roots.quiet_updates = 1  # hooks that look for roots would be traced: they go first, and soon

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            if roots.is_looking or not root.training or not torch.is_grad_enabled():
                return proceed(root, args, kwargs)
            own = compiled.get(root)
            if own is None:
                own = compiled[root] = CompiledCall(str(setting["mode"]))
            try:
                out = own(root, args, kwargs)
            except Exception as error:
                if own.has_run or not is_compilers(error):
                    raise
                patch.withdraw(f"{type(error).__name__}: {error}".split("\n")[0])
                return proceed(root, args, kwargs)
            roots.found[root].has_graphs = True
            return out

        patch.at(patch.joints.root_called, call, depth=8)  # nearest to the module: autocast and layouts go round it
