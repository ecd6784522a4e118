"""No bias where batch norm takes it away again."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.bodies import same
from hotlap.source.calls import Call
from hotlap.source.edits import Edit, insert_argument, replace_node
from hotlap.source.layers import fed_layers, is_switched_on
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

# Where each layer takes its bias when given by position.
BIAS_AT = {f"torch.nn.{kind}{dims}d": 7 for kind in ("Conv", "ConvTranspose") for dims in (1, 2, 3)}
BIAS_AT["torch.nn.Linear"] = 2
NORMS = {f"torch.nn.BatchNorm{dims}d" for dims in (1, 2, 3)} | {"torch.nn.SyncBatchNorm"}

# A gradient that is only rounding moves nothing in these.
LINEAR = ("torch.optim.sgd.SGD", "torch.optim.asgd.ASGD")
# Adding a bias reads and writes the feature map, its gradient reads it; norm, activation and the layer itself, forward
# and backward, go over it a dozen times more.
_LARGEST_PART = 0.2


class NoBiasBeforeNorm(Technique):
    """A layer right before batch norm has no bias to add, to differentiate, to update and to store.

    ## Why it is faster
    Batch norm subtracts the mean of each channel, and with it whatever constant the layer before has added: the bias
    has no effect. It still costs an addition over the whole feature map, a sum over it in backward, and its share of
    the update. Batch norm's own shift does what the bias was meant for.

    ## When it does not help
    The saving is small beside the convolution itself, and where the addition is part of the convolution's kernel only
    the sum in backward is left. A bias before layer norm over other axes, or before anything else than batch norm, is
    needed. In source, the fix is marked unsafe: checkpoints written before have a key more than the new model, and code
    that initialises `m.bias` without asking whether there is one would fail.

    In a run nothing is taken out of the model. One call is watched, operation by operation; a layer whose output goes
    into one batch norm and nowhere else is then called without its bias while that norm trains. The norm's running mean
    is corrected by the bias, and the bias gets a gradient of zeros, so that weight decay and momentum act on it as
    before: evaluation, checkpoints and copies have bias and mean as ever. A layer that is checkpointed, hooked, called
    twice, or whose bias is read elsewhere is left alone. `torch.autograd.grad` gives such zeros as well. Not tried with
    optimizers like Adam, for the reason below.

    ## What changes numerically
    The same function of the weights with other rounding. The bias has a gradient of zero, up to rounding, and so stays
    about where it began; plain SGD with momentum and weight decay then ends with the same weights. Adam divides a
    gradient by its own size, so the rounding becomes steps of full size: the script's biases wander without any effect
    on training, but the running mean lags behind them, and evaluation shows it. In a small network after 50 steps of
    AdamW at 1e-3 the losses agreed to 3e-7 with and without that wandering, the outputs in evaluation to 2 %. Written
    into source, initial weights drawn after a bias come from another place of the random stream.

    ## Claims
    The lists recommend it without a figure, with the right reason. They do not say that old checkpoints then need
    `strict=False`. On two busy cores a small convolutional network in fp32, in eight blocks A B B A, gave a median of
    1.05x between 0.91x and 1.30x: a gain could not be shown there.
    """

    family = Family.COMPUTE
    aliases = ("bias=False", "bias", "batchnorm bias")
    suits = "CNN"
    traits = frozenset({"works after backward"})

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

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        biased = [root for root in run.roots if root.biases_before_norm]
        if not biased:
            return CannotHelp("no layer here has a bias and a batch norm after it")
        other = next((one.kind for one in run.optimizers if one.kind not in LINEAR), None)
        if other:
            name = other.rpartition(".")[2]
            return CannotHelp(f"{name} makes full steps of the rounding in such a bias, which evaluations would miss")
        aside = next((root.stands_aside for root in biased if root.stands_aside), None)
        return CannotHelp(aside) if aside else [Try({}, _LARGEST_PART * run.computing)]

    def apply(self, patch: Patch, setting: Setting) -> None:
        import torch

        from hotlap.parts.bias_free import BiasFree, watched

        freed: weakref.WeakKeyDictionary[Any, BiasFree] = weakref.WeakKeyDictionary()

        def call(proceed: Any, root: Any, args: Any, kwargs: Any) -> Any:
            own = freed.get(root)
            if own is not None:
                return own.call(lambda: proceed(root, args, kwargs))
            if not root.training or not torch.is_grad_enabled():
                return proceed(root, args, kwargs)
            out, pairs = watched(root, lambda: proceed(root, args, kwargs))
            freed[root] = BiasFree(pairs)
            return out

        def backward(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            out = proceed(*args, **kwargs)
            for own in list(freed.values()):
                own.give_gradients()
            if freed and not any(own.pairs for own in freed.values()):
                patch.withdraw("no batch norm was fed by a layer with a bias, and by it alone")
            elif torch.distributed.is_available() and torch.distributed.is_initialized():
                patch.withdraw("the processes of this run wait for the gradient of every parameter")
            return out

        def asked(proceed: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = [pair for own in list(freed.values()) for pair in own.pairs]
            return BiasFree(pairs).gradients(proceed, *args, **kwargs) if pairs else proceed(*args, **kwargs)

        patch.at(patch.joints.root_called, call)
        patch.at(patch.joints.loss_known, backward)
        patch.at(patch.joints.gradients_asked, asked)

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
