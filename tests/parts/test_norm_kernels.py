"""The kernels for batch norm, run line by line by Triton's interpreter, and compiled for a GPU, which needs none."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

import pytest
import torch

MODULE = "hotlap.parts.norm_kernels"
SIZES = [(77, 5), (1000, 64), (4096, 130), (40000, 3)]


@pytest.fixture
def kernels() -> ModuleType:
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    return importlib.import_module(MODULE)


@pytest.fixture
def interpreted(kernels: ModuleType) -> ModuleType:
    if os.environ.get("TRITON_INTERPRET") != "1":  # triton's own functions look at it as they are imported
        pytest.skip("kernels are not interpreted: set TRITON_INTERPRET=1")
    return kernels


def made(rows: int, channels: int, count: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(rows, channels).bfloat16() for _ in range(count)]


def sums_of(given: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    return torch.stack([given.float().sum(0), (given.float() * apart).sum(0)])


@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_sums_of_pixels(rows: int, channels: int, interpreted: ModuleType) -> None:
    (x,), start = made(rows, channels, 1), torch.randn(channels)
    found = interpreted.sums(x, start).sum(0)
    torch.testing.assert_close(found, sums_of(x.float() - start, x.float() - start), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("is_rectified", [True, False])
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_sums_of_gradients(rows: int, channels: int, is_rectified: bool, interpreted: ModuleType) -> None:
    grad, x = made(rows, channels, 2)
    mean, scale, shift = torch.randn(3, channels)
    apart = x.float() - mean
    passed = torch.where(apart * scale + shift <= 0, 0.0, grad) if is_rectified else grad
    found = interpreted.grad_sums(grad, x, mean, scale, shift, is_rectified).sum(0)
    torch.testing.assert_close(found, sums_of(passed, apart), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("has_other", [True, False])
@pytest.mark.parametrize(("rows", "channels"), SIZES)
def test_gradients_of_two_readers(rows: int, channels: int, has_other: bool, interpreted: ModuleType) -> None:
    grad, other, out, x = made(rows, channels, 4)
    mean = torch.randn(channels)
    both = (grad.float() + other.float()).bfloat16() if has_other else grad
    expected = torch.where(out <= 0, 0.0, both)
    passed, sums = interpreted.joined_sums(grad, other if has_other else None, out, x, mean)
    torch.testing.assert_close(passed, expected, rtol=2**-7, atol=0)  # the interpreter cuts off, a GPU rounds
    assert torch.equal(passed == 0, expected == 0)
    torch.testing.assert_close(sums.sum(0), sums_of(passed, x.float() - mean), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", ["_sums", "_grad_sums", "_joined_sums"])
def test_they_compile_for_a_gpu(name: str, kernels: ModuleType) -> None:
    """And read several channels at once, ahead of what is worked on."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("kernels are interpreted")
    import triton
    from triton.backends.compiler import GPUTarget

    kernel = getattr(kernels, name)
    names = kernel.arg_names
    types = dict.fromkeys(("x", "grad", "other", "out", "passed"), "*bf16") | {"rows": "i32", "channels": "i32"}
    types |= {"out": "*fp32"} if name != "_joined_sums" else {}
    constants = {"ROWS": 32, "CHANNELS": 64, "STAGES": 3, "IS_RECTIFIED": True, "HAS_OTHER": True}
    constants = {one: value for one, value in constants.items() if one in names}
    signature = {one: "constexpr" if one in constants else types.get(one, "*fp32") for one in names}
    even = {(names.index(one),): [["tt.divisibility", 16]] for one in names if one not in constants and one != "rows"}
    source = triton.compiler.ASTSource(kernel, signature, constants, even)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert "cp.async" in code and "ld.shared.v4" in code
