"""The model compiled by torch.compile."""

from __future__ import annotations

import functools
import shutil
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

PLAIN, GRAPHS, LONGEST = "default", "reduce-overhead", "max-autotune"
WHOLE, BLOCK = "model", "block"
MOST_PIECES = 16  # more, and there is hardly anything left to fuse in one
_LARGER = 0.5  # part of the step that forward and backward must be for the longest search
_VARIANTS = 8  # of one graph, for other shapes and settings: as many as dynamo makes before it gives up, in silence
_PATIENCE = 16  # updates, in which something must have been compiled
_BLOCK_SECONDS, _LONGEST_SECONDS = 15.0, 180.0  # to get going
_HANGING = ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook", "backward_hook")


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
    scripts that ask for gradients of gradients, such as gradient penalties, or that compile by themselves. A float64
    model is compiled like any other.

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
        most = run.share("forward", "backward")
        found = [(PLAIN, WHOLE)]
        if run.device == "cuda":
            found.insert(0, (GRAPHS, WHOLE))
        elif not any(map(shutil.which, ("c++", "g++", "clang++"))):
            return CannotHelp("compiling for the CPU needs a C++ compiler: install g++ or clang")
        if any(root.blocks and not root.devices for root in run.roots):
            found.append((PLAIN, BLOCK))
        if run.device == "cuda" and most > _LARGER:
            found.append((LONGEST, WHOLE))
        return [Try({"mode": mode, "part": part}, most) for mode, part in found]

    def brings(self, setting: Setting) -> frozenset[str]:
        return self.traits | ({"graphs of its own"} if setting.get("mode", PLAIN) != PLAIN else set())

    def starts_after(self, setting: Setting) -> float:
        if setting.get("part") == BLOCK:
            return _BLOCK_SECONDS
        return _LONGEST_SECONDS if setting["mode"] == LONGEST else self.start_up_seconds

    def apply(self, patch: Patch, setting: Setting) -> None:
        from torch import nn

        from hotlap.observe.slot import fill_slot
        from hotlap.parts.repeated_blocks import repeated_blocks

        joints, mode = patch.joints, str(setting["mode"])
        joints.roots.quiet_updates = 1  # hooks that look for roots would be traced: they go first, and soon
        whole: weakref.WeakKeyDictionary[Any, _Compiled] = weakref.WeakKeyDictionary()
        updates = _Updates()

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            own = whole.get(root)
            if own is None:
                own = whole[root] = _Compiled(patch, mode, root, updates)
            return own(proceed, root, args, kwargs)

        def found(root: Any) -> None:
            is_spread = isinstance(root, nn.DataParallel) and len(root.device_ids) > 1  # its replicas copy slots
            if joints.roots.stands_aside(root) or is_spread:
                return
            for alike in repeated_blocks(root):
                shared = _Compiled(patch, mode, root, updates)
                for block in alike:
                    fill_slot(patch, block, shared)

        if setting.get("part") == BLOCK:
            patch.at(joints.root_found, found)
        else:
            patch.at(joints.root_called, call, depth=8)  # nearest to the module: autocast and layouts go round it
        if mode != PLAIN:
            from hotlap.parts.compiled_call import gradients

            patch.at(joints.weights_updated, lambda optimizer: gradients.keep_early())
        patch.at(joints.compile_called, lambda: patch.withdraw("the script compiles by itself"))
        patch.at(joints.weights_updated, updates.count)
        _watch_success(patch, updates)
        _watch_hooks(patch)
        _watch_gradients(patch)


class _Updates:
    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> int:
        return self.number

    def count(self, optimizer: Any) -> None:
        self.number += 1


class _Compiled:
    """The calls of a root, or of blocks in it that are built alike: as they are at first, then compiled."""

    def __init__(self, patch: Patch, mode: str, root: Any, updates: _Updates) -> None:
        self._patch, self._mode, self._root, self._updates = patch, mode, weakref.ref(root), updates
        self._call: Any = None

    def __call__(self, proceed: Any, module: Any, args: Any, kwargs: Any) -> Any:
        import torch

        from hotlap.parts.compilable import is_interpreted
        from hotlap.parts.compiled_call import CompiledCall, is_compilers
        from hotlap.parts.interruptions import pass_on

        roots, root = self._patch.joints.roots, self._root()
        is_other = not module.training or not torch.is_grad_enabled() or root not in roots.found
        if is_other or roots.is_looking or is_interpreted():
            return proceed(module, args, kwargs)
        if self._call is None:
            from hotlap.parts.compilable import why_not_compiled

            why = why_not_compiled(root)
            if why:
                self._patch.withdraw(why)
                return proceed(module, args, kwargs)
            self._call = CompiledCall(self._mode, self._updates)
        try:
            out = self._call(module, args, kwargs)
        except Exception as error:
            pass_on(error)
            if self._call.has_run or not is_compilers(error):
                raise
            self._patch.withdraw(f"{type(error).__name__}: {error}".split("\n")[0])
            return proceed(module, args, kwargs)
        if self._call.has_run:
            roots.found[root].has_graphs = self._call.graphs > 0
            self._judge()
        return out

    def _judge(self) -> None:
        """What compiled to nothing, or to pieces, must not pass for compiled."""
        graphs, pieces = self._call.graphs, self._call.pieces
        if not graphs:
            self._patch.withdraw("torch.compile made no graph of it")
        elif pieces > MOST_PIECES:
            self._patch.withdraw(f"Python breaks it into {pieces} graphs, more than {MOST_PIECES}")
        elif pieces == 1 and graphs >= _VARIANTS:
            self._patch.withdraw(f"it is compiled again and again, into {graphs} graphs by now")


def _watch_success(patch: Patch, updates: _Updates) -> None:
    """What finds nothing to compile, such as blocks in a network that has none, says so."""

    def backward(proceed: Any, *args: Any, **kwargs: Any) -> Any:
        if any(seen.has_graphs for seen in patch.joints.roots.found.values()):
            leave()
        elif updates() == _PATIENCE:
            patch.withdraw(f"there was nothing to compile in the first {_PATIENCE} updates")  # not amid torch's hooks
        return proceed(*args, **kwargs)

    leave = patch.at(patch.joints.loss_known, backward, depth=-1)


def _watch_hooks(patch: Patch) -> None:
    """A hook that is hung on a part of a compiled model later would never be called."""
    from torch import nn

    def hanging(original: Any) -> Any:
        @functools.wraps(original)
        def register(module: Any, *args: Any, **kwargs: Any) -> Any:
            roots = [root for root, seen in patch.joints.roots.found.items() if seen.has_graphs]
            if any(part is module for root in roots for part in root.modules()):
                patch.withdraw(f"the script hung a hook on a part of it ({type(module).__name__})")
            return original(module, *args, **kwargs)

        return register

    for name in _HANGING:
        patch.set(nn.Module, f"register_{name}", hanging(getattr(nn.Module, f"register_{name}")))


def _watch_gradients(patch: Patch) -> None:
    """Compiled code has no gradients of gradients; the first steps, which are not compiled yet, show whether the script
    asks for any."""

    def asking(proceed: Any, *args: Any, place: int, **kwargs: Any) -> Any:
        if kwargs.get("create_graph") or (len(args) > place and args[place]):
            patch.withdraw("the script asks for gradients of gradients, which compiled code does not have")
        return proceed(*args, **kwargs)

    patch.at(patch.joints.gradients_asked, functools.partial(asking, place=4), depth=-1)
    # a pass that is replayed was looked at before
    patch.at(patch.joints.loss_known, functools.partial(asking, place=3), depth=-1, sees_replays=False)
