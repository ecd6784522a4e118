"""The kernels for a GPU, run line by line by Triton's interpreter: the very levels that Pillow gives."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from same_draw import MEAN, PHOTOS, STD, VERSIONS, compared, picture, pil_to_tensor, v2
from test_batched_transforms import ended, exact

from hotlap.parts import batched_transforms, framing_by_kernels, resampling
from hotlap.parts.axis_views import Frame
from hotlap.parts.batched_transforms import Pipeline, recognised
from hotlap.parts.filter_taps import taken_each, taps
from hotlap.parts.framing_by_kernels import told, within
from hotlap.parts.packed_images import Images
from hotlap.parts.resampling import Framing

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
    monkeypatch.setattr(resampling, "framed", fails)
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


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_torchs(seed: int, filter: str, interpreted: ModuleType) -> None:
    """Bit by bit, for crops, flips and pads before and after a resize; and what is not taken weighs nothing."""
    draw = np.random.default_rng(seed)
    frames, sizes = [], draw.integers(1, 90, (12, 2))
    for height, width in sizes.tolist():
        frame = Frame(height, width)
        if draw.random() < 0.5:
            frame.pad(*draw.integers(0, 5, 4).tolist())
        top, left = (int(draw.integers(0, side)) for side in (frame.height, frame.width))
        frame.crop(top, left, *(int(draw.integers(1, side + 1)) for side in (frame.height - top, frame.width - left)))
        frame.flip(*(draw.random(2) < 0.5).tolist())
        frame.resize(*draw.integers(1, 40, 2).tolist())
        frame.flip(*(draw.random(2) < 0.5).tolist())
        if draw.random() < 0.5:
            frame.pad(*draw.integers(0, 5, 4).tolist())
        frames.append(frame)
    images = Images.packed([torch.zeros(1, *size, dtype=torch.uint8) for size in sizes.tolist()], torch.device("cpu"))
    axes = Framing(filter).axes(images, np.array([frame.numbers() for frame in frames]))
    most = [int(taken_each(axis.numbers, filter).max()) for axis in axes]
    shape = (len(frames), 1, axes[0].longest, axes[1].longest)
    given = torch.from_numpy(told(images, images.starts, *axes))
    chosen = framing_by_kernels._nearest(filter, [axis.numbers for axis in axes], torch.device("cpu"))
    for axis, made in zip(axes, interpreted.taps(given, chosen, most, shape, filter), strict=True):
        place, weight = taps(axis.numbers, torch.device("cpu"), filter, True)
        looks = made.looks[: len(frames) * made.most * axis.longest].view(-1, made.most, axis.longest).transpose(1, 2)
        for image, taken in enumerate(taken_each(axis.numbers, filter)):
            weighs = weight[image, :, :taken]
            assert not weight[image, :, taken:].any()
            assert torch.equal(looks[image, :, :taken] >> 32, weighs.long())
            looked = looks[image, :, :taken] & 0xFFFFFFFF
            assert torch.equal(looked[weighs != 0], place[image, :, :taken][weighs != 0])
            assert looked.min() >= 0 and looked.max() < axis.count[image]


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_what_is_not_taken_weighs_nothing(filter: str) -> None:
    """Of any length, to any length: also where a filter's ends fall right onto pixels, and are rounded."""
    for resized in (1, 2, 3, 7, 32, 64, 96, 224):
        view = (1, 0, 0, resized, resized)
        numbers = np.array([(1, 0, 0, n, n, resized, *view) for n in range(1, 5 * resized, 1 + resized // 30)])
        _, weight = taps(numbers, torch.device("cpu"), filter, True)
        hidden = np.arange(weight.shape[2]) >= taken_each(numbers, filter)[:, None]
        assert hidden.any() and not weight.transpose(1, 2)[torch.from_numpy(hidden)].any()


@pytest.mark.parametrize("crop", ["picked", "columns first", "rows first"])
def test_images_are_reached_where_they_lie(crop: str, interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, some of them not as they should: nobody makes one buffer of them. In any parts it is the same,
    whichever axis Pillow takes first of tall ones among the others."""
    monkeypatch.setattr(resampling, "pillow_takes_rows_first", lambda: crop == "rows first")
    torch.manual_seed(0)
    resized = v2.RandomResizedCrop((12, 9), (0.5, 1.0), (0.2, 3.0))
    cropping = v2.RandomCrop((12, 9), 4, True, 70) if crop == "picked" else resized
    pipeline = recognised(v2.Compose([cropping, v2.RandomHorizontalFlip(), v2.PILToTensor()]))
    assert isinstance(pipeline, Pipeline)
    sizes = ((20, 90), (40, 30), (9, 7), (33, 97), (9, 60), (90, 20), (12, 50))
    images = [pil_to_tensor(picture(*size, seed=size[0])) for size in sizes]
    images[1] = images[1].permute(1, 2, 0).contiguous().permute(2, 0, 1)  # colour by colour
    images[3] = images[3][:, ::2, 1:]
    recipes = [pipeline.draw(image.shape[2], image.shape[1]) for image in images]
    plainly = pipeline.run(images, recipes, "cpu")
    orders: list[bool] = []
    if crop != "picked":
        plan = framing_by_kernels.Plan
        monkeypatch.setattr(framing_by_kernels, "Plan", lambda *given: orders.extend(given[3]) or plan(*given))
    monkeypatch.setattr(resampling, "kernels", lambda device: interpreted)
    monkeypatch.delattr("hotlap.parts.packed_images._joined")
    assert torch.equal(pipeline.run(images, recipes, "cpu"), plainly)
    assert {*orders} == {"picked": set(), "columns first": {False}, "rows first": {False, True}}[crop]
    assert crop != "rows first" or orders != sorted(orders), "tall ones lie among the others"
    for bytes_at_most in (1, 2000, 20_000):
        monkeypatch.setattr(framing_by_kernels, "MOST_ELEMENTS", bytes_at_most // 4)
        assert torch.equal(pipeline.run(images, recipes, "cpu"), plainly)


def test_parts_keep_to_the_bound() -> None:
    sizes = np.array([5, 3, 9, 1, 1, 1, 30, 2])
    parts = within(sizes, 10)
    assert [sizes[part].tolist() for part in parts] == [[5, 3], [9, 1], [1, 1], [30], [2]]
    assert within(sizes[:0], 10) == [] and within(sizes, 100) == [slice(0, 8)]


KEPT = {"told": "*i32", "told_wide": "*i64", "looks": "*i64", "nearest": "*i32", "source": "*u8", "flat": "*u8"}


def compiled(kernel: Any, constants: dict[str, Any], made: str = "*u8", **options: int) -> str:
    """For a GPU, which needs none, and is more than the interpreter asks."""
    triton = pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from triton.backends.compiler import GPUTarget

    given = {**KEPT, "fill": "*u8", "table": made, "made": made, **dict.fromkeys(constants, "constexpr")}
    signature = {name: given.get(name, "i32") for name in kernel.arg_names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    text: str = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert ".visible .entry" in text
    return text


@pytest.mark.parametrize("support", [0, 1, 2])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("is_across", [True, False])
def test_they_compile_for_a_gpu(is_across: bool, is_last: bool, support: int) -> None:
    """Rows between two passes begin where four levels are loaded at once."""
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from hotlap.parts.resampling_kernels import ACROSS, DOWN, _resampled

    tile = ACROSS if is_across else DOWN
    ways = {"IS_ACROSS": is_across, "IS_LAST": is_last, "HAS_TABLE": is_last, "SUPPORT": support, "IN_FOURS": True}
    constants = {**ways, "HIGH": tile.high, "WIDE": tile.wide, "BITS": 22}
    text = compiled(_resampled, constants, "*fp32" if is_last else "*u8", num_warps=tile.warps)
    assert ("st.global.v4.b32" in text) == (is_last and not is_across)
    each = tile.high * tile.wide // (32 * tile.warps) if is_across or not is_last else 0
    assert text.count("ld.global.b8") == each, "one by one where nothing is aligned"
    if is_across or is_last:
        assert "bar" not in re.findall(r"^\s+([a-z]+)\.", text, re.MULTILINE), "threads lie as they look"


@pytest.mark.parametrize("support", [0, 1, 2])
def test_no_product_and_sum_of_a_weight_are_one(support: int) -> None:
    """Which would round once where torch rounds twice."""
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from hotlap.parts.resampling_kernels import _taps

    constants = {"SUPPORT": support, "PLACES": 128, "BITS": 22}
    assert "fma" not in compiled(_taps, constants, enable_fp_fusion=False)
    assert ("fma.rn.f64" in compiled(_taps, constants, enable_fp_fusion=True)) == (support > 0)


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("border", range(4))
def test_picking_compiles_for_a_gpu(border: int, has_table: bool) -> None:
    pytest.importorskip("triton", reason="triton is not there: pip install triton")
    from hotlap.parts.resampling_kernels import _picked

    constants = {"BORDER": border, "HAS_TABLE": has_table, "HIGH": 16, "WIDE": 64}
    compiled(_picked, constants, "*fp32" if has_table else "*u8", enable_fp_fusion=False)
