"""The kernels for batch norm, run line by line by Triton's interpreter, and compiled for a GPU, which needs none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

MODULE, BESIDE = "hotlap.parts.norm_kernels", ["hotlap.parts.pixel_kernels"]
SIZES = [(77, 5), (1000, 64), (4096, 130), (40000, 3)]
MARKED = [(77, 8), (1000, 64), (4096, 136), (20000, 16)]  # eight channels to a byte


def made(rows: int, channels: int, count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, channels).bfloat16() for _ in range(count)]


def sums_of(given: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    return torch.stack([given.float().sum(0), (given.float() * apart).sum(0)])


def marks_of(out: torch.Tensor) -> torch.Tensor:
    above = (~(out <= 0)).view(len(out), -1, 8).int() << torch.arange(8)
    return above.sum(2).to(torch.uint8)


def shares_of(totals: torch.Tensor, inverses: torch.Tensor, rows: int) -> list[torch.Tensor]:
    """What follows from sums of gradients, and of gradients times deviations of one kind of pixels or two: for biases
    and weights, and what is taken away."""
    for_affine = torch.cat([totals[:1], totals[1:] * inverses, *([totals[:1]] if len(inverses) > 1 else [])])
    return [for_affine, totals[1:] * inverses.square() / rows, totals[0] / rows]


@pytest.mark.parametrize("shift", [0.0, 100.0])
@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_statistics(rows: int, channels: int, is_known: bool, shift: float, interpreted: ModuleType) -> None:
    """Of pixels, or by sums that are there already; running ones are moved on."""
    x, weight = (made(rows, channels, 1)[0] + shift).bfloat16(), torch.rand(channels)
    exact, running = x.double(), [torch.randn(channels), torch.rand(channels)]
    expected = [exact.mean(0), exact.var(0, correction=0)]
    moved = [one.double().lerp(now, 0.3) for one, now in zip(running, [expected[0], exact.var(0)], strict=True)]
    if is_known:
        apart = x.float() - 7
        halves = [sums_of(half, half) for half in apart.tensor_split(2)]
        given = (torch.stack(halves), torch.full((channels,), 7.0), rows)
        mean, inverse, scale = interpreted.statistics_of_sums(*given, weight, *running, 0.3, 1e-3)
    else:
        mean, inverse, scale = interpreted.statistics(x, weight, *running, 0.3, 1e-3)
    close = {"rtol": 1e-2, "atol": 1e-2} if is_known and shift else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(mean.double(), expected[0], **close)
    torch.testing.assert_close(inverse.double(), torch.rsqrt(expected[1] + 1e-3), **close)
    torch.testing.assert_close(scale, inverse * weight, rtol=1e-6, atol=0)
    torch.testing.assert_close([one.double() for one in running], moved, **close)


def test_pixels_that_do_not_vary(interpreted: ModuleType) -> None:
    mean, inverse, scale = interpreted.statistics(torch.full((100, 8), 3.0), None, None, None, 0.1, 0.25)
    assert torch.equal(inverse, torch.full((8,), 2.0)) and torch.equal(scale, inverse)
    assert torch.equal(mean, torch.full((8,), 3.0))


@pytest.mark.parametrize("is_rectified", [True, False])
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_sums_of_gradients(rows: int, channels: int, is_rectified: bool, interpreted: ModuleType) -> None:
    grad, x = made(rows, channels, 2)
    mean, inverse, scale, shift = torch.randn(4, channels)
    apart = x.float() - mean
    passed = torch.where(apart * scale + shift <= 0, 0.0, grad) if is_rectified else grad
    totals, along, level = shares_of(sums_of(passed, apart), inverse[None], rows)
    found = interpreted.grad_sums(grad, x, mean, inverse, scale, shift, is_rectified)
    torch.testing.assert_close(list(found), [totals, along[0], level], rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("has_second", [True, False])
@pytest.mark.parametrize("has_other", [True, False])
@pytest.mark.parametrize(("rows", "channels"), MARKED)
def test_gradients_of_two_readers(
    rows: int, channels: int, has_other: bool, has_second: bool, interpreted: ModuleType
) -> None:
    grad, other, out, x, added = made(rows, channels, 5)
    mean, inverse, added_mean, added_inverse = torch.randn(4, channels)
    both = (grad.float() + other.float()).bfloat16() if has_other else grad
    expected = torch.where(out <= 0, 0.0, both)
    second = (added, added_mean, added_inverse) if has_second else (None,) * 3
    given = (grad, other if has_other else None, marks_of(out), x, mean, inverse)
    passed, *found = interpreted.joined_sums(*given, *second)
    torch.testing.assert_close(passed, expected, rtol=2**-7, atol=0)  # the interpreter cuts off, a GPU rounds
    assert torch.equal(passed == 0, expected == 0)
    totals = [sums_of(passed, x.float() - mean)]
    totals += [sums_of(passed, added.float() - added_mean)[1:]] if has_second else []
    inverses = torch.stack([inverse, added_inverse][: 1 + has_second])
    torch.testing.assert_close(found, shares_of(torch.cat(totals), inverses, rows), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", ["_sums", "_grad_sums", "_joined_sums"])
def test_they_compile_for_a_gpu(name: str, compiled_for_a_gpu: Callable[..., str]) -> None:
    """And read several channels at once, ahead of what is worked on."""
    types = dict.fromkeys(("x", "grad", "other", "passed", "added"), "*bf16") | {"marks": "*u8"}
    constants = {"ROWS": 32, "CHANNELS": 64, "STAGES": 3, "IS_RECTIFIED": True, "HAS_OTHER": True, "HAS_SECOND": True}
    code = compiled_for_a_gpu(MODULE, name, types, constants)
    assert "cp.async" in code and "ld.shared.v4" in code


@pytest.mark.parametrize("name", ["_statistics", "_add_up"])
def test_what_adds_up_compiles_for_a_gpu(name: str, compiled_for_a_gpu: Callable[..., str]) -> None:
    types = {"begin": "*bf16", "runs": "i32", "eps": "fp32", "momentum": "fp32"}
    constants = {"COUNT": 3, "RUNS": 128, "CHANNELS": 16, "HAS_WEIGHT": True, "IS_RUNNING": True}
    assert "ld.global" in compiled_for_a_gpu(MODULE, name, types, constants)
