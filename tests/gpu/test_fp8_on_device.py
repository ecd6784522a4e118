"""8-bit products on a chip that has them: near the plain ones, also compiled, and what they take."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from hotlap.catalogue import find
from hotlap.parts.eight_bit_products import CAPABILITY, convert, restore
from hotlap.technique import Choice

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < CAPABILITY, reason="no 8-bit products"
    ),
]
BEFORE = Path(__file__).resolve().parent.parent / "catalogue" / "fp8_linear" / "before.py"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_it_is_nearly_the_same(dtype: torch.dtype, compiled: bool) -> None:
    torch.manual_seed(0)
    found = []
    x = torch.randn(48, 1024, device="cuda", dtype=dtype)
    for is_converted in (False, True):
        torch.manual_seed(1)
        layer = nn.Linear(1024, 2048, device="cuda", dtype=dtype)
        if is_converted:
            convert(layer)
        input = x.clone().requires_grad_()
        out = (torch.compile(layer) if compiled and is_converted else layer)(input)
        out.square().mean().backward()
        found.append([out.detach(), input.grad, layer.weight.grad, layer.bias.grad])
    for one, other in zip(*found, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        cosine = nn.functional.cosine_similarity(one.float().flatten(), other.float().flatten(), dim=0).item()
        assert 0.995 < cosine < 1 + 1e-4
        assert 0.97 < (one.float().norm() / other.float().norm()).item() < 1.03


def test_it_is_seen_and_says_its_parity(run_script, held_against) -> None:
    choice = Choice(find("fp8-linear"), {})
    trial = run_script(BEFORE, [choice])
    assert trial.good and trial.run.withdrawn == [], trial.log
    assert choice.technique.seen(trial.run) is True
    checks = held_against(BEFORE)([choice])
    for check in checks:  # passing or not is a result here, not a promise: a plan that fails drops it
        print(check)
    assert checks


@pytest.mark.parametrize("width", [1024, 2048, 4096, 8192])
def test_what_a_layer_takes(width: int) -> None:
    """No judgement, figures only: forward and backward of one block in bf16, plain and in 8 bits, both compiled."""
    block = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).cuda().bfloat16()
    x = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for compiled in (False, True):
        seconds = []
        for is_converted in (False, True):
            torch._dynamo.reset()
            for layer in block[::2]:
                (convert if is_converted else restore)(layer)
            call = torch.compile(block) if compiled else block
            seconds.append(_seconds(lambda call=call: call(x).sum().backward()))
        print(f"width {width}, {'compiled' if compiled else 'eager'}: {1e3 * seconds[0]:.2f} ms in bf16,"
              f" {1e3 * seconds[1]:.2f} ms in fp8")  # fmt: skip


def _seconds(step) -> float:
    found = []
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[10:])
