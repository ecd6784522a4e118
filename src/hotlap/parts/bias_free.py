"""Layers called without the bias that the batch norm after them takes away again. Nothing that is saved changes: the
bias stays a parameter, and the norm's running mean is what it would have been with it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from hotlap.parts.compilable import interpreted

_UNUSED = (  # as torch says it
    "The differentiated Tensor at index {} appears to not have been used in the graph. Set allow_unused=True if "
    "this is the desired behavior."
)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Pair:
    """A layer with a bias, and the batch norm that alone reads what it gives."""

    def __init__(self, layer: Any, norm: Any) -> None:
        self.layer, self.norm = layer, norm
        self._zeros: Any = None

    @property
    def bias(self) -> Any:
        return self.layer._parameters["bias"]

    @property
    def updates(self) -> int:
        """Changes with every run of the norm, and is known to the host: the count itself lies on the device."""
        return int(self.norm.num_batches_tracked._version)

    @property
    def lacks_gradient(self) -> bool:
        """The layer took part in a backward, and only its bias went away empty."""
        return bool(self.bias.requires_grad and self.bias.grad is None and self.layer.weight.grad is not None)

    def zeros(self) -> Any:
        """Always the same tensor, so that no step has to make one."""
        import torch

        bias, own = self.bias, self._zeros
        if own is None or (own.shape, own.dtype, own.device) != (bias.shape, bias.dtype, bias.device):
            self._zeros = torch.zeros_like(bias, requires_grad=False)
        return self._zeros


class BiasFree:
    """The pairs of one model, or of several: `call` in place of its call, `give_gradients` after each backward."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = list(pairs)

    def call(self, call: Callable[[], Any]) -> Any:
        """A norm that evaluates keeps the layer's bias: it subtracts a mean that has the bias in it."""
        active = [
            (pair, pair.bias, pair.updates) for pair in self.pairs if pair.norm.training and pair.bias is not None
        ]
        for pair, _, _ in active:
            pair.layer._parameters["bias"] = None
        try:
            return call()
        finally:
            for pair, bias, _ in active:
                pair.layer._parameters["bias"] = bias
            _correct_means(active)

    def gradients(
        self, ask: Callable[..., Any], outputs: Any, wanted: Sequence[Any], *rest: Any, **options: Any
    ) -> tuple[Any, ...]:
        """In place of `torch.autograd.grad`, which finds nothing of such a bias in the graph."""
        import torch

        layers = {id(pair.bias): pair.layer for pair in self.pairs if pair.bias is not None}
        names = ("grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused", "is_grads_batched")
        options = dict(zip((*names, "materialize_grads"), rest, strict=False)) | options
        is_simple = not options.get("is_grads_batched") and not options.get("materialize_grads")
        if not is_simple or not any(id(one) in layers for one in wanted):
            return tuple(ask(outputs, wanted, **options))
        found = list(ask(outputs, wanted, **{**options, "allow_unused": True}))
        unused = {id(one) for one, gradient in zip(wanted, found, strict=True) if gradient is None}
        for n, one in enumerate(wanted):
            if found[n] is None and id(one) in layers and id(layers[id(one)].weight) not in unused:
                found[n] = torch.zeros_like(one, requires_grad=False)
            elif found[n] is None and not options.get("allow_unused"):
                raise RuntimeError(_UNUSED.format(n))
        return tuple(found)

    def give_gradients(self) -> None:
        """That of such a bias is zero up to rounding. Without any, weight decay and momentum would pass it by."""
        import torch

        lacking = [pair for pair in self.pairs if pair.lacks_gradient]
        if lacking:
            torch._foreach_zero_([pair.zeros() for pair in lacking])  # the script may have written to them
        for pair in lacking:
            pair.bias.grad = pair.zeros()


def _correct_means(called: Sequence[tuple[Pair, Any, int]]) -> None:
    """Of the norms that really ran: a block that was skipped has nothing to correct."""
    import torch

    by_momentum: dict[float, list[tuple[Any, Any]]] = {}
    for pair, bias, updates in called:
        if pair.updates != updates:
            # By `data`, or backward would complain: it has the running mean among what it saved, and has no use for it.
            by_momentum.setdefault(pair.norm.momentum, []).append((pair.norm.running_mean.data, bias.detach()))
    with torch.no_grad():
        for momentum, rows in by_momentum.items():
            torch._foreach_add_([mean for mean, _ in rows], [bias for _, bias in rows], alpha=momentum)


def watched(root: Any, call: Callable[[], Any]) -> tuple[Any, list[Pair]]:
    """What a call of the model gives, and the pairs seen in it: every operation of this one call is looked at."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    flow = _Flow(root)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            flow.used(tree_leaves((args, kwargs)))
            return function(*args, **(kwargs or {}))

    mode: Any = Mode
    try:
        with interpreted(), mode():
            out = call()
    finally:
        flow.take_down()
    flow.used(tree_leaves(out))
    return out, flow.pairs()


class _Flow:
    """Who reads the outputs and the biases of the layers that may do without."""

    def __init__(self, root: Any) -> None:
        modules = [module for module in root.modules() if not any(getattr(module, name, None) for name in _HOOKS)]
        self._inside: Any = None  # the layer or norm at work
        self._outputs: list[Any] = []  # kept until the end, so that no storage comes round again
        self._made_by: dict[int, Any] = {}  # by storage
        self._biases = {_storage(m.bias): m for m in modules if _may_drop_bias(m)}
        self._norm_of: dict[Any, Any] = {}
        self._calls: dict[Any, int] = {}
        self._spoiled: set[Any] = set()
        self._handles: list[Any] = []
        for module in (*self._biases.values(), *filter(_takes_bias_away, modules)):
            self._handles.append(module.register_forward_pre_hook(self._entered))
            self._handles.append(module.register_forward_hook(self._left, always_call=True))

    def take_down(self) -> None:
        while self._handles:
            self._handles.pop().remove()
        self._inside = None

    def used(self, values: Sequence[Any]) -> None:
        for value in values:
            key = _storage(value)
            maker, owner = self._made_by.get(key), self._biases.get(key)
            if maker is not None and (self._inside is None or self._norm_of.get(maker) is not self._inside):
                self._spoiled.add(maker)
            if owner is not None and owner is not self._inside:
                self._spoiled.add(owner)

    def _entered(self, module: Any, args: Any) -> None:
        self._inside = module
        self._calls[module] = self._calls.get(module, 0) + 1
        maker = self._made_by.get(_storage(args[0])) if args else None
        if maker is None:
            return
        if (
            _takes_bias_away(module)
            and args[0].dim() == maker.weight.dim()
            and module.num_features == maker.bias.numel()
        ):
            self._norm_of.setdefault(maker, module)

    def _left(self, module: Any, args: Any, out: Any) -> None:
        self._inside = None
        if any(module is layer for layer in self._biases.values()) and _storage(out):
            if _is_recomputed():
                self._spoiled.add(module)
            self._outputs.append(out)
            self._made_by[_storage(out)] = module

    def pairs(self) -> list[Pair]:
        kept = self._kept_by_script()
        self._outputs.clear()
        return [
            Pair(layer, norm)
            for layer, norm in self._norm_of.items()
            if layer not in self._spoiled | kept and self._calls[layer] == self._calls[norm] == 1
        ]

    def _kept_by_script(self) -> set[Any]:
        """The layers whose output something still holds: it may go into a loss of its own."""

        def holders(*tensors: Any) -> bool:
            found = gc.get_referrers(*tensors) if tensors else []
            return any(one is not self._outputs and one is not tensors and type(one) is not FrameType for one in found)

        if not holders(*self._outputs):
            return set()
        return {
            self._made_by[_storage(self._outputs[n])] for n in range(len(self._outputs)) if holders(self._outputs[n])
        }


def _may_drop_bias(module: Any) -> bool:
    from torch import nn

    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    bias = module._parameters.get("bias") if type(module) in kinds else None
    if bias is None or not _storage(bias):
        return False
    has_hooks = bias._backward_hooks or getattr(bias, "_post_accumulate_grad_hooks", None)
    weight = module._parameters.get("weight")  # reparametrised ones have none of their own
    return weight is not None and not has_hooks and (weight.requires_grad or not bias.requires_grad)


def _takes_bias_away(module: Any) -> bool:
    from torch import nn

    return (
        type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        and module.training
        and module.running_mean is not None
        and module.num_batches_tracked is not None
        and module.momentum is not None  # the plain average over all batches would have to be read from the device
        and not module.running_mean.is_inference()
    )


def _is_recomputed() -> bool:
    """A checkpoint calls the layer again in backward, when the bias is back in its place."""
    import torch

    return not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _storage(value: Any) -> int:
    """0 for what is no plain tensor."""
    import torch

    if type(value) in (torch.Tensor, torch.nn.Parameter):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse, lazy, inside a transform
            return int(value.untyped_storage()._cdata)
    return 0
