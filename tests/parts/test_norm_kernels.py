"""The kernels for batch norm, run line by line by Triton's interpreter, and compiled for a GPU, which needs none."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch.nn.functional import batch_norm

from hotlap.parts import summed_norm

MODULE = "hotlap.parts.norm_kernels"
SIZES = [(77, 5), (1000, 64), (4096, 130), (40000, 3)]


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


@pytest.fixture
def by_kernels(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summed_norm, "_has_kernels", lambda x: True)


def gradients(outs: tuple[torch.Tensor, ...], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """What comes back is a part of something larger, as it is before `cat`."""
    torch.manual_seed(1)
    weights = [torch.randn(4, 12, 5, 7).contiguous(memory_format=torch.channels_last)[:, 6:] for _ in outs]
    return [outs[0], *torch.autograd.grad(outs, given, weights)]


def images(is_last: bool) -> torch.Tensor:
    made = torch.randn(4, 6, 5, 7) * 3 + 20
    return (made.contiguous(memory_format=torch.channels_last) if is_last else made).requires_grad_()


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("is_affine", [True, False])
@pytest.mark.parametrize("is_rectified", [True, False])
def test_a_norm_by_kernels(is_rectified: bool, is_affine: bool, is_last: bool, by_kernels: None) -> None:
    x, affine = images(is_last), [torch.rand(6).requires_grad_() for _ in range(2)] if is_affine else [None, None]
    given = [one for one in (x, *affine) if one is not None]
    plain = batch_norm(x, None, None, *affine, training=True)
    own = summed_norm.batch_norm(x, None, None, *affine, 0.1, 1e-5, is_rectified=is_rectified)
    theirs = gradients((plain.relu() if is_rectified else plain,), given)
    torch.testing.assert_close(gradients((own,), given), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("is_last", [True, False])
def test_a_norm_with_something_added_by_kernels(is_last: bool, readers: int, by_kernels: None) -> None:
    x, added, affine = images(is_last), images(is_last), [torch.rand(6).requires_grad_() for _ in range(2)]
    plain = (batch_norm(x, None, None, *affine, training=True) + added - 20).relu()
    pair = summed_norm.joined_batch_norm(x, added - 20, None, None, *affine, 0.1, 1e-5)
    theirs = gradients((plain, plain.view_as(plain))[:readers], [x, added, *affine])
    torch.testing.assert_close(gradients(pair[:readers], [x, added, *affine]), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["_sums", "_grad_sums", "_joined_sums"])
def test_they_compile_for_a_gpu(name: str) -> None:
    """And read several channels at once, ahead of what is worked on."""
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    kernel = getattr(importlib.import_module(MODULE), name)
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
