"""The first convolution of an image network as a Triton kernel, once blocks of pixels are its channels (`image_stem`)
and it does not stride: over N, C, H, W in channels_last and 16 bits. What batch norm asks of what it makes is summed up
on the way, so that nothing has to read that again.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Tiling(NamedTuple):
    """How pixels are shared out."""

    pixels: int  # of a tile
    warps: int  # each takes 16 pixels or more at once, as matrix units want it
    stages: int  # tiles on the way; by one they go through registers and the nearest cache, which holds rows in common
    programs: int


_TILING = Tiling(pixels=64, warps=4, stages=1, programs=396)  # of 17 on one H200 none but one that spills was faster
_MOST_CHANNELS = 64
_LEAST_COLUMNS, _MOST_COLUMNS = 16, 256  # of a window's row, for matrix units; of its rows, in a program's memory
_MOST_REACH = 4
_ALIGNED = 8  # channels that are read at once
_MOST = 1 << 30  # whose sums are within 32 bits
_LOW = (torch.bfloat16, torch.float16)


def is_fit(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether `convolved` takes these."""
    if x.ndim != 4 or weight.ndim != 4 or x.dtype not in _LOW or weight.dtype is not x.dtype:
        return False
    (number, inputs, high, wide), (channels, taken, reach, broad) = x.shape, weight.shape
    if taken != inputs or inputs % _ALIGNED or reach != broad or not 1 <= reach <= min(_MOST_REACH, high, wide):
        return False
    lie_right = all(one.is_contiguous(memory_format=torch.channels_last) for one in (x, weight))
    is_small = max(number, channels) * high * wide < _MOST and reach * _columns(reach, inputs) <= _MOST_COLUMNS
    return lie_right and is_small and (bias is None or bias.is_contiguous())


def results(x: Tensor, weight: Tensor, tiling: Tiling = _TILING) -> tuple[Tensor, Tensor, Tensor]:
    """Those of `convolved`, with nothing in them."""
    (number, _, high, wide), (channels, _, reach, _) = x.shape, weight.shape
    made = number, channels, high - reach + 1, wide - reach + 1
    y = torch.empty(made, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    runs = min(
        tiling.programs // triton.cdiv(channels, _across(channels)), triton.cdiv(_pixels(x, reach), tiling.pixels)
    )
    sums = torch.empty((max(1, runs), 2, channels), dtype=torch.float32, device=x.device)
    return y, sums, torch.empty(channels, dtype=torch.float32, device=x.device)


def convolved(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiling: Tiling = _TILING
) -> tuple[Tensor, Tensor, Tensor]:
    """What `conv2d(x, weight, bias)` gives, in channels_last; for each run of pixels sums of deviations and of their
    squares; and from what they deviate, which is about the first pixel. Those are deviations of what is given back, as
    it is rounded."""
    y, sums, start = results(x, weight, tiling)
    (channels, inputs, reach, _), across = weight.shape, _across(len(weight))
    _convolved[(len(sums), triton.cdiv(channels, across))](
        x, weight, weight if bias is None else bias, y, sums, start, _pixels(x, reach),
        MADE=channels, HIGH=y.shape[2], WIDE=y.shape[3], INPUTS=inputs, REACH=reach, HAS_BIAS=bias is not None,
        PIXELS=tiling.pixels, CHANNELS=across, COLUMNS=_columns(reach, inputs), TOGETHER=_ALIGNED,
        STAGES=tiling.stages, WARPS=tiling.warps, num_warps=tiling.warps,
    )  # fmt: skip
    return y, sums, start


def _pixels(x: Tensor, reach: int) -> int:
    """The last of them that has a window is the last of all."""
    return x.shape[0] * x.shape[2] * x.shape[3] - (reach - 1) * (x.shape[3] + 1)


def _across(channels: int) -> int:
    return max(16, min(_MOST_CHANNELS, int(triton.next_power_of_2(channels))))


def _columns(reach: int, inputs: int) -> int:
    return max(_LEAST_COLUMNS, triton.next_power_of_2(reach * inputs))


@triton.jit
def _convolved(
    x, weight, bias, y, sums, start, pixels,
    MADE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, REACH: tl.constexpr,
    HAS_BIAS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr,
    TOGETHER: tl.constexpr, STAGES: tl.constexpr, WARPS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Pixels are counted as those of `x` are, of which a few have no window: what a row of a window sees then lies side
    by side, at the same distances from each. Sizes are known, so that nothing is divided. A program's pixels follow
    each other: rows that the next windows see again are still near. Sums are over what a thread holds of a tile, which
    is what a matrix unit left there: rows of 8 threads, twice, for each warp, so that none waits for another before
    the end."""
    LINE: tl.constexpr = WIDE + REACH - 1
    LINES: tl.constexpr = HIGH + REACH - 1
    RUN: tl.constexpr = REACH * INPUTS
    KEPT: tl.constexpr = WARPS * 8
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    column = tl.arange(0, COLUMNS)
    is_channel, is_column = channel < MADE, column < RUN
    begin = tl.full((CHANNELS,), 0.0, tl.float32)
    shift = begin
    if HAS_BIAS:
        shift = tl.load(bias + channel, mask=is_channel, other=0.0).to(tl.float32)
    taps = ()
    for i in tl.static_range(REACH):
        at = (channel * REACH + i)[None, :] * RUN + column[:, None]
        taps = taps + (tl.load(weight + at, mask=is_column[:, None] & is_channel[None, :], other=0.0),)  # noqa: RUF005
        window = tl.load(x + i * LINE * INPUTS + column, mask=is_column, other=0.0).to(tl.float32)
        begin += tl.sum(taps[i].to(tl.float32) * window[:, None], 0)
    begin += shift
    first = tl.full((KEPT, CHANNELS), 0.0, tl.float32)
    second = tl.full((KEPT, CHANNELS), 0.0, tl.float32)
    row = tl.arange(0, PIXELS)
    seen = tl.max_contiguous(row.to(tl.int64)[:, None] * INPUTS + column[None, :], [1, TOGETHER])
    run, each = tl.program_id(0), tl.num_programs(0) * PIXELS
    share = (pixels + each - 1) // each * PIXELS
    for past in tl.range(0, tl.minimum(share, pixels - run * share), PIXELS, num_stages=STAGES):
        top = run * share + past
        is_pixel = row < pixels - top
        is_seen = is_pixel[:, None] if COLUMNS == RUN else is_pixel[:, None] & is_column[None, :]
        lines = x + top.to(tl.int64) * INPUTS
        patches = ()  # all of them before the first product
        for i in tl.static_range(REACH):
            patches = patches + (tl.load(lines + i * LINE * INPUTS + seen, mask=is_seen, other=0.0),)  # noqa: RUF005
        found = tl.full((PIXELS, CHANNELS), 0.0, tl.float32)
        for i in tl.static_range(REACH):
            found = tl.dot(patches[i], taps[i], found)
        if HAS_BIAS:
            found += shift[None, :]
        stored = found.to(y.dtype.element_ty)
        image_of_top = top // (LINE * LINES)  # counted from there, all that is written is within 32 bits
        pixel = top - image_of_top * (LINE * LINES) + row
        line, image = pixel // LINE, pixel // (LINE * LINES)
        is_made = (is_pixel & (pixel - line * LINE < WIDE) & (line - image * LINES < HIGH))[:, None]
        place = pixel - (LINE - WIDE) * line - (LINES - HIGH) * WIDE * image
        out = y + image_of_top.to(tl.int64) * (HIGH * WIDE * MADE) + (place[:, None] * MADE + channel[None, :])
        tl.store(out, stored, mask=is_made if MADE % CHANNELS == 0 else is_made & is_channel[None, :])
        apart = tl.where(is_made, stored.to(tl.float32) - begin[None, :], 0.0)
        apart = apart.reshape(PIXELS // (WARPS * 16), WARPS, 2, 8, CHANNELS)
        first += tl.sum(tl.sum(apart, 2), 0).reshape(KEPT, CHANNELS)
        second += tl.sum(tl.sum(apart * apart, 2), 0).reshape(KEPT, CHANNELS)
    made = sums + run * 2 * MADE + channel
    tl.store(made, tl.sum(first, 0), mask=is_channel)
    tl.store(made + MADE, tl.sum(second, 0), mask=is_channel)
    if run == 0:
        tl.store(start + channel, begin, mask=is_channel)
