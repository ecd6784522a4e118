"""What is rewritten computes what it did before: both fixtures run, and what they print is compared."""

from __future__ import annotations

import math
import re
import runpy
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

from hotlap.catalogue import find
from hotlap.source.fix import fix_source
from hotlap.source.module import Source

FIXTURES = Path(__file__).resolve().parent.parent / "catalogue"


def rearrange(tensor: torch.Tensor, pattern: str, **sizes: int) -> torch.Tensor:
    """The pattern by its definition, in three steps: einops itself need not be installed for this."""
    left, right = ([group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", side)]
                   for side in pattern.split("->"))  # fmt: skip
    known = dict(sizes)
    for group, size in zip(left, tensor.shape, strict=True):
        given = math.prod(known[name] for name in group if name in known)
        known |= {name: size // given for name in group if name not in known}
    names = [name for group in left for name in group]
    order = [names.index(name) for group in right for name in group]
    split = tensor.reshape([known[name] for name in names]).permute(order)
    return split.reshape([math.prod(known[name] for name in group) for group in right])


def printed(path: Path, capsys: pytest.CaptureFixture[str]) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(path), run_name="__main__")
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", capsys.readouterr().out)]


@pytest.mark.parametrize(
    "name",
    [
        "current_apis",
        "einops_rearrange",
        "freed_memory",
        "fused_attention",
        "grad_free_evaluation",
        "grads_to_none",
        "no_data_parallel",
        "sync_free_loop",
    ],
)
def test_before_and_after_print_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    einops = types.ModuleType("einops")
    einops.rearrange = rearrange  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "einops", einops)
    before = printed(FIXTURES / name / "before.py", capsys)
    after = printed(FIXTURES / name / "after.py", capsys)
    assert before and after == pytest.approx(before, rel=1e-3)


def test_a_divided_loss_has_the_gradient_of_the_large_batch() -> None:
    torch.manual_seed(0)
    batches = torch.randn(4, 8, 3)
    weight = torch.randn(3, requires_grad=True)
    (whole,) = torch.autograd.grad((batches.reshape(-1, 3) @ weight).pow(2).mean(), weight)
    for batch in batches:
        loss = (batch @ weight).pow(2).mean()
        (loss / len(batches)).backward()  # as the fix writes it
    assert torch.allclose(weight.grad, whole, rtol=1e-5)
    assert not torch.allclose(weight.grad * len(batches), whole, rtol=1e-1)


def test_a_loaded_model_is_run_without_a_graph() -> None:
    text = "import torch\nmodel = torch.load('m.pt')\nout = model(torch.ones(1))\nprint(out.shape)\n"
    fixed = text.replace("out = model", "with torch.no_grad():\n    out = model")
    technique = find("no_grad")
    assert fix_source(Source(text), [(technique, {})], unsafe=True) == fixed
    trains = text + "out.sum().backward()\n"
    assert fix_source(Source(trains), [(technique, {})], unsafe=True) == trains
