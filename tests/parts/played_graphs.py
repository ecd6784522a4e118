"""A recorder of whole calls that needs no device. As with a graph, recording carries nothing out, and what is replayed
reads and writes the places it was recorded with: it is done again, and its results are copied to where they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class PlayedGraphs:
    """`PlayedGraphs(model)` makes a recorder for each recording, all of them counted in one place."""

    def __init__(self, *roots: nn.Module) -> None:
        self.roots, self.recorded, self.played, self.error, self.is_busy = roots, 0, 0, "", False

    def __call__(self) -> _Played:
        return _Played(self)

    def fixed(self) -> Callable[[], list[object]]:
        """What a graph has in it for good: addresses, and what Python decides by."""
        tensors = [t for root in self.roots for t in (*root.parameters(), *root.buffers())]

        def found() -> list[object]:
            modules = [module for root in self.roots for module in root.modules()]
            decided = [(id(m), m.training, len(m._forward_hooks), getattr(m, "p", None)) for m in modules]
            return [*decided, *(t.data_ptr() for t in tensors)]

        return found


class _Played:
    device = "cpu"

    def __init__(self, graphs: PlayedGraphs) -> None:
        self.graphs, self.flags = graphs, {}

    @property
    def is_busy(self) -> bool:
        return self.graphs.is_busy

    def scalar(self, value: Any, device: torch.device) -> torch.Tensor:
        raise NotImplementedError

    def record(self, update: Callable[[], Any], device: torch.device) -> Callable[[], object]:
        graphs, buffers = self.graphs, [b for root in self.graphs.roots for b in root.buffers()]
        if graphs.error:
            raise RuntimeError(graphs.error)
        before, generator = [b.clone() for b in buffers], torch.get_rng_state()
        graphs.is_busy = True
        try:
            results = update()
        finally:
            graphs.is_busy = False
            for b, value in zip(buffers, before, strict=True):
                b.data.copy_(value)
            torch.set_rng_state(generator)
        for result in results:
            if result is not None and result.is_floating_point():
                result.data.fill_(float("nan"))  # nothing was carried out
        graphs.recorded += 1
        fixed = graphs.fixed()
        known = fixed()

        @torch.no_grad()
        def play() -> None:
            assert fixed() == known, "a graph would have gone on as before"
            graphs.played += 1
            with torch.enable_grad():
                again = update()
            for result, new in zip(results, again, strict=True):
                if result is not None:
                    result.data.copy_(new)

        return play
