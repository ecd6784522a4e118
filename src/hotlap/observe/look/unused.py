"""What was initialised and never used in the steps looked at: parameters without a gradient, modules without a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hotlap.observe.look.tracks import Tracks
from hotlap.observe.scrutiny_facts import UnusedFacts


class Unused:
    """Gradients are looked at before each update and at each boundary, since the script may drop them after."""

    def __init__(self, roots: Sequence[Any], optimizers: Sequence[Any], tracks: Tracks) -> None:
        self._roots, self._optimizers, self._tracks = list(roots), list(optimizers), tracks
        self._waiting = {id(p): p for root in self._roots for p in root.parameters() if p.requires_grad}
        self._had_gradient: set[int] = set()
        self._handles: list[Any] = []

    def hang_up(self) -> None:
        for optimizer in self._optimizers:
            if hasattr(optimizer, "register_step_pre_hook"):
                self._handles.append(optimizer.register_step_pre_hook(lambda *_: self.see()))

    def take_down(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def see(self) -> None:
        seen = [key for key, parameter in self._waiting.items() if parameter.grad is not None]
        self._had_gradient.update(seen)
        for key in seen:
            del self._waiting[key]

    def facts(self) -> list[UnusedFacts]:
        found: list[UnusedFacts] = []
        told: set[int] = set()
        for root in self._roots:
            if not self._is_trained(root):
                continue  # it had no turn in these steps, so nothing can be said
            prefix = f"{type(root).__name__}." if len(self._roots) > 1 else ""
            for name, module in self._idle(root, ""):
                mine = {id(p): p for p in module.parameters() if id(p) not in told}
                told.update(mine)
                elements = sum(p.numel() for p in mine.values())
                if elements:
                    found.append(UnusedFacts(prefix + name, type(module).__name__, elements))
            for name, parameter in root.named_parameters():
                if id(parameter) in self._waiting and id(parameter) not in told:
                    told.add(id(parameter))
                    found.append(UnusedFacts(prefix + name, "parameter", parameter.numel()))
        return found

    def _is_trained(self, root: Any) -> bool:
        return any(id(parameter) in self._had_gradient for parameter in root.parameters())

    def _idle(self, module: Any, name: str) -> Iterator[tuple[str, Any]]:
        """The topmost modules of which no part was called or got a gradient. A list that is only indexed, or a module
        of which only methods are called, is therefore judged by its parts."""
        import torch

        if self._tracks.copies_called or isinstance(module, torch.jit.ScriptModule):
            return  # calls inside cannot be seen
        if name and not self._is_used(module):
            yield name, module
            return
        for child_name, child in module.named_children():
            yield from self._idle(child, f"{name}.{child_name}" if name else child_name)

    def _is_used(self, module: Any) -> bool:
        calls, index = self._tracks.calls, self._tracks.index
        return any(index.get(id(part)) in calls for part in module.modules()) or self._is_trained(module)
