"""A network whose norms are kernels of ours, traced with and without `analysed_once`: a script for its test. Torch
looks at real kernels, as for a GPU, which that needs not."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._functorch.partitioners import default_partition
from triton.backends.compiler import GPUTarget

from hotlap.parts import image_start, joined_norm, summed_convolution, summed_norm
from hotlap.parts.analysed_kernels import NAMES, analysed_once
from hotlap.parts.images_in_graphs import lean_images

WRAP = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap")
NAME = next(name for name in NAMES if hasattr(WRAP, name))
BLOCKS = 5


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.three, self.four = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.beside, self.five = nn.Conv2d(channels, 16, 1), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.four(self.three(torch.relu(self.two(self.one(x)))))
        return torch.relu(out + self.five(self.beside(x)))


class Traced(Exception):
    """There is nothing here that could run it."""


def traced(how: Callable[[], Any]) -> list[str]:
    graphs: list[str] = []

    def keep(graph: Any, given: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    def parted(joint: Any, *given: Any, **more: Any) -> Any:
        graphs.append(joint.print_readable(print_output=False))  # there and back
        return default_partition(joint, *given, **more)

    def backend(graph: Any, given: Any) -> Any:
        assert lean_images(graph, ("cpu",)) == 3 * BLOCKS
        with how():
            aot_module_simplified(graph, given, fw_compiler=keep, bw_compiler=keep, partition_fn=parted)
        raise Traced

    torch.manual_seed(0)
    torch._dynamo.reset()
    network = nn.Sequential(Block(8), *(Block(16) for _ in range(BLOCKS - 1))).to(memory_format=torch.channels_last)
    x = torch.randn(2, 8, 12, 12).to(memory_format=torch.channels_last).requires_grad_()
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.compile(network, backend=backend)(x)
    except Exception as error:
        if "Traced" not in str(error):
            raise
    return graphs


def main() -> None:
    triton.runtime.driver._active = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32), get_current_device=lambda: 0,
        get_active_torch_device=lambda: torch.device("cpu"),
    )  # fmt: skip
    for module in (summed_norm, joined_norm, image_start, summed_convolution):
        module.has_kernels = lambda x: True
    plain, looks = getattr(WRAP, NAME), []
    setattr(WRAP, NAME, lambda *given, **more: (looks.append(1), plain(*given, **more))[1])
    without = traced(contextlib.nullcontext)
    needed = len(looks)
    assert traced(analysed_once) == without and len(without) == 2
    assert all("triton_kernel_wrapper" in graph for graph in without)
    assert 0 < len(looks) - needed < needed / 2, (needed, len(looks))
    print(f"the same, by {len(looks) - needed} looks for {needed}")


if __name__ == "__main__":
    main()
