"""The kernels for the start of an image network, run line by line by Triton's interpreter, and compiled for a GPU,
which needs none."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hotlap.parts import image_start
from hotlap.parts.image_stem import convolve_blocks

MODULE, BESIDE = "hotlap.parts.image_start_kernels", ["hotlap.parts.start_convolution_kernels"]
LASTING = {"memory_format": torch.channels_last}
WINDOWS = [(3, 2, 1, 8, 8), (3, 2, 1, 9, 7), (3, 1, 1, 5, 6), (3, 2, 0, 9, 10), (5, 3, 2, 11, 10), (2, 1, 0, 4, 6)]
LOW = torch.float16  # numpy has it, so that the interpreter rounds as a GPU does


def made(*shape: int) -> Tensor:
    return torch.randn(shape).to(LOW).contiguous(**LASTING)


def wide(channels: Tensor) -> Tensor:
    return channels.view(1, -1, 1, 1)


@pytest.mark.parametrize("channels", [4, 5, 70])
@pytest.mark.parametrize(("side", "stride", "padding", "high", "broad"), WINDOWS)
def test_windows_look_at_what_is_normed(
    side: int, stride: int, padding: int, high: int, broad: int, channels: int, interpreted: ModuleType
) -> None:
    """Some factors are below zero, one is zero; some pixels are equal, some without end, and some not a number."""
    torch.manual_seed(0)
    y, (mean, scale, shift) = made(2, channels, high, broad), torch.randn(3, channels)
    scale[1], scale[2], shift[2], mean[3] = -1.5, 0.0, 1.0, float("nan")
    y[:, 1] = y[:, 1].round()
    y[0, 0, 1, 1], y[1, 0, 1, 1], y[1, 1, 2, 2] = float("inf"), float("-inf"), -0.0
    pixels = torch.where(wide(scale) < 0, -y, y)
    pixels[:, 2] = 0.0
    _, at = functional.max_pool2d(pixels, side, stride, padding, return_indices=True)
    chosen = y.flatten(2).gather(2, at.flatten(2)).view(at.shape)
    right = ((chosen.float() - wide(mean)) * wide(scale) + wide(shift)).relu().to(LOW)
    out, kept = (torch.full_like(right, 7.0, **LASTING) for _ in range(2))
    place = torch.full_like(out, 99, dtype=torch.int8)
    interpreted.find(y, mean, scale, shift, side, stride, padding, out, place, kept)
    torch.testing.assert_close(out, right, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(image_start.pixels_at(place, broad, side, stride, padding), at)
    assert torch.equal(kept, chosen)


@pytest.mark.parametrize("has_other", [True, False])
@pytest.mark.parametrize("channels", [5, 64, 130])
def test_what_passes_and_its_sums(channels: int, has_other: bool, interpreted: ModuleType) -> None:
    torch.manual_seed(0)
    grad, other, kept = (made(3, channels, 9, 7) for _ in range(3))
    mean, scale, shift = torch.randn(3, channels)
    apart = kept.float() - wide(mean)
    both = (grad.float() + other.float()).to(LOW) if has_other else grad
    right = torch.where((apart * wide(scale) + wide(shift)).to(LOW) <= 0, 0.0, both)
    passed = torch.full_like(kept, 7.0)
    sums = interpreted.passed_sums(grad, other if has_other else None, kept, mean, scale, shift, passed)
    assert torch.equal(passed, right)
    expected = torch.stack([one.sum((0, 2, 3)) for one in (right.float(), right.float() * apart)])
    torch.testing.assert_close(sums, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("channels", "inputs", "reach"), [(8, 16, 4), (70, 8, 2), (5, 48, 3), (16, 8, 1)])
@pytest.mark.parametrize(("high", "broad"), [(8, 8), (9, 7), (4, 6)])
def test_weights(
    high: int, broad: int, channels: int, inputs: int, reach: int, interpreted: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """By several programs, of which each begins somewhere in an image, and the last have nothing left."""
    torch.manual_seed(0)
    monkeypatch.setattr(interpreted, "_PIXELS", 16)
    monkeypatch.setattr(interpreted, "_PROGRAMS", 22)
    x, y = made(3, inputs, high + reach - 1, broad + reach - 1), made(3, channels, high, broad)
    mean, along, shared, scale = by = torch.rand(4, channels)
    given = made(*y.shape)
    back = (given.float() - (y.float() - wide(mean)) * wide(along) - wide(shared)) * wide(scale)
    back = back.to(LOW).float()
    right = torch.nn.grad.conv2d_weight(x.float(), (channels, inputs, reach, reach), back)
    weights, biases = interpreted.weight_grads(y, given, x, tuple(by), True)
    torch.testing.assert_close(weights.permute(0, 3, 1, 2), right, rtol=1e-3, atol=2e-2)
    torch.testing.assert_close(biases, back.sum((0, 2, 3)), rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("is_read_twice", [True, False])
@pytest.mark.parametrize("window", [(3, 2, 1), (3, 1, 1)])
def test_a_start_by_kernels(
    window: tuple[int, int, int], is_read_twice: bool, has_bias: bool, interpreted: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Windows that overlap little, and those that overlap much. Gradients are parts of something larger."""
    torch.manual_seed(0)
    monkeypatch.setattr(image_start, "has_kernels", lambda y: True)
    x, weight, bias = made(3, 3, 33, 40), made(8, 3, 7, 7).mul_(0.1), made(8, 1, 1, 1).view(8)
    given = [weight, torch.rand(8) + 0.5, torch.randn(8), *([bias] if has_bias else [])]

    def gradients(start: Callable[..., Any], kind: torch.dtype) -> list[Tensor]:
        mine = [one.to(kind if one.dtype is LOW or kind is torch.float64 else one.dtype) for one in given]
        mine = [one.detach().clone().requires_grad_() for one in mine]
        outs = start(x.to(kind), *mine)
        torch.manual_seed(1)
        larger = [made(3, 16, *one.shape[2:])[:, 8:].to(kind) for one in outs]
        return [outs[0], *torch.autograd.grad(outs, mine, larger)]

    def plain(x: Tensor, weight: Tensor, norm_weight: Tensor, norm_bias: Tensor, bias: Tensor | None = None) -> Any:
        y = convolve_blocks(x, weight, bias, 2, 3)
        out = functional.batch_norm(y, None, None, norm_weight, norm_bias, training=True).relu()
        return (functional.max_pool2d(out, *window),) * (1 + is_read_twice)

    def ours(x: Tensor, weight: Tensor, norm_weight: Tensor, norm_bias: Tensor, bias: Tensor | None = None) -> Any:
        norm = (None, None, norm_weight, norm_bias, 0.1, 1e-5)
        return image_start.image_start((x, weight, bias, 2, 3), norm, window, is_read_twice)

    found = [gradients(plain, torch.float64), gradients(plain, LOW), gradients(ours, LOW)]
    for right, theirs, own in zip(*(one[:4] for one in found), strict=True):
        apart = [float((one.double() - right).norm()) for one in (theirs, own)]
        assert own.dtype is theirs.dtype and apart[1] <= 1.1 * apart[0] + 1e-3 * float(right.norm())
    assert all(own.dtype is LOW and float(own.float().norm()) < 0.5 for own in found[2][4:])  # all but nothing


def test_what_a_gpu_asks_of_operations(interpreted: ModuleType) -> None:
    """Of what the compiler is told about them: sizes, types, and how they lie."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y, image = torch.empty(2, 8, 16, 20).to(LOW).contiguous(**LASTING), torch.empty(2, 16, 19, 23).to(LOW)
        mean = torch.empty(8)
        out, place, kept = image_start._found(y, mean, mean, mean, 3, 2, 1)
        passed, sums = image_start._passed(out, None, kept, mean, mean, mean)
        by = torch.stack([mean] * 4)
        weights, biases = image_start._weighed(y, y, image, by, True)
        convolved, parts, start = image_start._first_convolution(image, weights.permute(0, 3, 1, 2).to(LOW), None)
    assert convolved.shape == y.shape and convolved.stride() == y.stride() and convolved.dtype is LOW
    assert parts.shape[1:] == (2, 8) and start.shape == (8,) and parts.dtype is start.dtype is torch.float32
    for one in (out, place, kept, passed):
        assert one.shape == (2, 8, 8, 10) and one.is_contiguous(**LASTING)
    types = [one.dtype for one in (out, place, kept, passed, sums, weights, biases)]
    assert types == [LOW, torch.int8, LOW, LOW, *[torch.float32] * 3]
    assert (sums.shape, weights.shape, biases.shape) == ((2, 8), (8, 4, 4, 16), (8,))


SIZES = dict.fromkeys(("high", "wide", "made_high", "made_wide", "pixels"), "i32")
WINDOW = {"SIDE": 3, "STRIDE": 2, "PADDING": 1, "ROWS": 8, "CHANNELS": 64}
STEM = {"MADE": 64, "HIGH": 112, "WIDE": 112, "INPUTS": 16, "REACH": 4, "CHANNELS": 64}
TILE = {"HAS_BIAS": True, "PIXELS": 32, "COLUMNS": 256, "TOGETHER": 8, "STAGES": 3}


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
@pytest.mark.parametrize(
    ("name", "constants", "said"),
    [
        ("_find", WINDOW, ["ld.global.v4"]),
        ("_passed_sums", {"HAS_OTHER": True, "STAGES": 3, **WINDOW, "ROWS": 32}, ["cp.async", "st.global.v4"]),
        ("_weight_grads", {**STEM, **TILE}, ["wgmma.mma_async", "cp.async.cg"]),
    ],
)
def test_they_compile_for_a_gpu(
    name: str, constants: dict[str, Any], said: list[str], kind: str, compiled_for_a_gpu: Callable[..., str]
) -> None:
    """And read several channels at once; products are made by units for matrices."""
    low = ("y", "x", "grad", "other", "kept", "passed", *(["out"] if name == "_find" else []))
    types = {**dict.fromkeys(low, f"*{kind}"), "place": "*i8", **SIZES}
    code = compiled_for_a_gpu(MODULE, name, types, constants)
    assert all(one in code for one in said)
