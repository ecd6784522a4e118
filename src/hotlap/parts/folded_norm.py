"""Batch norms folded into the layers before them, for as long as a model only evaluates.

    from hotlap.parts.folded_norm import folded

    model.eval()
    with torch.no_grad(), folded(model):
        output = model(inputs)

Weights, statistics and `state_dict` are the model's own again afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hotlap.parts.compilable import HOOKS

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_LIMIT = 1e-2  # of the largest output, that the first one may be off: rounding is far below, a wrong pair far above


@contextlib.contextmanager
def folded(model: nn.Module) -> Iterator[Folding]:
    """The first call finds out which norm reads which layer, and is held against a folded one; from then on norms are
    skipped. Inside, weights must not change, and `state_dict` shows the folded ones."""
    if model.training or vars(model).get("_compiled_call_impl") is not None:
        yield Folding(model)  # of no use here: training needs its norms, and what is compiled is fused already
        return
    folding = Folding(model)
    vars(model)["_compiled_call_impl"] = folding.first_call
    try:
        yield folding
    finally:
        vars(model).pop("_compiled_call_impl", None)
        folding.undo()


class Folding:
    """`pairs` has the layers and norms that are one now; `reason` says why there are none."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._originals: list[tuple[Any, dict[str, Any], Any]] = []
        self.pairs: list[tuple[nn.Module, nn.Module]] = []
        self.reason = "the model was not called, or it trains"

    def first_call(self, *args: Any, **kwargs: Any) -> Any:
        vars(self._model).pop("_compiled_call_impl")
        if torch.is_grad_enabled():
            self.reason = "a gradient may be wanted: use it under torch.no_grad()"
            return self._model(*args, **kwargs)
        expected, pairs = self._watched(args, kwargs)
        for layer, norm in pairs:
            self._fold(layer, norm)
        self.reason = "" if pairs else "no layer hands its output to one batch norm"
        if pairs and not _is_near(self._model(*args, **kwargs), expected):
            self.undo()
            self.reason = "the outputs were not the same: something else reads what such a layer gives"
        self.pairs = [] if self.reason else pairs
        return expected

    def _watched(self, args: Any, kwargs: Any) -> tuple[Any, list[tuple[nn.Module, nn.Module]]]:
        made: dict[int, tuple[nn.Module, Any]] = {}  # by the output, which is kept so that no address comes round again
        fed: list[tuple[nn.Module, nn.Module]] = []
        calls: dict[nn.Module, int] = {}

        def left(module: nn.Module, args: Any, out: Any) -> None:
            calls[module] = calls.get(module, 0) + 1
            if type(module) in LAYERS:
                made[id(out)] = module, out
            elif args and id(args[0]) in made:
                fed.append((made[id(args[0])][0], module))

        parts = [module for module in self._model.modules() if not any(vars(module).get(name) for name in HOOKS)]
        handles = [module.register_forward_hook(left) for module in parts if _is_part_of_a_pair(module)]
        try:
            out = self._model(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        return out, [pair for pair in fed if calls[pair[0]] == calls[pair[1]] == 1 and _fits(*pair)]

    def _fold(self, layer: Any, norm: Any) -> None:
        from torch.nn.utils.fusion import fuse_conv_bn_weights

        weight, bias = fuse_conv_bn_weights(
            layer.weight, layer.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        self._originals.append((layer, dict(layer._parameters), norm))
        layer._parameters["weight"], layer._parameters["bias"] = weight, bias
        vars(norm)["_compiled_call_impl"] = _as_it_is  # torch's own slot for another call of a module

    def undo(self) -> None:
        for layer, parameters, norm in self._originals:
            layer._parameters.update(parameters)
            vars(norm).pop("_compiled_call_impl")
        self._originals.clear()


def _as_it_is(x: Any) -> Any:
    return x


def _is_part_of_a_pair(module: Any) -> bool:
    return type(module) in LAYERS or (type(module) in NORMS and not module.training and module.running_mean is not None)


def _fits(layer: Any, norm: Any) -> bool:
    """A linear layer over more than two dimensions has its features last, and batch norm looks for them second."""
    is_flat = type(layer) is not nn.Linear or type(norm) is nn.BatchNorm1d
    return is_flat and bool(layer.weight.shape[0] == norm.num_features)


def _is_near(one: Any, other: Any) -> bool:
    from torch.utils._pytree import tree_leaves

    pairs = [
        pair for pair in zip(tree_leaves(one), tree_leaves(other), strict=True) if isinstance(pair[0], torch.Tensor)
    ]
    return all(
        bool((a.double() - b.double()).abs().max() <= _LIMIT * b.double().abs().max().clamp(min=1e-30))
        for a, b in pairs
        if a.is_floating_point() and a.numel()
    )
