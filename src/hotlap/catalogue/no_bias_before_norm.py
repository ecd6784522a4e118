"""No bias where batch norm takes it away again."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import same
from hotlap.source.calls import Call
from hotlap.source.edits import Edit, insert_argument, replace_node
from hotlap.source.layers import fed_layers, is_switched_on
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

# Where each layer takes its bias when given by position.
BIAS_AT = {f"torch.nn.{kind}{dims}d": 7 for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)}
BIAS_AT["torch.nn.Linear"] = 2
NORMS = {f"torch.nn.BatchNorm{dims}d" for dims in (1, 2, 3)} | {"torch.nn.SyncBatchNorm"}


class NoBiasBeforeNorm(Technique):
    """A layer right before batch norm has no bias to add, to differentiate, to update and to store.

    ## Why it is faster
    Batch norm subtracts the mean of each channel, and with it whatever constant the layer before has added: the bias
    has no effect. It still costs an addition over the whole feature map, a sum over it in backward, and its share of
    the update. Batch norm's own shift does what the bias was meant for.

    ## When it does not help
    The saving is small beside the convolution itself, and where the addition is part of the convolution's kernel only
    the sum in backward is left. A bias before layer norm over other axes, or before anything else than batch norm, is
    needed. The fix is marked unsafe: checkpoints written before have a key more than the new model, and code that
    initialises `m.bias` without asking whether there is one would fail.

    ## What changes numerically
    The same function of the weights with other rounding. The bias got a gradient of zero, up to rounding, and so stayed
    about where it began. Initial weights drawn after it come from another place of the random stream.

    ## Claims
    The lists recommend it without a figure, with the right reason. They do not say that old checkpoints then need
    `strict=False`.
    """

    family = Family.COMPUTE
    aliases = ("bias=False", "bias", "batchnorm bias")
    suits = "CNN"

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        found: dict[ast.Call, str] = {}
        for layer, norm in fed_layers(source):
            is_pair = layer.name in BIAS_AT and norm.name in NORMS and _same_width(layer, norm)
            if is_pair and is_switched_on(layer, "bias", BIAS_AT[layer.name]):
                found[layer.node] = layer.name.rpartition(".")[2]
        for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
            yield source.site(node, f"the batch norm after this {found[node]} takes its bias away again", "unsafe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        assert isinstance(site.node, ast.Call)
        call = Call(site.node, site.source.name_of(site.node.func) or "", site.source)
        given = call.setting("bias", BIAS_AT[call.name])
        if isinstance(given, ast.expr):
            return replace_node(site.source, given, "False")
        return insert_argument(call, "bias=False")


def _same_width(layer: Call, norm: Call) -> bool:
    """A linear layer's features are batch norm's channels only where both are as many."""
    name = "out_features" if layer.name == "torch.nn.Linear" else "out_channels"
    width, channels = layer.setting(name, 1), norm.setting("num_features", 0)
    return isinstance(width, ast.expr) and isinstance(channels, ast.expr) and same(width, channels)
