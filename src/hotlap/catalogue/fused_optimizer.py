"""The fused optimizer."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotlap.source.calls import ABSENT, Call
from hotlap.source.edits import insert_argument
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

DECIDING = ("fused", "foreach", "differentiable", "capturable")  # the script has said what it wants
_YOUNG = 8  # updates after building or loading in which a layout may still change


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
    read from source that none of these will come.

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
        if source.mentions("sparse", "to_sparse", "sparse_coo_tensor"):
            return
        for call in source.calls(*OPTIMIZERS):
            others = ("fused", "differentiable", "capturable")
            if all(call.setting(name) is ABSENT for name in others) and _chooses_no_foreach(call):
                name = call.name.rpartition(".")[2]
                yield source.site(call.node, f"{name} updates in many small kernels; fused=True needs one", "unsafe")

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
        young: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # updates still to be looked at
        patch.at(patch.joints.optimizer_built, functools.partial(_fuse, patch, young))
        patch.at(patch.joints.weights_updating, functools.partial(_align, young))

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        return insert_argument(_call_at(site), "fused=True")


def _has_kernel(optimizer: OptimizerFacts) -> bool:
    return optimizer.kind.startswith("torch.optim.") and f"torch.optim.{optimizer.kind.split('.')[-1]}" in OPTIMIZERS


def _fuse(patch: Patch, young: Any, proceed: Any, optimizer: Any, bound: Any) -> None:
    """Build it with fused=True where it could have been, and keep that out of everything the script can see."""
    chosen = bound.arguments
    undecided = not any(chosen.get(name) for name in DECIDING)
    if "fused" not in chosen or not undecided or chosen["fused"] is False or not _is_several(chosen["params"]):
        proceed(optimizer, bound)
        return
    chosen["params"] = [_listed(entry) if isinstance(entry, dict) else entry for entry in chosen["params"]]
    if not all(map(_fits, chosen["params"])):
        proceed(optimizer, bound)
        return
    chosen["fused"] = True
    proceed(optimizer, bound)
    hooks = [optimizer.register_state_dict_post_hook(_plain_state)]
    hooks.append(optimizer.register_load_state_dict_pre_hook(functools.partial(_fused_state, young)))
    young[optimizer] = _YOUNG
    patch.on_undo(functools.partial(_unfuse, weakref.ref(optimizer), hooks))


def _is_several(parameters: Any) -> bool:
    """Not a lone tensor, nor anything else that torch refuses in words of its own."""
    return isinstance(parameters, Iterable) and not hasattr(parameters, "dim")


def _listed(group: dict[str, Any]) -> dict[str, Any]:
    """A group may hold a generator, which can be looked through only once."""
    given = group.get("params")
    return {**group, "params": list(given)} if given is not None and _is_several(given) else group


def _fits(entry: Any) -> bool:
    """Whether the kernel takes this parameter, or every one of this group, which decides nothing of the kind."""
    import torch

    if isinstance(entry, dict):
        given = entry.get("params")
        inside = given if isinstance(given, list) else [given]
        return all(map(_fits, inside)) and not any(entry.get(name) is not None for name in DECIDING)
    parameter = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
    is_real = isinstance(parameter, torch.Tensor) and parameter.is_floating_point()
    return is_real and parameter.device.type in ("cpu", "cuda", "mps", "xpu")


def _align(young: Any, optimizer: Any) -> None:
    """The kernel pairs weight, gradient and state by their place in memory and does not look at strides: a gradient
    set by hand, or a state saved in another layout, would be applied to the wrong weights."""
    import torch

    if optimizer not in young:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    for p in parameters:
        if p.grad.stride() != p.stride() and p.grad.layout is torch.strided:
            p.grad = torch.empty_like(p).copy_(p.grad)
    if young[optimizer] > 0:
        young[optimizer] -= 1
        for p in parameters:
            _align_state(p, optimizer.state.get(p, {}))


def _align_state(parameter: Any, state: dict[str, Any]) -> None:
    import torch

    for name, value in state.items():
        if name != "step" and value is not None and value.stride() != parameter.stride():
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _plain_state(optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint as the script's own optimizer would have written it."""
    groups = [{**group, "fused": None} for group in state["param_groups"]]
    kept = {
        key: {name: v.cpu() if name == "step" and hasattr(v, "cpu") else v for name, v in entry.items()}
        for key, entry in state["state"].items()
    }
    return {**state, "param_groups": groups, "state": kept}


def _fused_state(young: Any, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Loading a plain checkpoint would silently switch the kernel off."""
    young[optimizer] = _YOUNG
    return {**state, "param_groups": [{**group, "fused": True} for group in state["param_groups"]]}


def _unfuse(reference: weakref.ref[Any], hooks: list[Any]) -> None:
    optimizer = reference()
    if optimizer is None:
        return
    for hook in hooks:
        hook.remove()
    for settings in (optimizer.defaults, *optimizer.param_groups):
        settings["fused"] = None
    vars(optimizer).pop("_step_supports_amp_scaling", None)
    for entry in optimizer.state.values():
        if hasattr(entry.get("step"), "cpu"):
            entry["step"] = entry["step"].cpu()


def _chooses_no_foreach(call: Call) -> bool:
    return call.setting("foreach", OPTIMIZERS[call.name]) is ABSENT


def _call_at(site: Site) -> Call:
    return next(call for call in site.source.calls(*OPTIMIZERS) if call.node is site.node)
