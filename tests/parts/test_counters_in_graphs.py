"""Counters in graphs that dynamo traced: moved on together, or left where somebody could tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hotlap.parts.counters_in_graphs import count_together


class Counting(nn.Module):
    def __init__(self, how: Callable[[Any, Tensor], Tensor], kind: torch.dtype = torch.long) -> None:
        super().__init__()
        for name in "abc":
            self.register_buffer(name, torch.tensor(5, dtype=kind))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def plainly(own: Any, x: Tensor) -> Tensor:
    for one in (own.a, own.b, own.c):
        one.add_(1)
    return x + 1


def shown(own: Any, x: Tensor) -> Tensor:
    own.a.add_(1)
    own.b.add_(1)
    return x + own.a + own.c.add_(1)


def by_two(own: Any, x: Tensor) -> Tensor:
    own.a.add_(2)
    own.b.add_(1, alpha=3)
    own.c.add_(own.a)
    return x + 1


def several(own: Any, x: Tensor) -> Tensor:
    own.a.add_(1)
    own.b.add_(1)
    own.a.add_(1)
    own.c.add_(1)
    return x + 1


def test_parts_of_what_is_read_in_between() -> None:
    def how(own: Any, x: Tensor) -> Tensor:
        own.first.add_(1)
        y = x * own.whole.sum()
        own.second.add_(1)
        return y

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", torch.zeros(2, dtype=torch.long))
            self.first, self.second = self.whole[0], self.whole[1]

        def forward(self, x: Tensor) -> Tensor:
            return how(self, x)

    torch._dynamo.reset()
    plain, ours = Parts(), Parts()
    call = torch.compile(ours, backend=lambda graph, given: (count_together(graph.graph), graph.recompile(), graph)[2])
    for _ in range(2):
        assert torch.equal(call(torch.ones(2)), plain(torch.ones(2)))


@pytest.mark.parametrize(
    ("how", "kind", "together"),
    [
        (plainly, torch.long, 3),
        (plainly, torch.float32, 0),
        (shown, torch.long, 0),
        (by_two, torch.long, 0),
        (several, torch.long, 2),  # those that are moved on once
    ],
)
def test_they_count_as_before(how: Callable[[Any, Tensor], Tensor], kind: torch.dtype, together: int) -> None:
    graphs: list[Any] = []

    def backend(graph: Any, given: Any) -> Any:
        count_together(graph.graph)
        graph.recompile()
        graphs.append(graph)
        return torch._inductor.compile(graph, given)

    torch._dynamo.reset()
    plain, ours = Counting(how, kind), Counting(how, kind)
    call, x = torch.compile(ours, backend=backend), torch.ones(3)
    for _ in range(3):
        torch.testing.assert_close(call(x), plain(x))
    assert all(torch.equal(one, other) for one, other in zip(ours.buffers(), plain.buffers(), strict=True))
    found = [node for node in graphs[0].graph.nodes if node.target is torch._foreach_add_]
    assert [len(node.args[0]) for node in found] == ([together] if together else [])
