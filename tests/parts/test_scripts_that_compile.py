"""Where the script compiles functions of its own, every operation can be watched no longer: the compiler would fail, in
the script, and go on failing."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from played_graphs import PlayedGraphs
from played_recorder import PlayedPasses
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from hotlap.parts.captured_calls import CapturedCalls
from hotlap.parts.recorded_pass import RecordedPass
from hotlap.parts.watched_call import watched

CPU = torch.device("cpu")
compiled = torch.compile(torch.tanh, backend="eager", fullgraph=True)
left_out = torch.compiler.disable(torch.tanh)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)


class ByFunction(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return compiled(self.layer(x))


class ByMethod(Net):
    @torch.compile(backend="eager", fullgraph=True)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class ByAttribute(Net):
    def __init__(self) -> None:
        super().__init__()
        self.acts = compiled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.acts(self.layer(x))


class Attends(Net):
    """Compiled by torch itself, at every call. On the processor it has no backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x).detach().view(2, 2, -1, 16)
        return flex_attention(hidden, hidden, hidden).flatten(0, 2) + self.layer(x)


class NotCompiled(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return left_out(self.layer(x))


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", [ByFunction, ByMethod, ByAttribute, Attends])
def test_they_are_left_alone(kind) -> None:
    model, x = kind(), torch.randn(8, 16)
    captured = CapturedCalls(PlayedGraphs(model))
    for _ in range(8):
        captured.call(model, (x,), {}).sum().backward()
    assert captured.replays == 0 and "compiled" in captured.refused


def test_a_function_that_the_compiler_leaves_out_is_like_any_other() -> None:
    model, x = NotCompiled(), torch.randn(8, 16)
    captured = CapturedCalls(PlayedGraphs(model))
    for _ in range(8):
        captured.call(model, (x,), {}).sum().backward()
    assert captured.refused == "" and captured.replays > 0


@pytest.mark.parametrize("kind", [ByFunction, ByMethod, ByAttribute, Attends])
def test_a_pass_over_them_is_left_alone(kind) -> None:
    model, x = kind(), torch.randn(8, 16)
    own = RecordedPass(PlayedPasses(model))

    def one_pass(x: torch.Tensor) -> None:
        model.zero_grad()
        model(x).sum().backward()

    for _ in range(12):
        own.run(one_pass, (x,))
    assert own.replays == 0 and "compiled" in own.refused


@pytest.mark.parametrize("kind", [ByFunction, Attends])
def test_what_nobody_can_read_still_runs_under_watch_and_afterwards(kind) -> None:
    """As in the code of installed packages, which is not looked into."""
    model, x = kind(), torch.randn(8, 16)
    for _ in range(3):
        expected = model(x)
        out, _ = watched(lambda: model(x), [x], list(model.parameters()), CPU)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(model(x), expected)


def test_without_that_the_compiler_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.parts.watched_call.interpreted", nullcontext)
    model, x = Attends(), torch.randn(8, 16)
    with pytest.raises(Exception, match=r"dynamo|compile|skipp"):
        watched(lambda: model(x), [x], list(model.parameters()), CPU)
        model(x)  # with torch 2.11 it is this one that fails
