"""Matrix products of float32 numbers in TF32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotlap.technique import CannotHelp, Family, Needs, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run

_AMPERE = (8, 0)


class Tf32Matmul(Technique):
    """Matrix products of float32 tensors run on the tensor cores of Ampere and newer chips.

    ## Why it is faster
    Tensor cores take no float32. In TF32 a float32 number keeps its range, and its mantissa is rounded to 10 bits as it
    enters the multiplication; sums stay in float32. Memory holds float32 as before, and nothing in the script changes.
    Torch uses TF32 for convolutions by default, but not for matrix products.

    ## When it does not help
    Where the products already run in 16 bits, under autocast, nothing is left to round. A convolutional network's
    convolutions have it by default. On chips before Ampere, and on the CPU, there is no such unit.

    ## What changes numerically
    Inputs of products are rounded to 10 bits of mantissa, as many as float16 has, with the range of float32: relative
    differences of about 1e-3 in a single product, which training averages out. Scripts that invert matrices or solve
    physical equations may need the full 23 bits.

    ## Claims
    No list has it, though it is one line. Measured on one H200, ResNet-50 with batches of 256 went from 244 ms a step
    in fp32 to 116 ms in TF32. That counts convolutions, for which torch allows it by default: a script gains less.
    """

    family = Family.COMPUTE
    needs = Needs(device="cuda")
    aliases = ("tf32", "allow_tf32", "set_float32_matmul_precision", "float32_matmul_precision")
    traits = frozenset({"low precision"})
    rounding = 2.0**-11

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def seen(self, run: Run) -> bool | None:
        return run.matmul_precision != "highest" if run.device == "cuda" else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        if run.device_capability < _AMPERE:
            return CannotHelp("this chip has no TF32 unit: it came with Ampere")
        if not run.roots:
            return CannotHelp("no model with trainable parameters was called")
        if all(root.autocast or root.parameter_dtypes != ("float32",) for root in run.roots):
            return CannotHelp("the model's matrix products are not in float32")
        return [Try({}, run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")  # a script that sets it later has the last word
        patch.on_undo(lambda: torch.set_float32_matmul_precision(before))
