"""The kernels for a GPU, run line by line by Triton's interpreter: the very levels that Pillow gives."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from same_draw import MEAN, PHOTOS, STD, VERSIONS, compared, picture, pil_to_tensor, v2
from test_batched_transforms import ended, exact

from hotlap.parts import batched_transforms, resampling
from hotlap.parts.batched_transforms import Pipeline, recognised
from hotlap.parts.resampling import _Fetching, _Looking

KINDS = ["resized crop", "resized crop, bicubic", "resize to a side", "pad, resize, pad"]
PICKED = ["crop", "crop, padded", "crop, mirrored", "pad, edge", "pad, symmetric", "pads of two colours"]
MODULE = "hotlap.parts.resampling_kernels"


@pytest.mark.parametrize("kind", [*KINDS, *PICKED])
def test_levels_by_kernels(kind: str, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resampling, "kernels", lambda device: interpreted)
    for others in ("_Resizing", "_Picking"):
        monkeypatch.delattr(f"hotlap.parts.resampling.{others}.made")  # nobody else is to do it
    sizes = ((40, 36), (37, 51), (90, 40), (33, 47)) if kind in PICKED else ((40, 30), (9, 7), (20, 90), (33, 47))
    assert compared(ended(v2, exact(v2)[kind]), sizes=sizes).largest == 0


@pytest.mark.parametrize("crop", [v2.RandomCrop(30), v2.RandomResizedCrop((12, 9))], ids=["picked", "resized"])
def test_what_other_stages_leave_behind(
    crop: v2.Transform, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A blur's pixels need not lie in the order of their axes."""
    for module in (resampling, batched_transforms):
        monkeypatch.setattr(module, "kernels", lambda device: interpreted)
    found = compared(v2.Compose([v2.GaussianBlur((5, 9), (0.1, 5.0)), crop, v2.ToTensor()]))
    assert found.same_states and found.largest <= 1.001 and found.mean <= 0.001


@pytest.mark.parametrize("kind", ["resized crop", "crop, padded"])
def test_without_a_compiler_torch_does_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where kernels cannot be started, which only shows at the first of them."""

    def fails(*args: object) -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(resampling, "_unusable", set())
    monkeypatch.setattr(resampling, "kernels", lambda device: None if resampling._unusable else resampling)
    monkeypatch.setattr(_Looking, "made", fails)
    monkeypatch.setattr(_Fetching, "made", fails)
    assert compared(ended(v2, exact(v2)[kind]), sizes=PHOTOS).largest == 0
    assert resampling._unusable == {"cpu"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("is_resized", [True, False])
def test_what_becomes_of_levels_is_looked_up(
    is_resized: bool, version: str, mode: str, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very floats that two more stages would make of them. Crops of tall pictures take their rows first."""
    kind = VERSIONS[version]
    mean, std = (MEAN, STD) if mode == "RGB" else ([0.5], [0.25])
    last = [kind.ToTensor()] if version == "v1" else [kind.ToImage(), kind.ToDtype(torch.float32, scale=True)]
    crops = [kind.RandomResizedCrop((12, 9))] if is_resized else [kind.RandomCrop((12, 9), 4, True, 70)]
    transform = kind.Compose([*crops, kind.RandomHorizontalFlip(), *last, kind.Normalize(mean, std)])
    pictures = [picture(*size, seed=at, mode=mode) for at, size in enumerate(((40, 30), (9, 7), (20, 90), (33, 47)))]
    pipeline = recognised(transform)
    assert isinstance(pipeline, Pipeline)
    recipes = [pipeline.draw(*one.size) for one in pictures]
    images = [pil_to_tensor(one) for one in pictures]
    plainly = pipeline.run(images, recipes, "cpu")
    for module in (resampling, batched_transforms):
        monkeypatch.setattr(module, "kernels", lambda device: interpreted)
    pipeline.run(images, recipes, "cpu")  # makes the table
    monkeypatch.delattr("hotlap.parts.finishing.Floating.run")
    monkeypatch.delattr("hotlap.parts.finishing.Normalising.run")
    made = pipeline.run(images, recipes, "cpu")
    assert torch.equal(made, plainly) and made.is_contiguous()


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("is_across", [True, False])
def test_they_compile_for_a_gpu(is_across: bool, has_table: bool) -> None:
    """Which needs none, and is more than the interpreter asks."""
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    from hotlap.parts.resampling_kernels import _resampled

    made = "*fp32" if has_table else "*u8"
    pointers = {"flat": "*u8", "place": "*i32", "weight": "*i32", "table": made, "made": made}
    pointers |= dict.fromkeys(("start", "plane", "stride", "taken", "counts"), "*i64")
    numbers = dict.fromkeys(("channels", "height", "width", "most_taps"), "i32")
    constants = {"IS_ACROSS": is_across, "HAS_TABLE": has_table, "HIGH": 16, "WIDE": 64, "BITS": 22}
    given = {**pointers, **numbers, **dict.fromkeys(constants, "constexpr")}
    source = triton.compiler.ASTSource(_resampled, {name: given[name] for name in _resampled.arg_names}, constants)
    assert ".visible .entry" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("border", range(4))
def test_picking_compiles_for_a_gpu(border: int, has_table: bool) -> None:
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    from hotlap.parts.resampling_kernels import _picked

    made = "*fp32" if has_table else "*u8"
    given = {"flat": "*u8", "fill": "*u8", "table": made, "made": made}
    given |= dict.fromkeys(("start", "plane", "stride", "views"), "*i64")
    given |= dict.fromkeys(("number", "channels", "height", "width"), "i32")
    constants = {"BORDER": border, "HAS_TABLE": has_table, "HIGH": 16, "WIDE": 64}
    given |= dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(_picked, {name: given[name] for name in _picked.arg_names}, constants)
    assert ".visible .entry" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]
