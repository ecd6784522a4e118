"""The fused optimizer."""

from __future__ import annotations

import ast
import functools
import itertools
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from hotlap.source.calls import ABSENT, Call
from hotlap.source.edits import add_import, insert_argument, replace_node
from hotlap.source.transfers import uses_device
from hotlap.source.updates import batched, updates_by_hand
from hotlap.technique import CannotHelp, Family, Parity, Setting, Technique, Try, Values

if TYPE_CHECKING:
    from hotlap.observe.patch import Patch
    from hotlap.observe.run import OptimizerFacts, Run
    from hotlap.parts.fused_update import FusedUpdate
    from hotlap.source.edits import Edit
    from hotlap.source.module import Site, Source

# Where each parameter stands when given by position; the others are keyword-only.
OPTIMIZERS = {
    "torch.optim.Adam": None,
    "torch.optim.AdamW": None,
    "torch.optim.SGD": None,
    "torch.optim.Adagrad": 6,
}
FUSED, FOREACH, CAPTURED, COMPILED = KINDS = ("fused", "foreach", "captured", "compiled")
_COMPILED = 4  # optimizers: a script that goes on building new ones would compile for each
_COMPILE_SECONDS = 20.0  # to get going; longer on the CPU where there are hundreds of tensors
RECORDED = ("SGD", "Adam", "AdamW", "NAdam", "Adamax", "RMSprop", "ASGD", "Rprop", "Adadelta")


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
    rewritten as one call over all parameters where the loop does nothing else and its factor is surely a number;
    scaled gradients then all exist at once. Other loops are reported without a fix.

    The kind `foreach` is for optimizers that torch updates tensor by tensor: on the CPU, or where the script says
    `foreach=False`. The kind `captured` records the whole `optimizer.step()` as one CUDA graph and replays it with a
    single launch, also for optimizers without a fused kernel. A graph works on fixed addresses: it is replayed only
    while weights, gradients and settings are where and what they were, and any other step runs as it is. Gradients
    that backward allocates anew need not come back to the same place. `clip_grad_norm_` becomes a graph of its own in
    the same way, where all gradients are on the device; its first replay is held against torch's.
    What never comes back is given up after 32 updates, with the reason. Closures, sparse or complex gradients,
    `differentiable=True`, weights in float64, and optimizers that decide on the host (Adagrad, RAdam, LBFGS) are not
    recorded; SGD without its fused kernel takes its learning rate from the host, so there a graph serves one value.

    The kind `compiled` is for optimizers without a fused kernel (Adadelta, NAdam, Adamax, RMSprop, ASGD, Rprop):
    `torch.compile` makes one kernel of the whole update, or a few, and these are recorded as above. On the CPU they run
    without a recording, and making them needs a C++ compiler. That takes seconds in every run, and on the CPU longer
    where there are hundreds of tensors; a learning rate that changes compiles nothing anew. The first compiled update
    is held against the plain one, whose result is kept. Where compiling fails, or settings keep changing, all updates
    stay plain, and the reason is told.

    ## What changes numerically
    The same formula with other rounding: operations are combined in one expression, where the default rounds to memory
    between them. A recorded or compiled update also takes its counts in float32, and on a device its learning rate.
    Checkpoints load in both directions. Where `fused=True` is written in source, loading one that was saved without it
    brings the old options back: the update then silently runs unfused again. An update by hand becomes the same
    operations.

    ## Claims
    The tip lists promise about 5 % from Apex's fused optimizers. Apex is not needed for this: torch has fused kernels
    of its own. The figure must be read against `foreach`, today's default on CUDA, not against the loop of that time,
    and it is bounded by the update's share: where that is 3 % of the step, no kernel can gain 5.
    """

    family = Family.UPDATE
    aliases = ("fused", "foreach", "FusedAdam", "apex", "apex.optimizers")
    traits = frozenset({"fused update"})
    adjustable = True  # a fused update can still be recorded
    default: ClassVar[Setting] = {"kind": "fused"}
    values: ClassVar[Values] = {"kind": KINDS}

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
        for loop in updates_by_hand(source):
            can_fix = batched(source, loop) is not None
            instead = "one call does it for all" if can_fix else "torch.optim.SGD(..., fused=True) needs one kernel"
            message = f"updates parameter by parameter; {instead}"
            yield source.site(loop, message, "unsafe" if can_fix else None, doubtful=is_on_host)

    def seen(self, run: Run) -> bool | None:
        able = [optimizer for optimizer in run.optimizers if _has_kernel(optimizer)]
        replayed = [optimizer for optimizer in run.optimizers if optimizer.captured]
        return all(one.fused or one.captured for one in able) if able else bool(replayed) or None

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        ways = {CAPTURED: _captured(run), FUSED: _fused(run)}  # a recorded update is fused as well
        kinds = [kind for kind, reason in ways.items() if not reason]
        kinds += [FOREACH] if any(_runs_tensor_by_tensor(run, one) for one in run.optimizers) else []
        kinds += [COMPILED] if _can_be_compiled(run) else []
        return [Try({"kind": kind}, run.share("update")) for kind in kinds] or CannotHelp("; ".join(ways.values()))

    def starts_after(self, setting: Setting) -> float:
        return _COMPILE_SECONDS if setting.get("kind") == COMPILED else self.start_up_seconds

    def apply(self, patch: Patch, setting: Setting) -> None:
        from hotlap.parts.fused_update import FusedUpdate, choose

        kind = str(setting.get("kind", FUSED))
        form = FOREACH if kind == FOREACH else FUSED
        made = _making(patch, kind) if kind in (CAPTURED, COMPILED) else None
        chosen: weakref.WeakKeyDictionary[Any, FusedUpdate] = weakref.WeakKeyDictionary()
        captured: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        waiting = weakref.WeakSet[Any]()

        def built(proceed: Any, optimizer: Any, bound: Any) -> None:
            said = bound.arguments.get(form)
            is_chosen = choose(bound.arguments, form)
            proceed(optimizer, bound)
            if is_chosen:
                chosen[optimizer] = FusedUpdate(optimizer, form, said)
                patch.on_undo(chosen[optimizer].undo)
            if made is not None:
                waiting.add(optimizer)

        def align(optimizer: Any) -> None:
            if optimizer in chosen:
                chosen[optimizer].align()

        def updating(optimizer: Any) -> None:
            if optimizer not in captured or not _is_torchs_own(optimizer):
                align(optimizer)

        def update(proceed: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if made is not None and optimizer in waiting:  # its parameters may have moved since it was built
                waiting.discard(optimizer)
                new = made(optimizer)
                if new is not None:
                    captured[optimizer] = new
            own = captured.get(optimizer)
            if own is None:
                return proceed(optimizer, *args, **kwargs)
            has_closure = any(one is not None for one in (*args, *kwargs.values()))
            plain = functools.partial(proceed, optimizer, *args, **kwargs)
            out = own.step(plain, has_closure, functools.partial(align, optimizer))
            if own.refused and all(one.refused for one in captured.values()):
                patch.withdraw(own.refused)
            return out

        _show_as_said(patch, chosen)
        patch.at(patch.joints.optimizer_built, built)
        patch.at(patch.joints.weights_updating, updating)
        if made is not None:
            patch.on_undo(lambda: [own.undo() for own in list(captured.values())])
            patch.at(patch.joints.update_called, update)
            _record_clipping(patch)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        if isinstance(site.node, ast.For):
            once = batched(site.source, site.node)
            assert once is not None, "only what can be written otherwise is marked with a fix"
            return [*replace_node(site.source, site.node, once), *add_import(site.source, "import torch")]
        return insert_argument(_call_at(site), "foreach=True" if setting.get("kind") == FOREACH else "fused=True")


def _making(patch: Patch, kind: str) -> Callable[[Any], Any]:
    """What makes the part that does an optimizer's updates; it makes none where the fused kernel does them already."""
    from hotlap.parts.captured_update import CapturedUpdate

    if kind == CAPTURED:
        return CapturedUpdate
    from hotlap.parts import compiled_form
    from hotlap.parts.compiled_update import CompiledUpdate
    from hotlap.parts.update_grounds import kind_of, weights_of

    proof = patch.compare("what compiled updates change, relative to plain ones", compiled_form.LIMIT)
    patch.at(patch.joints.compile_called, lambda: patch.withdraw("the script compiles by itself"))
    left = itertools.repeat(True, _COMPILED)

    def made(optimizer: Any) -> Any:
        is_on_host = all(p.is_cpu for p in weights_of(optimizer))
        if kind_of(optimizer) not in compiled_form.KINDS or not next(left, False):
            return None if is_on_host else CapturedUpdate(optimizer)
        form = compiled_form.CompiledForm(optimizer, proof)
        return CompiledUpdate(optimizer, form) if is_on_host else CapturedUpdate(optimizer, form=form)

    return made


def _is_torchs_own(optimizer: Any) -> bool:
    """Whether its update goes through what stands at torch's own `step`: not where its class has one of its own, nor
    where the script compiles it."""
    import torch

    return getattr(type(optimizer).step, "__hotlap__", False) and not torch.compiler.is_compiling()


def _show_as_said(patch: Patch, chosen: Mapping[Any, FusedUpdate]) -> None:
    """To whoever prints, copies or pickles an optimizer."""
    from torch.optim import Optimizer

    plain, kept = Optimizer.__repr__, Optimizer.__getstate__

    @functools.wraps(plain)
    def __repr__(optimizer: Any) -> str:
        own = chosen.get(optimizer)
        with own.as_said() if own is not None else nullcontext():
            return plain(optimizer)

    @functools.wraps(kept)
    def __getstate__(optimizer: Any) -> dict[str, Any]:
        own, state = chosen.get(optimizer), kept(optimizer)
        return state if own is None else own.as_kept(state)

    patch.set(Optimizer, "__repr__", __repr__)
    patch.set(Optimizer, "__getstate__", __getstate__)


def _record_clipping(patch: Patch) -> None:
    """What stands between backward and update in many scripts, and starts a dozen kernels."""
    import torch
    from torch.nn.utils import clip_grad

    from hotlap.parts.captured_clip import CapturedClip

    plain = clip_grad.clip_grad_norm_
    own = CapturedClip(plain)

    @functools.wraps(plain)
    def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the script compiles its update: nothing of ours is to be traced
            return plain(*args, **kwargs)
        return own(*args, **kwargs)

    for owner in (torch.nn.utils, clip_grad):
        patch.set(owner, "clip_grad_norm_", clip_grad_norm_)
    patch.on_undo(own.close)


def _has_kernel(optimizer: OptimizerFacts) -> bool:
    return optimizer.kind.startswith("torch.optim.") and f"torch.optim.{optimizer.kind.split('.')[-1]}" in OPTIMIZERS


def _fused(run: Run) -> str:
    """Why the fused kernel cannot help; "" where it can."""
    able = [optimizer for optimizer in run.optimizers if _has_kernel(optimizer)]
    if not able:
        return "only Adam, AdamW, SGD and Adagrad have a fused kernel"
    if any(o.sparse or o.differentiable or o.foreach for o in able):
        return "sparse gradients, differentiable=True or foreach=True rule the fused kernel out"
    return "the fused kernel is in use" if all(o.fused for o in able) else ""


def _runs_tensor_by_tensor(run: Run, optimizer: OptimizerFacts) -> bool:
    """Where batching the tensors is left to gain: on a GPU torch does so unless it is told not to."""
    if optimizer.fused or optimizer.foreach or optimizer.sparse or optimizer.differentiable:
        return False
    is_told = optimizer.foreach is False
    return _is_recorded(optimizer) and (is_told or (run.device == "cpu" and not _has_kernel(optimizer)))


def _is_recorded(optimizer: OptimizerFacts) -> bool:
    return optimizer.kind.startswith("torch.optim.") and optimizer.kind.split(".")[-1] in RECORDED


def _captured(run: Run) -> str:
    """Why no recording can help; "" where one can."""
    if run.device != "cuda":
        return "recording an update as a CUDA graph needs one on a GPU"
    able = [optimizer for optimizer in run.optimizers if _is_recorded(optimizer)]
    if not able:
        return "only " + ", ".join(RECORDED) + " can be recorded"
    if all(map(_rules_out, able)):
        return "sparse gradients, closures, differentiable=True or capturable=True rule recording out"
    return ""


def _can_be_compiled(run: Run) -> bool:
    """Where no fused kernel is as good."""
    able = [one for one in run.optimizers if _is_recorded(one) and not _rules_out(one)]
    if not able or any(map(_has_kernel, run.optimizers)) or run.script_compiles:
        return False
    return run.device == "cuda" or (run.device == "cpu" and any(map(shutil.which, ("c++", "g++", "clang++"))))


def _rules_out(optimizer: OptimizerFacts) -> bool:
    return bool(optimizer.sparse or optimizer.differentiable or optimizer.capturable or optimizer.closure)


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


def _call_at(site: Site) -> Call:
    return next(call for call in site.source.calls(*OPTIMIZERS) if call.node is site.node)
