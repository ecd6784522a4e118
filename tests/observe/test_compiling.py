"""What torch.compile did, in one line: graphs, breaks, and where they are."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

from hotlap.observe.compiling import compiled_facts
from hotlap.observe.run import BreakFacts, CompiledFacts


@pytest.fixture(autouse=True)
def from_nothing():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch._dynamo.utils.clear_compilation_metrics()
    yield
    torch._dynamo.reset()


def test_breaks_at_several_lines_are_counted_by_line() -> None:
    class Net(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = x + 1
            print(end="")
            y = x * 2
            if y.sum() > 0:
                y = y + 1
            return y

    first = Net.forward.__code__.co_firstlineno
    torch.compile(Net(), backend="eager")(torch.ones(3))
    facts = compiled_facts()
    file = os.path.basename(__file__)
    assert [(one.file, one.line, one.count) for one in facts.breaks] == [(file, first + 3, 1), (file, first + 5, 1)]
    assert facts.graphs == 3 and facts.again == 0


def test_other_shapes_are_counted_as_compiled_again() -> None:
    call = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    for size in (2, 3, 4, 3):
        call(torch.ones(size))
    assert compiled_facts().graphs == 3 and compiled_facts().again == 2


BRANCH, PRINT = BreakFacts("branch", "", 0, 3), BreakFacts("print", "a.py", 7, 1)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (CompiledFacts(), ""),
        (CompiledFacts(1), "traced as 1 graph"),
        (CompiledFacts(2, [PRINT]), "traced as 2 graphs, 1 break: print at a.py:7"),
        (CompiledFacts(9, [BRANCH, PRINT]), "traced as 9 graphs, 4 breaks: branch"),
    ],
)
def test_the_words(facts: CompiledFacts, words: str) -> None:
    assert str(facts) == words
