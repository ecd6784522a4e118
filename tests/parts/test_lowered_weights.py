"""Weights that a graph lowers together: which they are, and that training goes on as it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hotlap.parts.lowered_weights import _cast, lowered
from hotlap.parts.weights_in_graphs import lower_together

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

LOW = torch.bfloat16


def test_what_torch_asks_of_an_operation() -> None:
    weights = [torch.randn(4, 3, 2, 2), torch.randn(5, 4, 1, 1).contiguous(memory_format=torch.channels_last)]
    torch.library.opcheck(_cast, (weights, LOW))


def test_each_as_it_lies() -> None:
    weights = [torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last), torch.randn(5, 4, 1, 1)]
    weights = [one.requires_grad_() for one in weights]
    made = lowered(LOW, *weights)
    assert all(torch.equal(one, other.to(LOW)) for one, other in zip(made, weights, strict=True))
    assert [one.stride() for one in made] == [one.stride() for one in weights]
    back = [torch.randn_like(one) for one in made]
    grads = torch.autograd.grad(made, weights, back)
    assert all(torch.equal(one, other.float()) for one, other in zip(grads, back, strict=True))
    assert len({one.data_ptr() for one in (*made, *grads)}) == 4


class Net(nn.Module):
    def __init__(self, how: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.frozen, self.line = nn.Conv2d(4, 4, 1).requires_grad_(False), nn.Linear(4, 4)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def plainly(own: Any, x: Tensor) -> Tensor:
    return own.three(own.two(own.one(x)))


def shared(own: Any, x: Tensor) -> Tensor:
    return own.one(own.one(own.two(x)))


def at_rest(own: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = own.three(x)
    return own.one(own.two(own.frozen(x)))


def turned_off(own: Any, x: Tensor) -> Tensor:
    x = own.two(own.one(x))
    with torch.autocast("cpu", enabled=False):
        return own.three(x.float())


def changed(own: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        own.three.weight.mul_(0.5)
    return own.three(own.two(own.one(x)))


def made_of(own: Any, x: Tensor) -> Tensor:
    return F.conv2d(own.two(own.one(x)), own.three.weight * 2, own.three.bias, padding=1)


def lonely(own: Any, x: Tensor) -> Tensor:
    return own.line(own.one(x).mean((2, 3)))


@pytest.mark.parametrize(
    ("how", "count"),
    [(plainly, 3), (shared, 2), (at_rest, 0), (turned_off, 2), (changed, 2), (made_of, 2), (lonely, 0)],
)
@pytest.mark.parametrize("is_compiled", [True, False])
def test_training_goes_on_as_it_did(how: Callable[[Any, Tensor], Tensor], count: int, is_compiled: bool) -> None:
    found: list[int] = []

    def backend(graph: Any, given: Any) -> Any:
        lower_together(graph.graph)
        graph.recompile()
        found.extend(len(node.args) - 1 for node in graph.graph.nodes if node.target is lowered)
        return torch._inductor.compile(graph, given) if is_compiled else graph.forward

    plain, ours = Net(how), Net(how)
    ours.load_state_dict(plain.state_dict())
    call, x = torch.compile(ours, backend=backend), torch.randn(2, 4, 6, 6)
    for _ in range(2):  # gradients are added up
        for one in (plain, call):
            with torch.autocast("cpu", LOW):
                one(x).float().square().mean().backward()
    assert sum(found) == count
    for (name, one), other in zip(plain.named_parameters(), ours.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None:
            assert other.grad.dtype is torch.float32
            torch.testing.assert_close(other.grad, one.grad, rtol=0.05, atol=0.02)
