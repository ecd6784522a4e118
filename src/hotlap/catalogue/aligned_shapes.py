"""Sizes that matrix units take in whole pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.technique import CannotHelp, Family, Numbers, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import RootFacts, Run

SMALLEST = 1000  # outputs: padding fewer costs as much as it brings
_PIECE = 8
_NAMED = 3
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class AlignedShapes(Technique):
    """Matrix products whose sizes are multiples of 8, so that the chip's matrix units run at their full rate.

    ## Why it is faster
    Matrix units load 16 bytes at once, which is 8 numbers of 16 bits, and work in tiles. Rows of any other length begin
    between two such pieces: the library then takes a kernel with narrower loads, several times slower. Rounding a size
    up to the next multiple costs next to nothing. Larger multiples, such as 64, also fill the tiles.

    From outside, one case can be mended without changing the model: the last linear layer over a vocabulary or many
    classes. In a run it multiplies with a weight that is padded with zeros, and the additional outputs are cut off
    before anyone sees them. Weight, checkpoint and generation stay as they are; a weight tied to an embedding may be.

    ## When it does not help
    On a processor, and in fp32 without TF32. Only linear layers of at least 1000 outputs are padded: in smaller ones,
    and where the input is narrow, padding the weight and cutting the outputs costs as much as it brings. Inner sizes
    (channels, hidden sizes, batch) are only reported: they are the script's to choose, and another number is another
    model. A layer with hooks is called as it is, and so is one inside a compiled model. The padded copy of the weight
    takes memory until backward is over.

    ## What changes numerically
    Nothing but rounding: each output is the same sum, by another kernel.

    ## Claims
    The lists give vocabulary 33708 to 33712 and batch 4084 or 4095 to 4088 or 4096 as 1.3x to 4x, forward and gradient.
    Measured on one H200, the forward product of that vocabulary went from 1.08 to 0.39 ms, which is for sizes chosen so
    in the script. Padding from outside also pays for its copies: whether it gains is for the trial to say.
    """

    family = Family.COMPUTE
    aliases = ("multiple of 8", "padding", "vocabulary", "tensor cores", "multiple of 64")
    default = {"multiple": 64}  # noqa: RUF012  # a constant of the contract, never changed
    values: ClassVar[Values] = {"multiple": Numbers(1, 1024)}

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        odd = _reported(run)
        if not odd:
            return CannotHelp(f"the sizes of all layers, from 16 on, are multiples of {_PIECE}, or there are none")
        roots = [root for root in run.roots if _has_head(root)]
        if run.device != "cuda" or not roots:
            where = "" if run.device == "cuda" else ", which matters on a GPU"
            return CannotHelp(f"not multiples of {_PIECE}{where}: {odd}; choose them in the script")
        aside = next((root.stands_aside for root in roots if root.stands_aside), None)
        most = run.computing
        return CannotHelp(aside) if aside else [Try({"multiple": multiple}, most) for multiple in (64, _PIECE)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from torch import nn

        from hotlap.observe.slot import fill_slot

        multiple = int(setting["multiple"])

        def found(root: Any) -> None:
            if patch.joints.roots.stands_aside(root):
                return
            for layer in root.modules():
                is_head = type(layer) is nn.Linear and layer.out_features >= SMALLEST and layer.out_features % _PIECE
                if is_head and layer is not root and vars(layer).get("_compiled_call_impl") is None:
                    fill_slot(patch, layer, call)

        def call(proceed: Any, layer: Any, args: Any, kwargs: Any) -> Any:
            if kwargs or len(args) != 1 or any(getattr(layer, name) for name in _HOOKS):
                return proceed(layer, args, kwargs)
            return padded(layer, args[0], -layer.out_features % multiple)

        patch.at(patch.joints.root_found, found)


def padded(layer: Any, x: Any, rows: int) -> Any:
    """What a linear layer gives, by a product with so many outputs more."""
    import torch.nn.functional as F

    weight = F.pad(layer.weight, (0, 0, 0, rows))
    bias = None if layer.bias is None else F.pad(layer.bias, (0, rows))
    return F.linear(x, weight, bias)[..., : layer.out_features].contiguous()  # scripts may count on its strides


def _has_head(root: RootFacts) -> bool:
    return any(one.kind == "Linear" and one.side == "out" and one.size >= SMALLEST for one in root.odd_sizes)


def _reported(run: Run) -> str:
    sizes = [(f"{one.layer or root.kind} {one.side}", one.size) for root in run.roots for one in root.odd_sizes]
    batches = {one.batch_size for one in run.loaders if one.trains and one.batch_size and one.batch_size > 2 * _PIECE}
    sizes += [("batch", size) for size in sorted(batches) if size % _PIECE]
    words = [f"{name} {size} ({size + -size % _PIECE} is)" for name, size in sizes]
    more = f" and {len(words) - _NAMED} more" if len(words) > _NAMED else ""
    return ", ".join(words[:_NAMED]) + more
