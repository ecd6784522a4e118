"""The kernels for windows, run line by line by Triton's interpreter, and compiled for a GPU, which needs none."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from test_images_in_graphs import WINDOWS
from torch.nn.functional import max_pool2d

MODULE = "hotlap.parts.window_kernels"


@pytest.mark.parametrize("channels", [4, 5, 130])
@pytest.mark.parametrize(("side", "stride", "padding", "high", "wide"), WINDOWS)
def test_they_find_and_give_back_as_torch_does(
    side: int, stride: int, padding: int, high: int, wide: int, channels: int, interpreted: ModuleType
) -> None:
    levels = torch.randint(0, 5, (2, channels, high, wide)).float()
    levels[0, 0, :4, :4], levels[1, 1, 2, 2] = float("-inf"), float("nan")
    x = levels.requires_grad_()
    plain = max_pool2d(x, side, stride, padding)
    grad = torch.randn_like(plain)
    (theirs,) = torch.autograd.grad(plain, x, grad)
    lasting = {"memory_format": torch.channels_last}
    out, made = (torch.empty_like(one.detach(), **lasting) for one in (plain, x))
    place = torch.empty_like(out, dtype=torch.int8)
    interpreted.find(x.detach().contiguous(**lasting), out, place, side, stride, padding)
    interpreted.give_back(grad.contiguous(**lasting), place, made, side, stride, padding)
    torch.testing.assert_close(out, plain.detach(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(made, theirs)


@pytest.mark.parametrize("kind", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["_find", "_give_back"])
def test_they_compile_for_a_gpu(name: str, kind: str) -> None:
    """And read several channels at once."""
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    kernel = getattr(importlib.import_module(MODULE), name)
    names = kernel.arg_names
    pointers = dict.fromkeys(names[:3], f"*{kind}") | {"place": "*i8"}
    constants = {"SIDE": 3, "STRIDE": 2, "PADDING": 1, "ROWS": 16, "CHANNELS": 64}
    signature = {one: pointers.get(one, "constexpr" if one in constants else "i32") for one in names}
    even = {(names.index(one),): [["tt.divisibility", 16]] for one in (*pointers, "channels")}
    source = triton.compiler.ASTSource(kernel, signature, constants, even)
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
    assert "ld.global.v4" in code and "st.global.v4" in code
