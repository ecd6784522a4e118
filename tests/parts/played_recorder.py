"""A recorder that needs no device: what it records, it plays by doing it again. Given the optimizer, it is as strict
as a graph: what it reads and writes must lie where it lay when it was recorded."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Elsewhere(torch.Tensor):
    """A number that is not in main memory."""

    def cpu(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor).clone()


class PlayedRecorder:
    device = "cpu"

    def __init__(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.optimizer = optimizer
        self.flags: dict[str, object] = {}  # torch allows `capturable` on devices only
        self.is_busy, self.recorded, self.error = False, 0, ""

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.detach().clone().as_subclass(Elsewhere)
        return torch.tensor(value, dtype=torch.float64)  # as exact as the number was

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
