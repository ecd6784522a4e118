"""float64 is left alone where a script means it."""

from __future__ import annotations

import pytest

from hotlap.catalogue import find
from hotlap.observe.run import RootFacts, Run
from hotlap.observe.scrutiny_facts import InputFacts, LookFacts
from hotlap.source.module import Source

DOUBLE = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(2, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in data:
    model(x.double()).sum().backward()
    optimizer.step()
"""


def test_model_and_input_are_found() -> None:
    assert [site.line for site in find("float64").spot(Source(DOUBLE))] == [3, 6]


@pytest.mark.parametrize(
    ("made", "fix"),
    [
        ("torch.from_numpy(rows[i])", None),
        ("torch.from_numpy(rows[i]).float()", "unsafe"),
        ("torch.from_numpy(numpy.zeros(3))", "unsafe"),
        ("torch.from_numpy(numpy.zeros(3, dtype=numpy.float32))", "unsafe"),
    ],
)
def test_not_rewritten_where_another_array_may_be_double(made: str, fix: str | None) -> None:
    text = f"import numpy\n{DOUBLE}\ndef sample(i):\n    return {made}\n"
    assert {site.fix for site in find("float64").spot(Source(text))} == {fix}


@pytest.mark.parametrize(
    "meant",
    [
        "torch.set_default_dtype(torch.float64)",
        "torch.autograd.gradcheck(f, x)",
        "optimizer = torch.optim.LBFGS(model.parameters())",
    ],
)
def test_silent_where_the_digits_are_wanted(meant: str) -> None:
    assert not list(find("float64").spot(Source(f"{DOUBLE}\n{meant}\n")))


def root(dtype: str) -> RootFacts:
    return RootFacts("Linear", 2, {"Linear": 1}, False, False, (2,), (dtype,), None, False, None)


def test_seen_from_weights_and_inputs() -> None:
    fed = LookFacts(inputs=[InputFacts("Linear", "0", [[4, 2]], 1, "float64")])
    seen = find("single-precision").seen
    assert seen(Run("2.11", "cpu")) is None
    assert seen(Run("2.11", "cpu", roots=[root("float32")])) is True
    assert seen(Run("2.11", "cpu", roots=[root("float64")])) is False
    assert seen(Run("2.11", "cpu", roots=[root("float32")], look=fed)) is False
