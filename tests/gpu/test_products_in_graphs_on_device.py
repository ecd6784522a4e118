"""Convolutions of single pixels and the norms beside them, by kernels: as near to the truth as torch's own, alone and
in compiled networks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import batch_norm, conv2d

from hotlap.parts import summed_norm
from hotlap.parts.images_in_graphs import lean_images
from hotlap.parts.joined_norm import joined_product
from hotlap.parts.summed_convolution import summed_convolution

pytestmark = pytest.mark.gpu

LASTING = {"memory_format": torch.channels_last}
Start = Callable[..., Any]


def images(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype).contiguous(**LASTING)


def gradients(start: Start, back: list[torch.Tensor], *given: torch.Tensor) -> list[torch.Tensor]:
    mine = [one.detach().clone().requires_grad_() for one in given]
    outs = start(*mine)
    return [*outs, *torch.autograd.grad(outs, mine, [one.to(out.dtype) for one, out in zip(back, outs, strict=True)])]


def check_as_near(theirs: list[torch.Tensor], own: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    for one, other, exact in zip(theirs, own, right, strict=True):
        assert one.dtype is other.dtype and one.shape == other.shape
        apart = [float((each.detach().double() - exact).norm()) for each in (one, other)]
        assert apart[1] <= 1.1 * apart[0] + 1e-3 * float(exact.detach().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("high", "wide"), [(56, 56), (7, 9)])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 256), (64, 64), (256, 64), (128, 512)])
def test_a_product_and_its_norm(inputs: int, outputs: int, high: int, wide: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = images(9, inputs, high, wide, dtype=dtype), images(outputs, inputs, 1, 1, dtype=dtype) / inputs**0.5
    affine, back = torch.rand(2, outputs, device="cuda") + 0.5, [images(9, outputs, high, wide, dtype=dtype)]
    running = [[torch.zeros(outputs, device="cuda"), torch.ones(outputs, device="cuda")] for _ in range(2)]

    def plain(x: torch.Tensor, weight: torch.Tensor, *affine: torch.Tensor) -> Any:
        return [batch_norm(conv2d(x, weight), *(one.to(affine[0].dtype) for one in running[0]), *affine, True, 0.3)]

    def ours(x: torch.Tensor, weight: torch.Tensor, *affine: torch.Tensor) -> Any:
        y, *sums = summed_convolution(x, weight)
        return [summed_norm.batch_norm(y, *running[1], *affine, 0.3, 1e-5, sums=sums)]

    given = (x, weight, *affine)
    right = gradients(plain, back, *(one.double() for one in given))
    running[0] = [torch.zeros(outputs, device="cuda"), torch.ones(outputs, device="cuda")]
    check_as_near(gradients(plain, back, *given), gradients(ours, back, *given), right)
    torch.testing.assert_close(running[1], running[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_twofold", [True, False])
@pytest.mark.parametrize(("inputs", "outputs", "side"), [(256, 64, 28), (256, 128, 7), (512, 128, 14), (64, 64, 15)])
def test_a_product_of_what_was_added(
    inputs: int, outputs: int, side: int, is_twofold: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, added = (images(9, inputs, side, side, dtype=dtype) for _ in range(2))
    weight, affine = (
        images(outputs, inputs, 1, 1, dtype=dtype) / inputs**0.5,
        torch.rand(4, inputs, device="cuda") + 0.5,
    )
    affine = affine if is_twofold else affine[:2]
    back = [images(9, count, side, side, dtype=dtype) for count in (inputs, outputs)]

    def plain(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, *affine: torch.Tensor) -> Any:
        other = batch_norm(added, None, None, *affine[2:], training=True) if is_twofold else added
        out = (batch_norm(x, None, None, *affine[:2], training=True) + other).relu()
        return out, conv2d(out, weight)

    def ours(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, *affine: torch.Tensor) -> Any:
        norms = [(None, None, *affine[at : at + 2], 0.1, 1e-5) for at in range(0, len(affine), 2)]
        return joined_product(x, added, weight, *[one for norm in norms for one in norm])[:2]

    given = (x, added, weight, *affine)
    right = gradients(plain, back, *(one.double() for one in given))
    check_as_near(gradients(plain, back, *given), gradients(ours, back, *given), right)


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.three, self.four = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.five, self.six = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.beside = nn.Identity()
        if inputs != 4 * width:
            self.beside = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.two(self.one(x)))
        out = torch.relu(self.four(self.three(out)))
        return torch.relu(self.six(self.five(out)) + self.beside(x))


@pytest.mark.parametrize("sizes", [(8, 8), (8, 5, 6, 3)])
def test_a_network_of_them(sizes: tuple[int, ...]) -> None:
    """Compiled, by one graph also for batches of several sizes: gradients as near to the truth, and running statistics
    and counters moved on as often."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    found: list[list[str]] = []

    def backend(graph: Any, given: Any) -> Any:
        lean_images(graph)
        found.append([getattr(node.target, "__name__", "") for node in graph.graph.nodes])
        return torch._inductor.compile(graph, given)

    plain, ours = (nn.Sequential(*(Bottleneck(n, 64) for n in (64, 256, 256))).cuda().to(**LASTING) for _ in range(2))
    ours.load_state_dict(plain.state_dict())
    exact = copy.deepcopy(plain).double()
    call = torch.compile(ours, backend=backend)
    for size in sizes:
        x = torch.randn(size, 64, 14, 14, device="cuda").to(**LASTING)
        for one, kind in ((plain, torch.float32), (call, torch.float32), (exact, torch.float64)):
            with torch.autocast("cuda", torch.bfloat16, enabled=kind is torch.float32):
                one(x.to(kind)).double().square().mean().backward()
    assert len(found) <= 2 and found[0].count("joined_product") == 2 and found[0].count("summed_convolution") == 5
    theirs, own, right = ([one.grad for one in net.parameters()] for net in (plain, ours, exact))
    for one, other, truth in zip(theirs, own, right, strict=True):
        apart = [float((each.double() - truth).norm()) for each in (one, other)]
        assert apart[1] <= 1.5 * apart[0] + 1e-2 * float(truth.norm())
    for (name, one), other in zip(plain.named_buffers(), ours.buffers(), strict=True):
        torch.testing.assert_close(other, one, rtol=2e-2, atol=1e-3, msg=lambda said, name=name: f"{name}: {said}")
