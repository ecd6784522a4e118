"""Batch norm folded away for inference."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotlap.source.models import builds, model_spellings, run_by
from hotlap.technique import CannotHelp, Family, Parity, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

LAYERS = ("torch.nn.Conv1d", "torch.nn.Conv2d", "torch.nn.Conv3d")
NORMS = ("torch.nn.BatchNorm1d", "torch.nn.BatchNorm2d", "torch.nn.BatchNorm3d")
# It is done already, or by a compiler; or gradients are wanted after all.
DONE = ("folded", "fuse_conv_bn_eval", "fuse_modules", "fuse", "optimize_for_inference", "compile", "script", "trace")
TRAINS = ("backward", "grad", "optim", "requires_grad_")


class FoldedNorm(Technique):
    """A network that only evaluates does not normalise: its batch norms are part of the layers before them.

    ## Why it is faster
    In evaluation a batch norm multiplies and adds fixed numbers, channel by channel. The convolution or linear layer
    before it can do that by itself: its weights are multiplied once, and a pass over every feature map is saved, with
    a kernel launch for each norm.

    ## When it does not help
    In training, where batch norm looks at each batch. So it gains nothing in the steps that `tune` measures, and is
    advice: `with torch.no_grad(), folded(model):` from `hotlap.parts.folded_norm` round an evaluation or an inference
    loop. It is not done unasked, since weights may change without a trace between two passes (`p.data.copy_(...)`), and
    folding them before every call would cost what it saves. `torch.compile` fuses a norm with its neighbours anyway.
    Where something else reads what the layer gives, or the norm has hooks, the pair is left alone.

    ## What changes numerically
    The same mathematics, other rounding. `folded` makes the first batch both ways and unfolds where they differ.
    Weights, statistics and checkpoints are as they were afterwards.

    ## Claims
    The lists recommend it for inference, without a figure. torch has `fuse_conv_bn_eval` for one pair; which layers are
    pairs it leaves to the caller.
    """

    family = Family.COMPUTE
    aliases = ("fuse_conv_bn", "fuse_conv_bn_eval", "batchnorm folding", "fused batch norm")
    suits = "CNN"

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        if source.mentions(*DONE, *TRAINS):
            return
        models = model_spellings(source)
        for loop in source.evaluation_loops():
            calls = [one for one in ast.walk(loop) if isinstance(one, ast.Call) and run_by(one, models)]
            if any(_is_foldable(source, call) for call in calls):
                yield source.site(loop, "batch norms run in every pass here; hotlap.parts.folded_norm folds them away")

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        norms = sum(count for root in run.roots for kind, count in root.layers.items() if f"torch.nn.{kind}" in NORMS)
        if not norms:
            return CannotHelp("no model that trains here has batch norms")
        spent = f"{run.evaluation_seconds:.3g} s of {run.wall_seconds:.3g}"
        part = f"evaluation took {spent}" if run.evaluation_passes else "no evaluation was seen"
        return CannotHelp(f"{norms} batch norms could be folded in evaluation only, and {part}: see hotlap.parts")


def _is_foldable(source: Source, call: ast.Call) -> bool:
    """Whether what is called was surely built here, of both kinds of layer."""
    values = [one.value for one in source.bindings(call.func) if one.value] if isinstance(call.func, ast.Name) else []
    return any(builds(source, value, *LAYERS) and builds(source, value, *NORMS) for value in values)
