"""The kernels for a GPU, run line by line by Triton's interpreter: the very levels that Pillow gives."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from same_draw import PHOTOS, compared, v2
from test_batched_transforms import ended, exact

from hotlap.parts import resampling
from hotlap.parts.resampling import _Looking

KINDS = ["resized crop", "resized crop, bicubic", "resize to a side", "pad, resize, pad"]
MODULE = "hotlap.parts.resampling_kernels"


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]


@pytest.mark.parametrize("kind", KINDS)
def test_levels_by_kernels(kind: str, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampling, "kernels", lambda device: interpreted)
    monkeypatch.delattr("hotlap.parts.resampling._Resizing.made")  # nobody else is to do it
    assert compared(ended(v2, exact(v2)[kind]), sizes=((40, 30), (9, 7), (20, 90), (33, 47))).largest == 0


def test_without_a_compiler_products_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels cannot be started, which only shows at the first of them."""

    def fails(*args: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(resampling, "_unusable", set())
    monkeypatch.setattr(resampling, "kernels", lambda device: None if resampling._unusable else resampling)
    monkeypatch.setattr(_Looking, "made", fails)
    assert compared(ended(v2, exact(v2)["resized crop"]), sizes=PHOTOS).largest == 0
    assert resampling._unusable == {"cpu"}


@pytest.mark.parametrize("is_across", [True, False])
def test_they_compile_for_a_gpu(is_across: bool) -> None:
    """Which needs none, and is more than the interpreter asks."""
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    from hotlap.parts.resampling_kernels import _resampled

    pointers = {"flat": "*u8", "place": "*i32", "weight": "*i32", "made": "*u8"}
    pointers |= dict.fromkeys(("start", "plane", "stride", "taken", "counts"), "*i64")
    numbers = dict.fromkeys(("channels", "height", "width", "most_taps"), "i32")
    constants = {"IS_ACROSS": is_across, "HIGH": 16, "WIDE": 64, "BITS": 22}
    given = {**pointers, **numbers, **dict.fromkeys(constants, "constexpr")}
    source = triton.compiler.ASTSource(_resampled, {name: given[name] for name in _resampled.arg_names}, constants)
    assert ".visible .entry" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
