"""Matrix products of linear layers in 8 bits."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

_KNOWN = ("EightBitLinear", "Float8Linear")  # ours, and torchao's


class Fp8Linear(Technique):
    """The products of large linear layers run in 8 bits, at twice the rate of 16 on a chip that has them.

    ## Why it is faster
    From Ada and Hopper on, matrix units multiply 8-bit floating-point numbers twice as fast as 16-bit ones, and each
    operand takes half the bytes. In training mode every large linear layer scales its input and its weight by their
    largest value, multiplies in 8 bits and gives back the precision it was called in; backward does the same with the
    gradient. It needs nothing but torch; torchao offers the same with more recipes.

    ## When it does not help
    On chips before Ada, on a processor, in convolutions and in attention itself. Finding the largest value and casting
    are passes over memory: without a compiler that fuses them, and for layers narrower than some thousands, they cost
    what the product saves. Only layers whose sizes are multiples of 16, at least 2048 each, are taken; the first and
    the last layer of the network, shared weights, and batches whose rows are no multiple of 16 are left as they are.
    Gradients of gradients, as in gradient penalties, end with torch's error: it is not for such scripts. It is a
    partner of `compiled-model`, which sees these products and fuses the scaling.

    ## What changes numerically
    e4m3 keeps 4 significant bits, e5m2 for gradients 3: single numbers are off by up to 6 % and 12 %, sums over
    thousands by far less. Whether a training bears that is not known beforehand: it is kept only where the forced steps
    of the parity test stay within the limits of any equivalent technique. In a plain network of three layers on one
    H200 they did not: the gradient's cosine was 0.9935, and 0.995 is asked for. Weights, optimizer, checkpoints, copies
    and evaluation are untouched.

    ## Claims
    The lists only say that AMP may get it. NVIDIA gives twice the rate of bf16 for the product alone; what is left of
    it in a step is for the trial to say.
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda", torch="2.6")
    aliases = ("fp8", "float8", "torchao", "transformer engine", "e4m3")
    suits = "transformer"
    traits = frozenset({"8-bit products"})
    rounding = 2.0**-4
    helps_with = frozenset({"compiled", "low precision"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        return any(name in root.layers for root in run.roots for name in _KNOWN) if run.roots else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        aside = next((root.stands_aside for root in run.roots if root.stands_aside), None)
        if aside:
            return CannotHelp(aside)
        from hotlap.parts.eight_bit_products import CAPABILITY, WIDE

        if run.device != "cuda" or run.device_capability < CAPABILITY:
            have = ".".join(map(str, run.device_capability)) or "none, it is a processor"
            return CannotHelp(f"8-bit products need a chip like Ada, Hopper or newer (capability 8.9; here {have})")
        if not any(root.wide_linears for root in run.roots):
            return CannotHelp(f"no linear layer between the first and the last has {WIDE} inputs and outputs or more")
        return [Try({}, run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.parts.eight_bit_products import convert, restore, suitable

        converted: weakref.WeakSet[Any] = weakref.WeakSet()

        def found(root: Any) -> None:
            if patch.joints.roots.stands_aside(root) or not _bears(root):
                return
            for layer in suitable(root):
                convert(layer)
                converted.add(layer)

        def backward(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            if not converted and not patch.joints.roots.is_looking:
                patch.withdraw("no linear layer here is large enough, on a chip that has 8-bit products")
            return proceed(*args, **kwargs)

        def undo() -> None:
            for layer in converted:
                restore(layer)

        patch.on_undo(undo)
        patch.at(patch.joints.root_found, found)
        patch.at(patch.joints.loss_known, backward, depth=-1)  # it only looks on


def _bears(root: Any) -> bool:
    import torch

    from hotlap.parts.eight_bit_products import CAPABILITY

    device = next(root.parameters()).device
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= CAPABILITY
