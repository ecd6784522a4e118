"""Pillow's resize of levels as Triton kernels: one finds out where each place of both axes looks and with what weights,
one goes over columns or rows and looks at those few alone. Where nothing is resized one kernel picks the pixels. The
last one may look up what becomes of each level, so that no other kernel need touch them.

What they must know of each image is a row of 32 numbers, `told`; see `framing_by_kernels.told`. Places within one
channel of an image fit 32 bits. Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hotlap.parts.exact_products import WEIGHT_BITS

_BORDERS = {"constant": 1, "reflect": 2, "symmetric": 3}  # else the nearest pixel
_SUPPORT = {"nearest": 0, "bilinear": 1, "bicubic": 2}
_PICKED_HIGH, _PICKED_WIDE, _PLACES = 16, 64, 128


class Tile(NamedTuple):
    """What a program makes at once. A thread of `across` has one column and all rows, one of `down` some neighbouring
    columns: so what each place looks at is loaded once for many pixels."""

    high: int
    wide: int
    warps: int
    turns: int  # tiles that a program makes, one below the other, where all images are alike


ACROSS, DOWN = Tile(8, 64, 1, 2), Tile(8, 128, 1, 2)  # among the fastest of ten on one H200, for photos of 500 x 375


class Batch(NamedTuple):
    """Images at addresses of their own, and what is made of them: N, C, H, W."""

    flat: Tensor
    told: Tensor
    made: Tensor
    table: Tensor | None  # C, 256: what becomes of each level


class Taps(NamedTuple):
    """For each place of an axis, `most` for each image or fewer: N, most, length, of weights and places: the upper and
    the lower half of 64 bits."""

    looks: Tensor
    most: int
    filter: str


def taps(told: Tensor, nearest: Tensor | None, most: list[int], shape: torch.Size, filter: str) -> list[Taps]:
    """Of rows and of columns, of which `most` places weigh something at most. `nearest` (2, N, longest): the only
    place, where that is the filter."""
    number, _, height, width = shape
    columns_at = -(-number * most[0] * height // 2) * 2  # vectors of both begin where vectors may
    looks = torch.empty(columns_at + number * most[1] * width, dtype=torch.int64, device=told.device)
    _taps[number, 2, triton.cdiv(max(height, width), _PLACES)](
        told, told if nearest is None else nearest, looks, number, columns_at, *most, height, width,
        0 if nearest is None else nearest.shape[2], SUPPORT=_SUPPORT[filter], PLACES=_PLACES, BITS=WEIGHT_BITS,
        enable_fp_fusion=False, num_warps=4,
    )  # fmt: skip
    return [Taps(looks, most[0], filter), Taps(looks[columns_at:], most[1], filter)]


def resampled(
    batch: Batch, between: Tensor, taps: Taps, images: slice, extent: tuple[float, int], is_across: bool, is_last: bool,
    tile: Tile | None = None,
) -> None:  # fmt: skip
    """Columns, or rows, of those `images` in the order that they are told in: from the images to `between`, or where it
    `is_last` from there to what is made. `extent`: rows to be made of one image, in the mean, and columns at most."""
    _, channels, height, width = batch.made.shape
    tile = tile or (ACROSS if is_across else DOWN)
    tiles = triton.cdiv(extent[1], tile.wide)
    runs = max(1, round(extent[0] / (tile.high * tile.turns)))
    has_table = is_last and batch.table is not None
    _resampled[(tiles * runs * channels * (images.stop - images.start),)](
        between if is_last else batch.flat, batch.told, batch.told.view(torch.int64), taps.looks,
        batch.table if has_table else batch.made, batch.made if is_last else between,
        images.start, channels, height, width, taps.most, tiles, runs,
        IS_ACROSS=is_across, IS_LAST=is_last, HAS_TABLE=has_table, SUPPORT=_SUPPORT[taps.filter],
        HIGH=tile.high, WIDE=tile.wide, BITS=WEIGHT_BITS, IN_FOURS=width % 4 == 0, num_warps=tile.warps,
    )  # fmt: skip


def picked(batch: Batch, border: str | None, fill: Tensor) -> None:
    """What the views of rows and columns show of each image, in the places that `axis_views.places` gives. `fill` (C):
    the level of what lies outside, where the border is constant."""
    number, channels, height, width = batch.made.shape
    grid = (number * channels, triton.cdiv(height, _PICKED_HIGH), triton.cdiv(width, _PICKED_WIDE))
    _picked[grid](
        batch.flat, batch.told, batch.told.view(torch.int64), fill,
        batch.made if batch.table is None else batch.table, batch.made, channels, height, width,
        BORDER=_BORDERS.get(border or "", 0), HAS_TABLE=batch.table is not None, HIGH=_PICKED_HIGH, WIDE=_PICKED_WIDE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["number", "columns_at", "most_down", "most_across", "height", "width", "longest"])
def _taps(
    told, nearest, looks, number, columns_at, most_down, most_across, height, width, longest,
    SUPPORT: tl.constexpr, PLACES: tl.constexpr, BITS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """What `filter_taps.taps` gives, step by step in the same order of float64: products and sums must not be fused.
    Where nothing is weighed, the place is any that is there."""
    image, axis = tl.program_id(0).to(tl.int64), tl.program_id(1)
    view = told + image * 32 + 10 + axis * 11
    at = tl.program_id(2) * PLACES + tl.arange(0, PLACES)
    count = tl.load(told + image * 32 + 7 + axis)
    made = tl.where(axis == 0, height, width)
    most = tl.where(axis == 0, most_down, most_across)
    first = looks + tl.where(axis == 0, 0, columns_at) + image * most * made + at
    length, resized = tl.load(view + 4), tl.load(view + 5)
    place, is_there = _placed(view + 6, at, 1)
    if SUPPORT == 0:
        tap = tl.load(nearest + (axis * number + image) * longest + place)
        tl.store(first, _packed(tap, 1 << BITS, view, count, is_there), mask=at < made)
    else:
        scale = length.to(tl.float64) / resized.to(tl.float64)
        stretch = tl.maximum(scale, 1.0)
        reach, slope = stretch * SUPPORT, 1.0 / stretch
        centre = (place.to(tl.float64) + 0.5) * scale
        begin = tl.maximum(centre - reach + 0.5, 0.0).to(tl.int32)
        end = tl.minimum((centre + reach + 0.5).to(tl.int32), length)
        total = tl.full((PLACES,), 0.0, tl.float64)
        for step in range(2 * tl.maximum((SUPPORT * length + resized - 1) // resized, SUPPORT) + 1):
            tap = begin + step
            total += tl.where(tap < end, _weighs((tap.to(tl.float64) - centre + 0.5) * slope, SUPPORT), 0.0)
        for step in range(_taken(length, resized, SUPPORT)):
            tap = begin + step
            share = tl.where(tap < end, _weighs((tap.to(tl.float64) - centre + 0.5) * slope, SUPPORT), 0.0) / total
            share = share * (1 << BITS)
            whole = (share + tl.where(share < 0, -0.5, 0.5).to(tl.float64)).to(tl.int32)
            tl.store(first + step * made, _packed(tap, whole, view, count, is_there), mask=at < made)


@triton.jit
def _taken(length, resized, SUPPORT: tl.constexpr):  # type: ignore[no-untyped-def]
    """See `filter_taps.taken_each`."""
    return 1 if SUPPORT == 0 else tl.maximum((2 * SUPPORT * length + resized - 1) // resized, 2 * SUPPORT)


@triton.jit
def _weighs(distance, SUPPORT: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.abs(distance)
    if SUPPORT == 1:
        weight = tl.maximum(1.0 - x, 0.0)
    else:
        near = (1.5 * x - 2.5) * x * x + 1.0
        far = (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5
        weight = tl.where(x < 1.0, near, tl.where(x < 2.0, far, 0.0))
    return weight


@triton.jit
def _packed(tap, weight, view, count, is_there):  # type: ignore[no-untyped-def]
    length = tl.load(view + 4)
    place = tl.load(view) * tl.minimum(tap, length - 1) + tl.load(view + 1)
    is_inside = is_there & (tap >= 0) & (tap < length) & (place >= tl.load(view + 2)) & (place < tl.load(view + 3))
    place = tl.maximum(tl.minimum(place, count - 1), 0)
    return (tl.where(is_inside, weight, 0).to(tl.int64) << 32) | place.to(tl.int64)


@triton.jit(do_not_specialize=["first", "channels", "height", "width", "most", "tiles", "runs"])
def _resampled(
    source, told, told_wide, looks, table, made, first, channels, height, width, most, tiles, runs,
    IS_ACROSS: tl.constexpr, IS_LAST: tl.constexpr, HAS_TABLE: tl.constexpr, SUPPORT: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr, IN_FOURS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Tiles of one channel of one image. Sums of levels times weights fit 32 bits, as they do in Pillow. Nothing is
    hidden from loads: where nobody will look, something is there, for weights of nothing and beyond the edges too.

    Offsets are called contiguous that nearly are. Threads lie side by side along a row then: Triton 3.6 puts them below
    each other where it knows of no direction, and each asks another line of the cache. Nothing is loaded several at
    once for that, as none of those offsets is called aligned."""
    program = tl.program_id(0)
    tile, run, picture = program % tiles, program // tiles % runs, program // tiles // runs
    channel = (picture % channels).to(tl.int64)
    image = tl.load(told + (first + picture // channels) * 32 + 9).to(tl.int64)
    about = told + image * 32
    view = about + (21 if IS_ACROSS else 10)
    taken = _taken(tl.load(view + 4), tl.load(view + 5), SUPPORT)
    between, between_stride = tl.load(told_wide + image * 16 + 1), tl.load(about + 6)
    rows_between = tl.load(about + 7) if IS_ACROSS != IS_LAST else height
    if IN_FOURS and IS_LAST and not IS_ACROSS:
        width = width // 4 * 4  # which it is anyway, but now the compiler knows: four pixels are stored at once
    high, wide = height, width
    if IS_LAST:
        stride = tl.multiple_of(between_stride, 4)
        begin = tl.multiple_of(between + channel * rows_between * between_stride, 4)
        to, to_stride = (image * channels + channel) * height * width, width
    else:
        stride = tl.load(about + 5)
        begin = tl.load(told_wide + image * 16) + channel * tl.load(about + 4)
        to, to_stride = between + channel * rows_between * between_stride, between_stride
        if IS_ACROSS:
            high = rows_between
        else:
            wide = tl.load(about + 8)
    high = tl.where(tile * WIDE < wide, high, 0)
    column = tile * WIDE + tl.arange(0, WIDE)
    for top in range(run * HIGH, high, runs * HIGH):
        row = top + tl.arange(0, HIGH)
        total = tl.full((HIGH, WIDE), 1 << (BITS - 1), tl.int32)
        if IS_ACROSS:
            looked = looks + image * most * width + tl.minimum(column, width - 1)
            lines = (source + begin) + (tl.minimum(row, high - 1) * stride)[:, None]
            for tap in range(taken):
                look = tl.load(looked + tap * width)
                level = tl.load(lines + tl.max_contiguous(look.to(tl.int32), WIDE)[None, :])
                total += level.to(tl.int32) * (look >> 32).to(tl.int32)[None, :]
        else:
            looked = looks + image * most * height + tl.minimum(row, height - 1)
            lines = (source + begin) + (column if IS_LAST else tl.max_contiguous(tl.minimum(column, wide - 1), WIDE))[
                None, :
            ]
            for tap in range(taken):
                look = tl.load(looked + tap * height)
                level = tl.load(lines + (look.to(tl.int32) * stride)[:, None])
                total += level.to(tl.int32) * (look >> 32).to(tl.int32)[:, None]
        level = tl.max_contiguous(tl.minimum(tl.maximum(total >> BITS, 0), 255), [1, WIDE])
        wanted = (row < high)[:, None] & (column < wide)[None, :]
        pixel = tl.load(table + channel * 256 + level) if HAS_TABLE else level.to(tl.uint8)
        tl.store((made + to) + ((row * to_stride)[:, None] + column[None, :]), pixel, mask=wanted)


@triton.jit(do_not_specialize=["channels", "height", "width"])
def _picked(
    flat, told, told_wide, fill, table, made, channels, height, width,
    BORDER: tl.constexpr, HAS_TABLE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    image, channel = picture // channels, picture % channels
    about = told + image * 32
    row = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    wanted = (row < height)[:, None] & (column < width)[None, :]
    down, is_down = _placed(about + 10, row, BORDER)
    across, is_across = _placed(about + 21, column, BORDER)
    across = tl.max_contiguous(across, WIDE)
    begin = tl.load(told_wide + image * 16) + channel * tl.load(about + 4)
    address = down[:, None] * tl.load(about + 5) + across[None, :]
    level = tl.load((flat + begin) + address, mask=wanted, other=0).to(tl.int32)
    if BORDER == 1:
        level = tl.where(is_down[:, None] & is_across[None, :], level, tl.load(fill + channel).to(tl.int32))
    level = tl.max_contiguous(level, [1, WIDE])
    pixel = tl.load(table + channel * 256 + level, mask=wanted) if HAS_TABLE else level.to(tl.uint8)
    tl.store((made + picture * height * width) + (row * width)[:, None] + column[None, :], pixel, mask=wanted)


@triton.jit
def _placed(view, at, BORDER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which place of the source each place of a view shows, always one that is there; and whether it is shown."""
    sign, offset, low, high = tl.load(view), tl.load(view + 1), tl.load(view + 2), tl.load(view + 3)
    length = tl.load(view + 4)
    place = sign * tl.minimum(at, length - 1) + offset
    is_shown = (at < length) & (place >= low) & (place < high)
    if BORDER == 2:
        period = tl.maximum(2 * (high - low - 1), 1)
        turn = ((place - low) % period + period) % period  # of negative numbers, too
        place = low + tl.minimum(turn, period - turn)
    elif BORDER == 3:
        period = 2 * (high - low)
        turn = ((place - low) % period + period) % period
        place = low + tl.minimum(turn, period - 1 - turn)
    return tl.maximum(tl.minimum(tl.maximum(place, low), high - 1), 0), is_shown
