"""The model's forward and backward, recorded as CUDA graphs."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run


class CapturedModel(Technique):
    """The model's forward and its backward are recorded as CUDA graphs and replayed with one launch each.

    ## Why it is faster
    Eager PyTorch starts every kernel from Python. On a fast GPU a small or middling model computes faster than the host
    can start its kernels, so the host is what the step waits for. A recording starts all kernels of a pass at once.
    Unlike `compiled-model` nothing is compiled: recording takes less than a second, so that short trainings gain as
    well, and every kernel is the one that the script itself would run.

    ## When it does not help
    Where the device is busy all the time, launches cost nothing. Nor does it fuse operations, as compiling does.
    A graph works on fixed places and repeats what Python decided once, so a call is recorded only after its kind has
    gone through forward and backward alike three times, for up to eight recordings a model; other shapes, evaluation,
    and calls of a model that the script has since changed, or whose code reads a global or a setting that has, run as
    they are. Never recorded are: calls that wait for the device (`.item()`, masks), print, draw random numbers on the
    host, change their inputs or weights, read tensors that are not the model's, or keep something of each call; models
    with hooks, compiled or scripted parts, sparse gradients or several devices; and what is differentiated twice.
    Inputs are copied to their places and outputs to the script's own memory. The activations of each recording stay
    allocated, so it is left out where less is free than twice the peak so far.

    ## What changes numerically
    The same kernels in the same order: up to kernels that add in no fixed order, the same bits. Under autocast a weight
    that is used twice is cast twice. Dropout goes on in the generator's stream as it would. The first two replays of
    each recording are made plainly as well, on the same state: outputs, buffers and gradients must agree within 5 %,
    which only rounding in 16 bits comes near, and the generator must end at the same place; else it ends for good.
    A second backward, or one with `create_graph`, that comes unforeseen repeats the forward plainly.

    ## Claims
    None of the lists has it. The talk that introduced torch's own function for this, `make_graphed_callables`, speaks
    of "in some cases over 2X". That function has to be written into the script, with sample inputs; it allows one shape
    and no keyword arguments, and gradients that are added up over batches come out wrong with it, since a replay writes
    over those still held (pytorch issue 181723). Here such gradients are told apart and kept. On one H200 minGPT's
    chargpt in bf16, unedited, took 20.6 ms a step, and 7.0 ms with this and a recorded update; on pytorch-cifar's
    ResNet18 it was slower than `captured-pass` (6.4 against 4.8 ms in a trial).
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda")
    aliases = ("cuda graph", "graph capture", "make_graphed_callables", "launch overhead")
    traits = frozenset({"recorded calls"})
    excludes = frozenset({"compiled"})  # which has graphs of its own
    helps_with = frozenset({"low precision", "image layout", "fused update"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        return all(root.captured for root in run.roots) if run.roots else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if run.device != "cuda":
            return CannotHelp("CUDA graphs need a GPU")
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        aside = next((root.stands_aside for root in run.roots if root.stands_aside), None)
        if aside:
            return CannotHelp(aside)
        if any(root.devices > 1 for root in run.roots):
            return CannotHelp("a model is spread over several devices")
        if any(optimizer.closure for optimizer in run.optimizers):
            return CannotHelp("an optimizer that calls the model itself (a closure) is not recorded")
        if any(optimizer.sparse for optimizer in run.optimizers):
            return CannotHelp("sparse gradients have no fixed place")
        return [Try({}, run.share("forward", "backward"))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.observe.slot import kept_with
        from hotlap.parts.captured_calls import CapturedCalls
        from hotlap.parts.replay_proof import LIMIT

        roots, captured = patch.joints.roots, weakref.WeakSet[CapturedCalls]()
        roots.quiet_updates = 1  # nothing is recorded while hooks look for roots
        proof = patch.compare("what recorded calls give, relative to plain ones", LIMIT)

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            if roots.is_looking or isinstance(proceed, functools.partial):  # somebody nearer, who compiles the call
                return proceed(root, args, kwargs)
            kept = kept_with(root)
            if patch not in kept:
                kept[patch] = CapturedCalls(proof=proof)
                captured.add(kept[patch])
            own: CapturedCalls = kept[patch]
            out = own.call(root, args, kwargs, proceed)
            if own.refused and not proof.failed and all(one.refused for one in captured):
                patch.withdraw(own.refused)
            return out

        patch.at(patch.joints.root_called, call, depth=7)  # autocast and layouts go round it
