"""The fused optimizer."""

from __future__ import annotations

import ast
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.calls import ABSENT, Call
from hotlap.source.edits import insert_argument
from hotlap.source.names import spelling
from hotlap.source.transfers import uses_device
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import OptimizerFacts, Run
    from hotlap.source.edits import Edit
    from hotlap.source.module import Site, Source

# Where each parameter stands when given by position; the others are keyword-only.
OPTIMIZERS = {
    "torch.optim.Adam": None,
    "torch.optim.AdamW": None,
    "torch.optim.SGD": None,
    "torch.optim.Adagrad": 6,
}


class FusedOptimizer(Technique):
    """The whole optimizer update runs in one kernel per group of parameters instead of many small ones.

    ## Why it is faster
    An update reads the weight, its gradient and the optimizer's state, does a few multiplications and writes weight
    and state back: it is bound by memory traffic and, on a GPU, by the number of kernel launches. The default on CUDA
    (`foreach`) already batches tensors, but still walks over them once for every arithmetic operation. The fused kernel
    walks once. On the CPU the default is a Python loop over the parameters, so a network of many small tensors gains
    there as well.

    ## When it does not help
    When the update is a small share of the step, as in most convolutional networks at usual batch sizes, there is
    little to save. Only Adam, AdamW, SGD and Adagrad have such a kernel. It refuses sparse gradients, complex or
    integer parameters, `differentiable=True` and `foreach=True`; that is why the fix is marked unsafe: it cannot be
    read from source that none of these will come. An update written by hand, one parameter after the other, is
    reported without a fix: which optimizer it is, its author knows best.

    ## What changes numerically
    The same formula with other rounding: operations are combined in one expression, where the default rounds to memory
    between them. Checkpoints load in both directions, but loading one that was saved without `fused` brings its
    options back, this one too: the update then silently runs unfused again.

    ## Claims
    The tip lists promise about 5 % from Apex's fused optimizers. Apex is not needed for this: torch has fused kernels
    of its own. The figure must be read against `foreach`, today's default on CUDA, not against the loop of that time,
    and it is bounded by the update's share: where that is 3 % of the step, no kernel can gain 5.
    """

    family = Family.UPDATE
    aliases = ("fused", "foreach", "FusedAdam", "apex", "apex.optimizers")
    traits = frozenset({"fused update"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        # Sparse gradients come from sparse embeddings; a sparse input, such as a graph, leaves gradients dense.
        is_sparse = any(given.arg == "sparse" for call in source.names.call_nodes for given in call.keywords)
        if is_sparse or source.mentions("SparseAdam"):
            return
        is_on_host = _stays_on_host(source)
        for call in source.calls(*OPTIMIZERS):
            others = ("fused", "differentiable", "capturable")
            if all(call.setting(name) is ABSENT for name in others) and _chooses_no_foreach(call):
                name = call.name.rpartition(".")[2]
                message = f"{name} updates in many small kernels; fused=True needs one"
                yield source.site(call.node, message, "unsafe", doubtful=is_on_host)
        for loop in _updates_by_hand(source):
            message = "updates parameter by parameter; torch.optim.SGD(..., fused=True) needs one kernel"
            yield source.site(loop, message, doubtful=is_on_host)

    def seen(self, run: Run) -> bool | None:
        able = [optimizer.fused for optimizer in run.optimizers if _has_kernel(optimizer)]
        return all(able) if able else None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        able = [optimizer for optimizer in run.optimizers if _has_kernel(optimizer)]
        if not able:
            return CannotHelp("only Adam, AdamW, SGD and Adagrad have a fused kernel")
        if any(o.sparse or o.differentiable or o.foreach for o in able):
            return CannotHelp("sparse gradients, differentiable=True or foreach=True rule the fused kernel out")
        return [Try({}, run.share("update"))]

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.parts.fused_update import FusedUpdate, choose_fused

        fused: weakref.WeakKeyDictionary[Any, FusedUpdate] = weakref.WeakKeyDictionary()

        def built(proceed: Any, optimizer: Any, bound: Any) -> None:
            is_fused = choose_fused(bound.arguments)
            proceed(optimizer, bound)
            if is_fused:
                fused[optimizer] = FusedUpdate(optimizer)
                patch.on_undo(fused[optimizer].undo)

        def updating(optimizer: Any) -> None:
            if optimizer in fused:
                fused[optimizer].align()

        patch.at(patch.joints.optimizer_built, built)
        patch.at(patch.joints.weights_updating, updating)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        return insert_argument(_call_at(site), "fused=True")


def _has_kernel(optimizer: OptimizerFacts) -> bool:
    return optimizer.kind.startswith("torch.optim.") and f"torch.optim.{optimizer.kind.split('.')[-1]}" in OPTIMIZERS


def _chooses_no_foreach(call: Call) -> bool:
    return call.setting("foreach", OPTIMIZERS[call.name]) is ABSENT


def _stays_on_host(source: Source) -> bool:
    """Whether a file makes its network, trains it, and never uses a device: such networks are small, and likely gain
    nothing. One from another file may have been moved there."""
    if not source.mentions("backward") or uses_device(source):
        return False
    called = (source.name_of(call.func) or "" for call in source.names.call_nodes)
    layers = (name for name in called if name.startswith("torch.nn.") and not name.endswith("Loss"))
    return any(name.rpartition(".")[2][:1].isupper() for name in layers)


def _updates_by_hand(source: Source) -> Iterator[ast.For]:
    """`for p in model.parameters(): p.data.add_(p.grad, alpha=-lr)`, in all the ways that is written."""
    for call in source.method_calls("parameters"):
        loop = source.parent(call)
        name = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else None
        if isinstance(loop, ast.For) and name and any(_moves_weight(node, name) for node in ast.walk(loop)):
            yield loop


def _moves_weight(node: ast.AST, name: str) -> bool:
    """Whether a node changes the parameter, or its `data`, by something with its gradient in it."""
    weight, given = None, []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("add_", "sub_"):
        weight, given = node.func.value, [*node.args, *(one.value for one in node.keywords)]
    elif isinstance(node, ast.AugAssign):
        weight, given = node.target, [node.value]
    elif isinstance(node, ast.Assign):
        weight, given = node.targets[0], [node.value]
    used = {spelling(one) for part in given for one in ast.walk(part)}
    return weight is not None and spelling(weight) in (name, f"{name}.data") and f"{name}.grad" in used


def _call_at(site: Site) -> Call:
    return next(call for call in site.source.calls(*OPTIMIZERS) if call.node is site.node)
