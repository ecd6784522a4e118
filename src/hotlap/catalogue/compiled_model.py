"""The model compiled by torch.compile."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

PLAIN, GRAPHS, LONGEST = "default", "reduce-overhead", "max-autotune"
WHOLE, BLOCK = "model", "block"
_LARGER = 0.5  # part of the step that forward and backward must be, as the host sees them, for the longest search
_BLOCK_SECONDS, _LONGEST_SECONDS = 15.0, 180.0  # to get going


class CompiledModel(Technique):
    """The model's forward and backward run as a few fused kernels, on a GPU replayed with a single launch.

    ## Why it is faster
    Eager PyTorch starts one kernel for every operation, and each reads its input from memory and writes its output
    back. `torch.compile` fuses chains of element-wise operations into single kernels, so that intermediate results
    never leave the chip. In the mode `reduce-overhead` it also records all kernels of forward and backward into CUDA
    graphs: the host starts a whole pass with one call. On a fast GPU with a small model the host's launches are the
    step, and this is where the large factors come from; plain fusion does not remove them, but `captured-pass` does
    where it finds a place, and takes loss and all of backward into its one graph. `max-autotune` also tries
    several kernels for each matrix product, which takes minutes; `tune` tries it last, where another mode gained.

    Four things the compiler does slowly with images in channels_last and 16 bits are said otherwise in its graphs on
    an NVIDIA GPU: a first convolution that strides over a few channels becomes one over blocks of pixels, which matrix
    units can read; batch norm takes plain sums, of deviations from one pixel and of their squares, and with relu after
    it, and what is added before that, it is made and gone back through by kernels that read each pixel once;
    convolutions of single pixels, where memory is their limit, tell the norm after them those sums, and what they give
    back to such an addition is added up there without being written; overlapping windows of a max pooling give their
    gradients back in one kernel. Where a network begins with convolution, norm, relu and windows they are one: on the
    way there nothing is written between convolution and windows.

    A network made of blocks that are built alike can be compiled block by block (`part=block`): each kind of block
    once, and used for all of them. It starts sooner, and gives up what could be fused across blocks.

    ## When it does not help
    Compiling takes seconds to minutes, again in every run: a short training never earns that back. Large matrix
    products and convolutions are already as fast as they get. A shape that comes up now and then, such as a smaller
    last batch, runs as it is; where shapes change all the time, plain compiling makes one variant for all of them, and
    graphs only help with the usual one. Code that Python must decide in between breaks the graph into pieces, each with
    its own overhead: reports count them and name the first line; beyond 16 pieces the technique is withdrawn, and so
    it is where no graph came out at all. On one public CIFAR network the compiled step was slower than the plain one.

    Not compiled: models with hooks of the script's, which a compiled call may skip (also where they are hung later),
    with scripted or quantised parts, complex weights or sparse gradients; optimizers that call the model themselves;
    scripts that ask for gradients of gradients, such as gradient penalties, that keep graphs to go back through them
    again (`retain_graph`), or that compile by themselves. A float64 model is compiled like any other.

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
    aliases = ("torch.compile", "compile", "jit", "inductor", "cuda graphs", "reduce-overhead", "max-autotune")
    traits = frozenset({"compiled"})
    helps_with = frozenset({"low precision", "image layout"})
    start_up_seconds = 40.0
    default: ClassVar[Setting] = {"mode": PLAIN, "part": WHOLE}
    values: ClassVar[Values] = {"mode": (PLAIN, GRAPHS, LONGEST), "part": (WHOLE, BLOCK)}

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        if run.script_compiles:
            return True
        return all(root.compiled for root in run.roots) if run.roots else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        refused = next((why for root in run.roots if (why := root.stands_aside or root.not_compiled)), None)
        if refused:
            return CannotHelp(refused)
        if any(optimizer.closure for optimizer in run.optimizers):
            return CannotHelp("an optimizer that calls the model itself (a closure) is not compiled")
        if any(optimizer.sparse for optimizer in run.optimizers):
            return CannotHelp("sparse gradients are not made by compiled code")
        most = run.computing
        found = [(PLAIN, WHOLE)]
        if run.device == "cuda":
            found.insert(0, (GRAPHS, WHOLE))
        elif not any(map(shutil.which, ("c++", "g++", "clang++"))):
            return CannotHelp("compiling for the CPU needs a C++ compiler: install g++ or clang")
        if any(root.blocks and not root.devices for root in run.roots):
            found.append((PLAIN, BLOCK))
        if run.device == "cuda" and run.share("forward", "backward") > _LARGER:
            found.append((LONGEST, WHOLE))
        return [Try({"mode": mode, "part": part}, most) for mode, part in found]

    def brings(self, setting: Setting) -> frozenset[str]:
        return self.traits | ({"graphs of its own"} if setting.get("mode", PLAIN) != PLAIN else set())

    def starts_after(self, setting: Setting) -> float:
        if setting.get("part") == BLOCK:
            return _BLOCK_SECONDS
        return _LONGEST_SECONDS if setting["mode"] == LONGEST else self.start_up_seconds

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        from hotlap.observe.compiled_calls import compile_blocks, compile_roots

        patch.item(patch.joints.compilers, self.id, patch)
        if torch.version.cuda is not None:
            from hotlap.parts.images_in_graphs import lean_images

            patch.item(patch.joints.graph_changes, self.id, lean_images)
        (compile_blocks if setting.get("part") == BLOCK else compile_roots)(patch, str(setting["mode"]))
