"""One training step as the host's single launch.

`step`: forward and backward compiled, then the whole step with its update recorded as one CUDA graph for each shape of
its inputs. `model`: torch's own recipe, `mode="reduce-overhead"`, which records forward and backward and leaves the
update to Python. Without a GPU neither is done, nor is bf16 used: some processors cannot."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Step = Callable[..., torch.Tensor]
_WARM = 3  # calls before the first recording: compiling, the optimizer's state, cuDNN's choices


def in_bf16(device: str | torch.device) -> AbstractContextManager[Any]:
    """Without autocast's cache of cast weights, which a recording must not come to own."""
    is_on_gpu = torch.device(device).type == "cuda"
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False) if is_on_gpu else nullcontext()


def resident(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """On the device for good: torch's own recording would otherwise copy all of it before every replay."""
    moved = tensor.to(device)
    if moved.is_cuda:
        torch._dynamo.mark_static_address(moved)
    return moved


def compiled(function: Callable[..., Any], device: str, capture: str) -> Callable[..., Any]:
    if torch.device(device).type != "cuda":
        return function
    return torch.compile(function, dynamic=False, mode="reduce-overhead" if capture == "model" else None)


def captured(step: Step, device: str, capture: str) -> Step:
    return Captured(step) if torch.device(device).type == "cuda" and capture == "step" else step


class Captured:
    """The first calls are plain steps on the stream that later records, so that no batch is trained on twice."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.stream = torch.cuda.Stream()
        self.calls: Counter[Any] = Counter()
        self.graphs: dict[Any, tuple[torch.cuda.CUDAGraph, list[torch.Tensor], torch.Tensor]] = {}

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        key = tuple(one.shape for one in inputs)
        if key not in self.graphs:
            self.calls[key] += 1
            if self.calls[key] <= (1 if self.graphs else _WARM):
                return self._plainly(inputs)
            self._record(key, inputs)
        graph, places, loss = self.graphs[key]
        for place, one in zip(places, inputs, strict=True):
            place.copy_(one, non_blocking=True)
        graph.replay()
        tell_the_clock()
        return loss

    def _plainly(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.step(*(one.to("cuda", non_blocking=True) for one in inputs))
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _record(self, key: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        places = [torch.empty_like(one, device="cuda") for one in inputs]
        for place, one in zip(places, inputs, strict=True):
            place.copy_(one)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            loss = self.step(*places)
        self.graphs[key] = (graph, places, loss)


def tell_the_clock() -> None:
    """A replayed update calls no Python, so torch's hooks never hear of it: bench/step_clock.py is told here."""
    clock = getattr(sys.modules.get("sitecustomize"), "CLOCK", None)
    if clock is not None:
        clock.step_taken()
