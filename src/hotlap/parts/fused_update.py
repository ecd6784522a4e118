"""An optimizer that runs torch's fused or foreach kernels while its script goes on taking it for a plain one.

    from hotlap.parts.fused_update import FusedUpdate, choose

    arguments = {"params": model.parameters(), "lr": 1e-3, "fused": None}
    is_fused = choose(arguments, "fused")  # sets fused=True where nothing speaks against it
    optimizer = AdamW(**arguments)
    if is_fused:
        update = FusedUpdate(optimizer)
        update.align()  # before each step
        update.undo()  # plain again

Checkpoints are written and read as a plain optimizer's."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_DECIDING = ("fused", "foreach", "differentiable", "capturable")  # the script has said what it wants
_YOUNG = 8  # updates after building or loading in which a layout may still change


def choose(arguments: dict[str, Any], form: str) -> bool:
    """Turn an optimizer's constructor arguments into those of a "fused" or "foreach" one; False, and nothing changed,
    where its kernels would not take them or the script has chosen otherwise."""
    undecided = not any(arguments.get(name) for name in _DECIDING)
    if form not in arguments or not undecided or (form == "fused" and arguments["fused"] is False):
        return False
    if not _is_several(arguments["params"]):
        return False
    if form == "foreach" and _in_tensors(arguments):
        return False
    arguments["params"] = [_listed(entry) if isinstance(entry, dict) else entry for entry in arguments["params"]]
    if not all(_fits(entry, form) for entry in arguments["params"]):
        return False
    arguments[form] = True
    return True


class FusedUpdate:
    """Keeps the choice out of the script's sight, which takes `form` for what it `said`, and the fused kernel's inputs
    in the layout it silently assumes."""

    def __init__(self, optimizer: torch.optim.Optimizer, form: str = "fused", said: bool | None = None) -> None:
        self._optimizer, self._form, self._said = weakref.ref(optimizer), form, said
        self._young = _YOUNG
        self._walked: dict[int, tuple[int, ...]] = {}  # weights that the kernel goes through, by id, as they lay then
        self._hooks = [
            optimizer.register_state_dict_post_hook(self._saving),
            optimizer.register_load_state_dict_pre_hook(self._loading),
        ]

    def align(self) -> None:
        """The kernel pairs weight, gradient and state by their place in memory and does not look at strides: a
        gradient set by hand, or a state saved in another layout, would be applied to the wrong weights. A group that
        has come to hold what the kernel does not take is updated as the script has said."""
        optimizer = self._optimizer()
        if optimizer is None:
            return
        for group in optimizer.param_groups:
            if group.get(self._form) and not self._takes(group):
                self._leave(group)
        if self._form != "fused":
            return
        if self._young > 0:
            self._young -= 1
            chosen = [group for group in optimizer.param_groups if group.get("fused")]
            for p in (p for group in chosen for p in group["params"] if p.grad is not None):
                _align_state(p, optimizer.state.get(p, {}))

    @contextmanager
    def as_said(self) -> Iterator[None]:
        """While somebody prints the optimizer."""
        optimizer = self._optimizer()
        groups = [] if optimizer is None else [one for one in optimizer.param_groups if self._form in one]
        chosen = [group[self._form] for group in groups]
        for group in groups:
            group[self._form] = self._said
        try:
            yield
        finally:
            for group, own in zip(groups, chosen, strict=True):
                group[self._form] = own

    def as_kept(self, state: dict[str, Any]) -> dict[str, Any]:
        """What a copy or a pickle is made from: these are plain optimizers, with or without hotlap."""
        groups = [{**group, self._form: self._said} for group in state["param_groups"]]
        kept = {**state, "param_groups": groups, "defaults": {**state["defaults"], self._form: self._said}}
        if self._form == "fused":
            kept["state"] = state["state"].copy()  # of its own kind
            kept["state"].update({p: _on_host(entry) for p, entry in state["state"].items()})
        return kept

    def undo(self) -> None:
        optimizer = self._optimizer()
        if optimizer is None:
            return
        for hook in self._hooks:
            hook.remove()
        optimizer.defaults[self._form] = self._said
        for group in optimizer.param_groups:
            self._leave(group)

    def _takes(self, group: dict[str, Any]) -> bool:
        """After which its gradients lie as their weights do."""
        if self._form != "fused":
            return not _in_tensors(group)
        for p in group["params"]:
            grad, stride = p.grad, p.stride()
            if grad is None:
                continue
            if grad.layout is not torch.strided or not (self._walked.get(id(p)) == stride or _is_walked(p)):
                return False
            self._walked[id(p)] = stride
            if grad.stride() != stride:
                p.grad = torch.empty_like(p).copy_(grad)
        return True

    def _leave(self, group: dict[str, Any]) -> None:
        optimizer = self._optimizer()
        group[self._form] = self._said
        if optimizer is None or self._form != "fused":
            return
        vars(optimizer).pop("_step_supports_amp_scaling", None)
        for entry in (optimizer.state[p] for p in group["params"] if p in optimizer.state):
            entry.update(_on_host(entry))

    def _loading(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        """Loading a plain checkpoint would silently switch the kernel off."""
        self._young = _YOUNG
        return {**state, "param_groups": [{**group, self._form: True} for group in state["param_groups"]]}

    def _saving(self, optimizer: Any, state: dict[str, Any]) -> dict[str, Any]:
        """A checkpoint as the script's own optimizer would have written it."""
        groups = [{**group, self._form: self._said} for group in state["param_groups"]]
        if self._form != "fused":
            return {**state, "param_groups": groups}
        return {**state, "param_groups": groups, "state": {key: _on_host(one) for key, one in state["state"].items()}}


def _on_host(entry: dict[str, Any]) -> dict[str, Any]:
    """A plain optimizer counts there."""
    return {name: v.cpu() if name == "step" and hasattr(v, "cpu") else v for name, v in entry.items()}


def _in_tensors(settings: dict[str, Any]) -> bool:
    """A learning rate, or betas, which updates in batches do not take so."""
    given = (settings.get("lr"), *(settings.get("betas") or ()))
    return any(isinstance(one, torch.Tensor) for one in given)


def _is_walked(parameter: torch.Tensor) -> bool:
    """Whether the kernel, which goes from a weight's first number on as far as there are numbers, meets them all and no
    others: not in a piece of a larger tensor, nor in complex numbers."""
    if parameter.is_complex():
        return False
    return parameter.is_contiguous() or torch.empty_like(parameter, device="meta").stride() == parameter.stride()


def _align_state(parameter: torch.Tensor, state: dict[str, Any]) -> None:
    for name, value in state.items():
        if name != "step" and value is not None and value.stride() != parameter.stride():
            state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _is_several(parameters: Any) -> bool:
    """Not a lone tensor, nor anything else that torch refuses in words of its own."""
    return isinstance(parameters, Iterable) and not hasattr(parameters, "dim")


def _listed(group: dict[str, Any]) -> dict[str, Any]:
    """A group may hold a generator, which can be looked through only once."""
    given = group.get("params")
    return {**group, "params": list(given)} if given is not None and _is_several(given) else group


def _fits(entry: Any, form: str) -> bool:
    """Whether the kernel takes this parameter, or every one of this group, which decides nothing of the kind."""
    if isinstance(entry, dict):
        given = entry.get("params")
        if form == "foreach" and _in_tensors(entry):
            return False
        inside = given if isinstance(given, list) else [given]
        return all(_fits(one, form) for one in inside) and not any(entry.get(name) is not None for name in _DECIDING)
    parameter = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
    if not isinstance(parameter, torch.Tensor) or not parameter.is_floating_point():
        return False
    return parameter.device.type in ("cpu", "cuda", "mps", "xpu") and (form != "fused" or _is_walked(parameter))
