"""Results in 16 bits come back in float32, in whatever they are handed over."""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from hotlap.parts.widened import widened

LOW = torch.ones(2, dtype=torch.bfloat16)
Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    logits: torch.Tensor


@dataclasses.dataclass(slots=True)
class Slotted:
    logits: torch.Tensor


class Named(OrderedDict):
    """Entries are attributes as well, as of the results of well-known libraries."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Several(list):
    pass


def named() -> Named:
    made = Named()
    made["logits"] = LOW
    return made


@pytest.mark.parametrize(
    ("made", "read"),
    [
        (LOW, lambda out: out),
        ([LOW, 1], lambda out: out[0]),
        (Pair(LOW, "b"), lambda out: out.a),
        ({"logits": [LOW]}, lambda out: out["logits"][0]),
        (Output(LOW), lambda out: out.logits),
        (Output(torch.ones(1), [Output(LOW)]), lambda out: out.hidden[0].logits),
        (Frozen(LOW), lambda out: out.logits),
        (named(), lambda out: out["logits"]),
        (named(), lambda out: out.logits),
        (Several([1, LOW]), lambda out: out[1]),
        (types.SimpleNamespace(logits=LOW), lambda out: out.logits),
    ],
)
def test_tensors_are_found(made: Any, read: Any) -> None:
    out = widened(made, torch.bfloat16)
    assert type(out) is type(made) and read(out).dtype is torch.float32
    assert read(made).dtype is torch.bfloat16, "what the model may have kept is as it was"


def test_what_has_nothing_to_widen_is_the_same_object() -> None:
    for made in (Output(torch.ones(1)), named, Named, "text", None, Output, types.SimpleNamespace(a=torch.ones(1))):
        assert widened(made, torch.bfloat16) is made
    other = Output(torch.ones(1, dtype=torch.float16))
    assert widened(other, torch.bfloat16) is other


def test_gradients_go_through() -> None:
    x = torch.ones(2, requires_grad=True)
    widened(Output(x.bfloat16() * 2), torch.bfloat16).logits.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 2.0))
