"""The kernel for the first convolution of an image network, run line by line by Triton's interpreter, and compiled for
a GPU, which needs none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from hotlap.parts.image_stem import blocked

MODULE = "hotlap.parts.start_convolution_kernels"
LASTING = {"memory_format": torch.channels_last}
LOW = torch.float16  # numpy has it, so that the interpreter rounds as a GPU does
SIZES = [(3, 11, 11), (2, 9, 14), (5, 4, 5), (1, 4, 4)]  # of which none fills the last tile
WINDOWS = [(64, 16, 4), (8, 8, 1), (70, 8, 2), (5, 16, 3), (130, 48, 1), (20, 24, 2)]


def made(*shape: int) -> Tensor:
    return torch.randn(shape).to(LOW).contiguous(**LASTING)


def among_what_is_no_number(x: Tensor) -> Tensor:
    """The same, in the middle of memory that nobody may read."""
    number = len(x)
    around = torch.full((number + 2, *x.shape[1:]), float("nan"), dtype=x.dtype).contiguous(**LASTING)
    around[1 : 1 + number] = x
    return around[1 : 1 + number]


def statistics(sums: Tensor, start: Tensor, pixels: int) -> tuple[Tensor, Tensor]:
    apart, squares = sums.double().sum(0) / pixels
    return apart + start, squares - apart * apart


def assert_is_right(found: tuple[Tensor, ...], x: Tensor, weight: Tensor, bias: Tensor | None, runs: int) -> None:
    y, sums, start = found
    right = conv2d(x.double(), weight.double(), None if bias is None else bias.double())
    assert y.shape == right.shape and y.dtype is x.dtype and y.is_contiguous(**LASTING)
    torch.testing.assert_close(y.double(), right, rtol=2e-3, atol=2e-3)
    assert sums.shape == (runs, 2, y.shape[1])
    torch.testing.assert_close(start.double(), right[0, :, 0, 0], rtol=1e-4, atol=1e-4)
    given = y.double()
    mean, variance = statistics(sums, start, y.numel() // y.shape[1])
    torch.testing.assert_close(mean, given.mean((0, 2, 3)), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(variance, given.var((0, 2, 3), correction=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("number", "high", "wide"), SIZES)
@pytest.mark.parametrize(("channels", "inputs", "reach"), WINDOWS)
def test_it_convolves_and_sums_up(
    channels: int, inputs: int, reach: int, number: int, high: int, wide: int, has_bias: bool, interpreted: ModuleType
) -> None:
    """By several programs, of which each begins somewhere in an image, and the last may have nothing left."""
    torch.manual_seed(0)
    x, weight = among_what_is_no_number(made(number, inputs, high, wide)), made(channels, inputs, reach, reach)
    weight /= (inputs * reach * reach) ** 0.5
    bias = torch.randn(channels).to(LOW) if has_bias else None
    assert interpreted.is_fit(x, weight, bias)
    tiling = interpreted.Tiling(pixels=64, warps=2, stages=1, programs=15)
    found = interpreted.convolved(x, weight, bias, tiling)
    seen = number * high * wide - (reach - 1) * (wide + 1)
    blocks = -(-channels // 64)
    assert_is_right(found, x, weight, bias, min(15 // blocks, -(-seen // 64)))


@pytest.mark.parametrize(("pixels", "warps"), [(64, 4), (128, 8), (128, 4)])
def test_it_is_the_same_for_all_tilings(pixels: int, warps: int, interpreted: ModuleType) -> None:
    """By one program, and by more than there are tiles."""
    torch.manual_seed(0)
    x, weight = among_what_is_no_number(made(2, 16, 20, 21)), made(64, 16, 4, 4) / 16
    for programs in (1, 100):
        tiling = interpreted.Tiling(pixels, warps, 2, programs)
        seen = 2 * 20 * 21 - 3 * 22
        assert_is_right(
            interpreted.convolved(x, weight, None, tiling), x, weight, None, min(programs, -(-seen // pixels))
        )


def test_sums_far_from_zero(interpreted: ModuleType) -> None:
    """A mean of a thousand deviations: squares of the pixels themselves would say nothing about these."""
    torch.manual_seed(0)
    x, weight = made(4, 16, 15, 15), made(64, 16, 4, 4) / 1024
    bias = torch.full((64,), 30.0).to(LOW)
    y, *told = interpreted.convolved(x, weight, bias)
    mean, variance = statistics(*told, 4 * 12 * 12)
    given = y.double()
    assert float(given.std()) < 0.03 < 1.0 < float(given.min())
    torch.testing.assert_close(mean, given.mean((0, 2, 3)), rtol=1e-7, atol=1e-6)
    torch.testing.assert_close(variance, given.var((0, 2, 3), correction=0), rtol=1e-4, atol=0)


def test_a_convolution_that_strides(interpreted: ModuleType) -> None:
    """As networks have it: three channels, by sevens, every other pixel."""
    torch.manual_seed(0)
    image, weight = made(2, 3, 23, 26), made(64, 3, 7, 7) / 12
    x, taps = blocked(image, weight, 2, 3)
    assert interpreted.is_fit(x, taps)
    y, *_ = interpreted.convolved(x, taps, None)
    right = conv2d(image.double(), weight.double(), None, 2, 3)
    torch.testing.assert_close(y.double(), right, rtol=2e-3, atol=2e-3)


def test_what_it_does_not_take() -> None:
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from hotlap.parts.start_convolution_kernels import is_fit

    x, weight = made(2, 16, 9, 9), made(8, 16, 4, 4)
    assert is_fit(x, weight) and is_fit(x, weight, torch.zeros(8))
    others = [
        (x.float(), weight.float()),  # precision that it would lose
        (x, weight.bfloat16()),
        (x.contiguous(), weight),  # channels apart
        (x, weight.contiguous()),
        (made(2, 12, 9, 9), made(8, 12, 4, 4)),  # channels that no eight make up
        (x, made(8, 8, 4, 4)),  # groups
        (x, made(8, 16, 5, 5)),  # windows too large
        (x, made(8, 16, 4, 3)),
        (made(2, 64, 9, 9), made(8, 64, 4, 4)),
        (made(2, 16, 3, 9), weight),  # no window at all
        (torch.empty(1, dtype=LOW).expand(1 << 20, 16, 115, 115), weight),
    ]
    assert not any(is_fit(*one) for one in others)


STEM = {"MADE": 64, "HIGH": 112, "WIDE": 112, "INPUTS": 16, "REACH": 4, "CHANNELS": 64, "COLUMNS": 64, "PIXELS": 64}


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize(("stages", "said"), [(1, "ld.global.v4"), (2, "cp.async.cg.shared.global")])
def test_it_compiles_for_a_gpu(
    stages: int, said: str, has_bias: bool, kind: str, compiled_for_a_gpu: Callable[..., str]
) -> None:
    """And reads and writes several channels at once; products are made by units for matrices, and no thread asks
    another for sums once the last of a tile is made."""
    types: dict[str, Any] = {**dict.fromkeys(("x", "weight", "bias", "y"), f"*{kind}"), "pixels": "i32"}
    tile = {"TOGETHER": 8, "STAGES": stages, "WARPS": 4, "HAS_BIAS": has_bias}
    code = compiled_for_a_gpu(MODULE, "_convolved", types, STEM | tile)
    assert all(one in code for one in ("wgmma.mma_async", "st.global.v4", said))
    after = code[code.rindex("wgmma.wait_group") :]
    of_a_tile = after[: after.index("bra")]
    assert "st.global.v4" in of_a_tile and "shfl" not in of_a_tile
