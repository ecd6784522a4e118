"""Pillow's resize of levels as two Triton kernels, one for each axis: only the few weights that count are looked at.
Where nothing is resized one kernel picks the pixels. The last one may look up what becomes of each level, so that no
other kernel need touch them.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from hotlap.parts.exact_products import WEIGHT_BITS
from hotlap.parts.packed_images import sent

_HIGH, _WIDE = 16, 64  # of the tile that one program makes
_BORDERS = {"constant": 1, "reflect": 2, "symmetric": 3}  # else the nearest pixel


class Taps(NamedTuple):
    """Where each place of an axis looks, and with what weights: two of N, K, length; and how many of the K count."""

    place: Tensor
    weight: Tensor
    taken: Tensor


class Planes(NamedTuple):
    """Row r of channel c of image n starts at `start[n] + c * plane[n] + r * stride[n]` of `flat`."""

    flat: Tensor
    start: Tensor
    plane: Tensor
    stride: Tensor

    @classmethod
    def of(cls, pixels: Tensor) -> Planes:
        """Of one N, C, H, W."""
        number, channels, height, width = pixels.shape
        start = torch.arange(number, device=pixels.device) * (channels * height * width)
        return cls(pixels, start, torch.full_like(start, height * width), torch.full_like(start, width))


def across(source: Planes, taps: Taps, channels: int, heights: np.ndarray, table: Tensor | None = None) -> Tensor:
    """Columns resized. N, C, the most of `heights`, length; rows beyond an image's own height are not written. `table`
    (C, 256): what becomes of each level."""
    shape = (len(taps.place), channels, int(heights.max()), taps.place.shape[2])
    return _launched(source, taps, heights, shape, table, is_across=True)


def down(source: Planes, taps: Taps, channels: int, widths: np.ndarray, table: Tensor | None = None) -> Tensor:
    """Rows resized, likewise: N, C, length, the most of `widths`."""
    shape = (len(taps.place), channels, taps.place.shape[2], int(widths.max()))
    return _launched(source, taps, widths, shape, table, is_across=False)


def picked(
    source: Planes, views: Tensor, shape: tuple[int, int, int, int], border: str | None, fill: Tensor,
    table: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """What two views (2, N, 5), of rows and columns, show of each image, in the places that `axis_views.places` gives.
    `fill` (C): the level of what lies outside, where the border is constant."""
    number, channels, height, width = shape
    made = torch.empty(shape, dtype=torch.uint8 if table is None else table.dtype, device=source.flat.device)
    grid = (number * channels, triton.cdiv(height, _HIGH), triton.cdiv(width, _WIDE))
    _picked[grid](
        source.flat, source.start, source.plane, source.stride, views, fill, made if table is None else table, made,
        number, channels, height, width,
        BORDER=_BORDERS.get(border or "", 0), HAS_TABLE=table is not None, HIGH=_HIGH, WIDE=_WIDE,
    )  # fmt: skip
    return made


def _launched(
    source: Planes, taps: Taps, counts: np.ndarray, shape: tuple[int, int, int, int], table: Tensor | None,
    is_across: bool,
) -> Tensor:  # fmt: skip
    number, channels, height, width = shape
    made = torch.empty(shape, dtype=torch.uint8 if table is None else table.dtype, device=source.flat.device)
    counted = sent(counts, made.device)
    grid = (number * channels, triton.cdiv(height, _HIGH), triton.cdiv(width, _WIDE))
    _resampled[grid](
        source.flat, source.start, source.plane, source.stride, taps.place, taps.weight, taps.taken,
        counted, made if table is None else table, made, channels, height, width, taps.place.shape[1],
        IS_ACROSS=is_across, HAS_TABLE=table is not None, HIGH=_HIGH, WIDE=_WIDE, BITS=WEIGHT_BITS,
    )  # fmt: skip
    return made


@triton.jit(do_not_specialize=["channels", "height", "width", "most_taps"])
def _resampled(
    flat, start, plane, stride, place, weight, taken, counts, table, made, channels, height, width, most_taps,
    IS_ACROSS: tl.constexpr, HAS_TABLE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, BITS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """A tile of one channel of one image. Sums of levels times weights fit 32 bits, as they do in Pillow."""
    picture = tl.program_id(0).to(tl.int64)
    image, channel = picture // channels, picture % channels
    row = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    begin = tl.load(start + image) + channel * tl.load(plane + image)
    step, count = tl.load(stride + image), tl.load(counts + image)
    if IS_ACROSS:
        at, length = column, width
        wanted = (row < count)[:, None] & (column < width)[None, :]
    else:
        at, length = row, height
        wanted = (row < height)[:, None] & (column < count)[None, :]
    first = image * most_taps * length + at
    total = tl.full((HIGH, WIDE), 1 << (BITS - 1), tl.int32)
    for tap in range(tl.load(taken + image)):
        weighs = tl.load(weight + first + tap * length, mask=at < length, other=0)
        looks = tl.load(place + first + tap * length, mask=at < length, other=0)
        if IS_ACROSS:
            weighs, address = weighs[None, :], row[:, None] * step + looks[None, :]
        else:
            weighs, address = weighs[:, None], looks[:, None] * step + column[None, :]
        level = tl.load(flat + begin + address, mask=wanted & (weighs != 0), other=0)
        total += level.to(tl.int32) * weighs
    level = tl.minimum(tl.maximum(total >> BITS, 0), 255)
    pixel = tl.load(table + channel * 256 + level, mask=wanted) if HAS_TABLE else level.to(tl.uint8)
    tl.store(made + (picture * height + row[:, None]) * width + column[None, :], pixel, mask=wanted)


@triton.jit(do_not_specialize=["number", "channels", "height", "width"])
def _picked(
    flat, start, plane, stride, views, fill, table, made, number, channels, height, width,
    BORDER: tl.constexpr, HAS_TABLE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    picture = tl.program_id(0).to(tl.int64)
    image, channel = picture // channels, picture % channels
    row = tl.program_id(1) * HIGH + tl.arange(0, HIGH)
    column = tl.program_id(2) * WIDE + tl.arange(0, WIDE)
    wanted = (row < height)[:, None] & (column < width)[None, :]
    down, is_down = _placed(views + image * 5, row, BORDER)
    across, is_across = _placed(views + (number + image) * 5, column, BORDER)
    begin = tl.load(start + image) + channel * tl.load(plane + image)
    address = down[:, None] * tl.load(stride + image) + across[None, :]
    level = tl.load(flat + begin + address, mask=wanted, other=0).to(tl.int32)
    if BORDER == 1:
        level = tl.where(is_down[:, None] & is_across[None, :], level, tl.load(fill + channel).to(tl.int32))
    pixel = tl.load(table + channel * 256 + level, mask=wanted) if HAS_TABLE else level.to(tl.uint8)
    tl.store(made + (picture * height + row[:, None]) * width + column[None, :], pixel, mask=wanted)


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
