"""Products with sums, run line by line by Triton's interpreter, and compiled for a GPU, which needs none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn import functional

from hotlap.parts import joined_norm, summed_convolution, summed_norm

MODULE = "hotlap.parts.product_kernels"
BESIDE = ["hotlap.parts.norm_kernels", "hotlap.parts.pixel_kernels"]
SIZES = [(640, 64, 256), (77, 64, 64), (300, 128, 64), (200, 256, 64), (1, 64, 128)]


@pytest.mark.parametrize("shift", [0.0, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # the interpreter multiplies no bf16
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SIZES)
def test_products(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, shift: float, interpreted: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Some programs take several tiles; sums are of what is stored."""
    monkeypatch.setattr(interpreted, "_PROGRAMS", 6)
    torch.manual_seed(0)
    x, weight = (torch.randn(rows, inputs) + shift).to(dtype), (torch.randn(outputs, inputs) / inputs**0.5).to(dtype)
    out, sums, start = interpreted.summed_product(x, weight)
    exact = x.double() @ weight.double().T
    torch.testing.assert_close(out.double(), exact, rtol=2**-7, atol=2**-6)  # the interpreter cuts off, a GPU rounds
    torch.testing.assert_close(start.double(), exact[0], rtol=1e-4, atol=1e-3)
    apart = out.double() - start.double()
    assert 1 <= len(sums) <= 6
    expected = torch.stack([apart.sum(0), apart.square().sum(0)])
    torch.testing.assert_close(sums.sum(0).double(), expected, rtol=1e-3, atol=0.02)


@pytest.mark.parametrize("is_gained", [True, False])
def test_a_convolution_and_its_norm_by_kernels(
    is_gained: bool, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and running statistics are torch's own."""
    for module in (summed_convolution, summed_norm):
        monkeypatch.setattr(module, "has_kernels", lambda x: True)
    torch.manual_seed(0)
    last = {"memory_format": torch.channels_last}
    x = (torch.randn(4, 64, 5, 7) + 1).contiguous(**last).requires_grad_(is_gained)
    weight = (torch.randn(64, 64, 1, 1) / 8).contiguous(**last).requires_grad_()
    affine = [torch.rand(64).requires_grad_() for _ in range(2)]
    theirs, ours = ([torch.zeros(64), torch.ones(64)] for _ in range(2))
    plain = functional.batch_norm(functional.conv2d(x, weight), *theirs, *affine, True, 0.3, 1e-5)
    made, *sums = summed_convolution.summed_convolution(x, weight)
    own = summed_norm.batch_norm(made, *ours, *affine, 0.3, 1e-5, sums=sums)
    given, back = [*([x] if is_gained else []), weight, *affine], torch.randn_like(plain)
    found, expected = ([one, *torch.autograd.grad(one, given, back)] for one in (own, plain))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("is_expanded", [True, False])
def test_what_does_not_lie_side_by_side(
    is_expanded: bool, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and running statistics that are columns of something, or one number for all."""
    monkeypatch.setattr(summed_norm, "has_kernels", lambda x: True)
    torch.manual_seed(0)
    x, columns = torch.randn(4, 8, 5, 7).contiguous(memory_format=torch.channels_last), torch.rand(8, 4)
    theirs, ours = columns.clone(), columns.clone()
    weight, bias = (torch.rand(1).expand(8), torch.rand(1).expand(8)) if is_expanded else columns.clone()[:, 1:3].T
    plain = functional.batch_norm(x, theirs[:, 0], theirs[:, 1], weight, bias, True, 0.3, 1e-5)
    own = summed_norm.batch_norm(x, ours[:, 0], ours[:, 1], weight, bias, 0.3, 1e-5)
    torch.testing.assert_close([own, ours], [plain, theirs], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 256), (64, 64), (128, 512), (256, 64)])
def test_it_compiles_for_a_gpu(inputs: int, outputs: int, compiled_for_a_gpu: Callable[..., str]) -> None:
    """Reads several channels at once, ahead of what is worked on, and multiplies with matrix units. Nobody waits for
    sums in between: lanes are asked no more often than at the end and at the beginning."""
    kernels: Any = pytest.importorskip(MODULE)
    types = dict.fromkeys(("x", "weight", "out"), "*bf16") | {"runs": "i32"}
    tile = kernels._tile(inputs, outputs)
    constants = {"MADE": outputs, "DEPTH": inputs, "IS_EVEN": True, "WARPS": 4, **tile}
    code = compiled_for_a_gpu(MODULE, "_summed_product", types, constants)
    assert "cp.async" in code and "wgmma" in code and "st.global.v4" in code


@pytest.mark.parametrize("has_second", [True, False])
@pytest.mark.parametrize("has_other", [True, False])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(256, 64, 128), (77, 128, 64), (1000, 64, 64)])
def test_what_comes_back_through_products(
    rows: int, inputs: int, outputs: int, has_other: bool, has_second: bool, interpreted: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As if the product were written, and summed then."""
    norm_kernels: Any = sys.modules[BESIDE[0]]
    monkeypatch.setattr(interpreted, "_PROGRAMS", 6)
    torch.manual_seed(0)
    grad, weight = torch.randn(rows, inputs).half(), (torch.randn(inputs, outputs) / 8).half()
    other, x, added = torch.randn(3, rows, outputs).half()
    marks = torch.randint(0, 256, (rows, outputs // 8), dtype=torch.uint8)
    mean, inverse, added_mean, added_inverse = torch.rand(4, outputs)
    given = (marks, x, mean, inverse, *((added, added_mean, added_inverse) if has_second else (None,) * 3))
    found = interpreted.product_joined_sums(grad, weight, other if has_other else None, *given)
    made = (grad.float() @ weight.float()).half()
    expected = norm_kernels.joined_sums(made, other if has_other else None, *given)
    torch.testing.assert_close(found[0], expected[0], rtol=2**-8, atol=2**-8)
    assert torch.equal(found[0] == 0, expected[0] == 0)
    torch.testing.assert_close(list(found[1:]), list(expected[1:]), rtol=1e-2, atol=0.3)


@pytest.mark.parametrize("has_second", [True, False])
def test_the_way_back_compiles_for_a_gpu(has_second: bool, compiled_for_a_gpu: Callable[..., str]) -> None:
    kernels: Any = pytest.importorskip(MODULE)
    tensors = ("grad", "weight", "other", "x", "added", "passed")
    types = {**dict.fromkeys(tensors, "*bf16"), "marks": "*u8", "runs": "i32"}
    how = {"HAS_OTHER": True, "HAS_SECOND": has_second, "IS_EVEN": True}
    code = compiled_for_a_gpu(MODULE, "_product_joined_sums", types, {"MADE": 256, "DEPTH": 64, **how, **kernels._BACK})
    assert "cp.async" in code and "wgmma" in code and "st.global.v4" in code


@pytest.mark.parametrize("is_normed", [True, False])
@pytest.mark.parametrize("readers", [(0,), (1,), (0, 1)])
def test_a_product_of_what_was_added_by_kernels(
    readers: tuple[int, ...], is_normed: bool, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are torch's own."""
    for module in (summed_convolution, summed_norm, joined_norm):
        monkeypatch.setattr(module, "has_kernels", lambda x: True)
    torch.manual_seed(0)
    last = {"memory_format": torch.channels_last}
    x, other = (torch.randn(4, 128, 5, 7).contiguous(**last).requires_grad_() for _ in range(2))
    weight = (torch.randn(64, 128, 1, 1) / 8).contiguous(**last).requires_grad_()
    affine = [torch.rand(128).requires_grad_() for _ in range(4 if is_normed else 2)]
    plain = functional.batch_norm(x, None, None, *affine[:2], True, 0.3, 1e-5)
    beside = functional.batch_norm(other, None, None, *affine[2:], True, 0.1, 1e-3) if is_normed else other
    norms = (None, None, *affine[:2], 0.3, 1e-5, *((None, None, *affine[2:], 0.1, 1e-3) if is_normed else ()))
    out = (plain + beside).relu()
    theirs, ours = (out, functional.conv2d(out, weight)), joined_norm.joined_product(x, other, weight, *norms)
    given = [x, other, *affine, *([weight] if 1 in readers else [])]
    back = [torch.randn_like(one) for one in theirs]
    made = [
        torch.autograd.grad([each[reader] for reader in readers], given, [back[reader] for reader in readers])
        for each in (theirs, ours)
    ]
    torch.testing.assert_close(made[1], made[0], rtol=1e-3, atol=1e-3)
