"""A recorder that needs no device: what it records, it plays by doing it again. Given the optimizer, it is as strict
as a graph: what it reads and writes must lie where it lay when it was recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch.utils._pytree import tree_leaves

from hotlap.parts import recorded_pass
from hotlap.parts.pass_look import noting_backward


class Elsewhere(torch.Tensor):
    """A number that is not in main memory."""

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


class PlayedRecorder:
    device = "cpu"
    number = None

    def __init__(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.optimizer = optimizer
        self.flags: dict[str, object] = {}  # torch allows `capturable` on devices only
        self.is_busy, self.recorded, self.error = False, 0, ""

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().as_subclass(Elsewhere)
        return torch.tensor(value, dtype=torch.float64)  # as exact as the number was

    def aside(self, device: torch.device):
        return nullcontext()

    def moment(self) -> None:
        return None

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        if self.error:
            raise RuntimeError(self.error)
        self.recorded += 1
        if self.optimizer is None:
            return update
        places = self._places()

        def play() -> object:
            assert self._places() == places, "a graph would have read or written elsewhere"
            out = update()
            assert self._places() == places, "a graph cannot make anything new"
            return out

        return play

    def _places(self) -> list[object]:
        parameters = [p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        state = [(n, v) for p in parameters for n, v in self.optimizer.state.get(p, {}).items()]
        tensors = [*parameters, *(p.grad for p in parameters), *(v for _, v in state if v is not None)]
        return [[t.data_ptr() for t in tensors], [t.stride() for t in tensors], [(n, v is None) for n, v in state]]


class PlayedPasses(PlayedRecorder):
    """Plays passes of a model: results, loss and gradients come to lie where they lay when it was recorded, and what
    was recorded was not done. `spoil` is called after each play, to plant a fault."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        super().__init__()
        self.model, self.played, self.spoil = model, 0, lambda: None
        self._plays: list[Callable[[], None]] = []

    def let_go(self) -> None:
        """A graph holds nothing of Python's; what plays here does, and cannot be played after this."""
        self.model = None
        self._plays.clear()

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        buffers, random = [b.clone() for b in self.model.buffers()], torch.get_rng_state()
        if self.error:
            update()  # it breaks at its end
            self._undo(buffers, random)
            raise RuntimeError(self.error)
        self.recorded += 1
        parameters = list(self.model.parameters())
        own, grads = self._done(update), [p.grad for p in parameters]
        self._undo(buffers, random)

        def play() -> None:
            kept = [p.grad for p in parameters]
            for p in parameters:
                p.grad = None
            with recorded_pass.listeners.recording():  # a graph tells nobody what it does
                made = self._done(update)
            for old, new in zip([*own, *grads], [*made, *(p.grad for p in parameters)], strict=True):
                if isinstance(old, torch.Tensor):
                    old.detach().copy_(new.detach())
            for p, grad in zip(parameters, kept, strict=True):
                p.grad = grad
            self.played += 1
            self.spoil()

        number, plays = len(self._plays), self._plays
        plays.append(play)
        return lambda: plays[number]()

    def _done(self, update: Callable[[], object]) -> list[object]:
        losses: list[object] = []
        with noting_backward(losses.append):
            out = update()
        return [*losses, *tree_leaves(out)]

    def _undo(self, buffers: list[torch.Tensor], random: torch.Tensor) -> None:
        torch.set_rng_state(random)
        for buffer, value in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(value)
