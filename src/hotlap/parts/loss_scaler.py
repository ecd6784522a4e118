"""fp16 loss scaling from outside a loop that knows nothing of it.

The loop must only ever see unscaled gradients: clipping, logged norms, accumulation and several optimizers are then
right by construction. So the scale goes on at the start of a backward and comes off at its end, and a step whose
gradients are not finite finds none at all, which every torch optimizer skips.

    from hotlap.parts.loss_scaler import LossScaler

    scaler = LossScaler()
    scaler.own(optimizer)
    scaler.backward(torch.autograd.backward, loss)  # instead of loss.backward()
    scaler.before_step(optimizer)
    optimizer.step()
    scaler.after_step(optimizer)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch


class LossScaler:
    def __init__(self, scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self._first_scale, self._growth_interval = scale, growth_interval
        self._scale: torch.Tensor | None = None
        self._growth = self._found_inf = torch.zeros(())
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._set_aside: dict[torch.Tensor, torch.Tensor | None] = {}
        self._stepped = False
        self.skipped_steps = 0

    def own(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on the gradients of this optimizer's parameters are scaled and unscaled."""
        self._optimizers.add(optimizer)

    @property
    def scale(self) -> float:
        return self._first_scale if self._scale is None else float(self._scale)

    def backward(
        self, original: Callable[..., Any], tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Stands round `torch.autograd.backward`."""
        parameters = self._parameters()
        is_derived = kwargs.get("create_graph") or (len(args) > 1 and args[1])
        is_within = torch._C._current_graph_task_id() != -1  # of a checkpoint: what it goes back with is scaled already
        if not parameters or is_derived or is_within:
            return original(tensors, grad_tensors, *args, **kwargs)
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        asked = kwargs.get("inputs") or (args[3] if len(args) > 3 else None) or ()
        others = [*_leaves(losses), *([asked] if isinstance(asked, torch.Tensor) else asked)]
        parameters = list({id(one): one for one in (*parameters, *others)}.values())
        if any(_is_hooked(one) or not one.is_leaf for one in parameters):  # a hook must see no scale, either
            return original(tensors, grad_tensors, *args, **kwargs)
        if self._scale is None:
            self._start(losses[0].device)
        elif self._stepped:
            self._update()
        assert self._scale is not None
        given = [grad_tensors] if isinstance(grad_tensors, torch.Tensor) else list(grad_tensors or [None] * len(losses))
        scaled = [
            (torch.ones_like(loss) if grad is None else grad) * self._scale.to(loss.dtype)
            for loss, grad in zip(losses, given, strict=True)
        ]
        before = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        try:
            return original(losses, scaled, *args, **kwargs)
        finally:
            self._unscale([p.grad for p in parameters if p.grad is not None])
            for p, old in zip(parameters, before, strict=True):
                if old is not None:
                    p.grad = old if p.grad is None else old.add_(p.grad)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take non-finite gradients out of the optimizer's sight. Costs one read from the device."""
        if self._scale is None:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        found = torch.zeros_like(self._found_inf)
        grads = [_numbers(p.grad) for p in parameters if p.grad is not None]
        if grads:
            torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.ones_like(found))
        self._stepped = True
        if found.item():
            self._found_inf.fill_(1.0)
            self.skipped_steps += 1
            self._set_aside = {p: p.grad for p in parameters}
            for p in parameters:
                p.grad = None

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        for p, grad in self._set_aside.items():
            p.grad = grad
        self._set_aside = {}

    def _start(self, device: torch.device) -> None:
        self._scale = torch.full((), self._first_scale, device=device)
        self._growth = torch.zeros((), dtype=torch.int32, device=device)
        self._found_inf = torch.zeros((), device=device)

    def _update(self) -> None:
        assert self._scale is not None
        torch._amp_update_scale_(self._scale, self._growth, self._found_inf, 2.0, 0.5, self._growth_interval)
        self._found_inf.zero_()
        self._stepped = False

    def _parameters(self) -> list[torch.Tensor]:
        owned = (p for o in self._optimizers for group in o.param_groups for p in group["params"])
        return list({id(p): p for p in owned if p.requires_grad}.values())

    def _unscale(self, grads: list[torch.Tensor]) -> None:
        assert self._scale is not None
        if grads:
            numbers = [_numbers(grad) for grad in grads]
            torch._amp_foreach_non_finite_check_and_unscale_(numbers, self._found_inf, self._scale.reciprocal())


def _leaves(losses: list[torch.Tensor]) -> list[torch.Tensor]:
    """Whatever gets a gradient, also what no optimizer owns: images that are to be changed, weights updated by hand."""
    stack: list[Any] = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    found: list[torch.Tensor] = []
    seen = set(stack)
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for above, _ in node.next_functions:
            if above is not None and above not in seen:
                seen.add(above)
                stack.append(above)
    return found


def _numbers(grad: torch.Tensor) -> torch.Tensor:
    """The same memory as plain numbers, which is what torch can check."""
    values = grad._values() if grad.layout is torch.sparse_coo else grad
    return torch.view_as_real(values) if values.is_complex() else values


def _is_hooked(parameter: torch.Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)
