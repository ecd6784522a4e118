"""The start of an image network as three Triton kernels over N, C, H, W in channels_last and 16 bits: the largest of
each window of what is normed and rectified on the way, the sums of what is given back to those alone, and the gradient
of the convolution's weights, for which that of what it made is not written.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_CHANNELS = 64
_WINDOWS = 1024  # times channels, that a program makes
_SUMS, _SUM_PROGRAMS, _SUM_STAGES = 2048, 528, 3
_PIXELS, _COLUMNS, _PROGRAMS = 32, 256, 264  # two programs for each of an H200's processors
_WARPS, _STAGES, _TOGETHER = 4, 3, 8  # the fastest of twenty there, for ResNet-50


def find(
    y: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, side: int, stride: int, padding: int,
    out: Tensor, place: Tensor, kept: Tensor,
) -> None:  # fmt: skip
    """Into the last three: the largest of each window, its place in it, and the pixel there as it was before."""
    number, channels, high, wide = y.shape
    made = out.shape[2:]
    rows = number * made[0] * made[1]
    across = min(_MOST_CHANNELS, triton.next_power_of_2(channels))
    down = _WINDOWS // across
    _find[(triton.cdiv(rows, down), triton.cdiv(channels, across))](
        y, mean, scale, shift, out, place, kept, rows, channels, high, wide, *made,
        SIDE=side, STRIDE=stride, PADDING=padding, ROWS=down, CHANNELS=across,
    )  # fmt: skip


def passed_sums(
    grad: Tensor, other: Tensor | None, kept: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, passed: Tensor
) -> Tensor:
    """Into the last: what passes of one or two gradients where relu let a pixel through. Of that, the sums: alone, and
    times the pixel's deviation."""
    channels = kept.shape[1]
    rows = kept.numel() // channels
    across = min(_MOST_CHANNELS, triton.next_power_of_2(channels))
    down, blocks = _SUMS // across, triton.cdiv(channels, across)
    runs = max(1, min(_SUM_PROGRAMS // blocks, triton.cdiv(rows, down)))
    sums = torch.empty((runs, 2, channels), dtype=torch.float32, device=kept.device)
    _passed_sums[(blocks, runs)](
        grad, grad if other is None else other, kept, mean, scale, shift, passed, sums, rows, channels,
        HAS_OTHER=other is not None, ROWS=down, CHANNELS=across, STAGES=_SUM_STAGES,
    )  # fmt: skip
    return sums.sum(0)


def weight_grads(
    y: Tensor, grad: Tensor, x: Tensor, by: tuple[Tensor, Tensor, Tensor, Tensor], has_bias: bool
) -> tuple[Tensor, Tensor]:
    """For weights (of channels, and rows, columns and channels of their window) and biases of the convolution of `x`
    that made `y`. `grad`: what passed back to pixels; `by`: mean, share along deviations, share of all, and factor of
    each channel."""
    number, channels, high, wide = y.shape
    inputs, reach = x.shape[1], x.shape[2] - high + 1
    columns, pixels = reach * reach * inputs, number * x.shape[2] * x.shape[3]
    across = max(16, min(_MOST_CHANNELS, triton.next_power_of_2(channels)))
    along = max(16, min(_COLUMNS, triton.next_power_of_2(columns)))
    blocks = triton.cdiv(channels, across), triton.cdiv(columns, along)
    runs = max(1, min(_PROGRAMS // (blocks[0] * blocks[1]), triton.cdiv(pixels, _PIXELS)))
    out = torch.empty((runs, channels, columns), dtype=torch.float32, device=y.device)
    summed = torch.empty((runs, channels), dtype=torch.float32, device=y.device)
    _weight_grads[(runs, *blocks)](
        y, grad, x, *by, out, summed, pixels,
        MADE=channels, HIGH=high, WIDE=wide, INPUTS=inputs, REACH=reach, HAS_BIAS=has_bias, PIXELS=_PIXELS,
        CHANNELS=across, COLUMNS=along, TOGETHER=_TOGETHER, STAGES=_STAGES, num_warps=_WARPS,
    )  # fmt: skip
    return out.sum(0).view(channels, reach, reach, inputs), summed.sum(0)


@triton.jit
def _find(
    y, mean, scale, shift, out, place, kept, rows, channels, high, wide, made_high, made_wide,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Levels rise with pixels, or fall where a factor is below zero, so that pixels are compared and only the chosen
    ones normed: as numbers in the order of their levels, with the place in the last eight bits, counted from the end.
    The larger number is the larger level, or the first of equal ones; where a factor is zero all are alike. Where only
    rounding makes levels equal, torch takes the first."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    moved = tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]
    turned = tl.where(factor < 0.0, 1, 0) << 31
    counts = tl.where(factor == 0.0, 0, -1)
    across, down, image = row % made_wide, row // made_wide % made_high, row // made_wide // made_high
    is_there = (row < rows)[:, None] & is_channel[None, :]
    best = tl.full((ROWS, CHANNELS), -(1 << 31), tl.int32)
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            u, v = down * STRIDE - PADDING + i, across * STRIDE - PADDING + j
            is_inside = is_there & ((u >= 0) & (u < high) & (v >= 0) & (v < wide))[:, None]
            pixel = (image.to(tl.int64) * high + u) * wide + v
            level = tl.load(y + pixel[:, None] * channels + channel[None, :], mask=is_inside, other=0.0).to(tl.float32)
            bits = ((level + 0.0).to(tl.int32, bitcast=True) ^ turned) & counts  # zero has one sign then
            key = ((bits ^ ((bits >> 31) & 0x7FFFFFFF)) & -256) | (255 - i * SIDE - j)
            best = tl.where(is_inside, tl.maximum(best, key), best)
    at, bits = 255 - (best & 255), best & -256
    bits = tl.where(bits < 0, (bits ^ 0x7FFFFFFF) & -256, bits) ^ turned
    chosen = bits.to(tl.float32, bitcast=True)
    flat = tl.load(scale + channel, mask=is_channel, other=1.0) == 0.0
    if tl.sum(tl.where(flat, 1, 0), 0) > 0:  # of which numbers tell no pixels
        line = image.to(tl.int64)[:, None] * high + down[:, None] * STRIDE - PADDING + at // SIDE
        looked = (line * wide + across[:, None] * STRIDE - PADDING + at % SIDE) * channels + channel[None, :]
        unknown = tl.load(y + looked, mask=is_there & (counts == 0), other=0.0).to(tl.float32)
        chosen = tl.where(counts == 0, unknown, chosen)
    level = (chosen - middle) * factor + moved
    made = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out + made, tl.where(level <= 0.0, 0.0, level).to(out.dtype.element_ty), mask=is_there)
    tl.store(place + made, at.to(tl.int8), mask=is_there)
    tl.store(kept + made, chosen.to(kept.dtype.element_ty), mask=is_there)


@triton.jit
def _passed_sums(
    grad, other, kept, mean, scale, shift, passed, sums, rows, channels,
    HAS_OTHER: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """The level is told again from the pixel, and rounded as it was."""
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    moved = tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]
    first = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    second = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        at = row.to(tl.int64)[:, None] * channels + channel[None, :]
        given = tl.load(grad + at, mask=is_there, other=0.0).to(tl.float32)
        if HAS_OTHER:
            given += tl.load(other + at, mask=is_there, other=0.0).to(tl.float32)
        apart = tl.load(kept + at, mask=is_there, other=0.0).to(tl.float32) - middle
        level = (apart * factor + moved).to(kept.dtype.element_ty)
        rounded = tl.where(level <= 0.0, 0.0, given).to(passed.dtype.element_ty)
        tl.store(passed + at, rounded, mask=is_there)
        first += rounded.to(tl.float32)
        second += rounded.to(tl.float32) * apart
    made = sums + run * 2 * channels + channel
    tl.store(made, tl.sum(first, 0), mask=is_channel)
    tl.store(made + channels, tl.sum(second, 0), mask=is_channel)


@triton.jit
def _weight_grads(
    y, grad, x, mean, along, level, scale, out, summed, pixels,
    MADE: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, INPUTS: tl.constexpr, REACH: tl.constexpr,
    HAS_BIAS: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr, COLUMNS: tl.constexpr,
    TOGETHER: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Pixels are counted as those of `x` are, which are a few more: what a window sees then lies at the same distances
    from each, a row of it side by side. Sizes are known, so that nothing is divided. A program's pixels follow each
    other: rows that the next windows see again are still near."""
    LINE: tl.constexpr = WIDE + REACH - 1
    LINES: tl.constexpr = HIGH + REACH - 1
    RUN: tl.constexpr = REACH * INPUTS
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    is_channel, is_column = channel < MADE, column < REACH * RUN
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    sloped = tl.load(along + channel, mask=is_channel, other=0.0)[None, :]
    shared = tl.load(level + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    seen = tl.max_contiguous(column // RUN * (LINE * INPUTS) + column % RUN, TOGETHER)
    total = tl.full((CHANNELS, COLUMNS), 0.0, tl.float32)
    biases = tl.full((PIXELS, CHANNELS), 0.0, tl.float32)
    run, each = tl.program_id(0), tl.num_programs(0) * PIXELS
    share = (pixels + each - 1) // each * PIXELS
    image_of_run = run * share // (LINE * LINES)  # counted from there, all that a program reads is within 32 bits
    x += image_of_run.to(tl.int64) * (LINE * LINES * INPUTS)
    y += image_of_run.to(tl.int64) * (HIGH * WIDE * MADE)
    grad += image_of_run.to(tl.int64) * (HIGH * WIDE * MADE)
    start, end = run * share - image_of_run * (LINE * LINES), pixels - image_of_run * (LINE * LINES)
    for top in tl.range(start, tl.minimum(start + share, end), PIXELS, num_stages=STAGES):
        pixel = top + tl.arange(0, PIXELS)
        across, down, image = pixel % LINE, pixel // LINE % LINES, pixel // (LINE * LINES)
        is_made = (pixel < end) & (across < WIDE) & (down < HIGH)
        is_there = is_made[:, None] & is_channel[None, :]
        at = ((image * HIGH + down) * WIDE + across)[:, None] * MADE + channel[None, :]
        apart = tl.load(y + at, mask=is_there, other=0.0).to(tl.float32) - middle
        given = tl.load(grad + at, mask=is_there, other=0.0).to(tl.float32)
        back = (given - apart * sloped - shared) * factor
        back = tl.where(is_there, back, 0.0).to(y.dtype.element_ty)
        if HAS_BIAS:
            biases += back.to(tl.float32)
        looked_at = (pixel * INPUTS)[:, None] + seen[None, :]
        patch = tl.load(x + looked_at, mask=is_made[:, None] & is_column[None, :], other=0.0)
        total = tl.dot(tl.trans(back), patch, total)
    made = (run * MADE + channel)[:, None] * (REACH * RUN) + column[None, :]
    tl.store(out + made, total, mask=is_channel[:, None] & is_column[None, :])
    if HAS_BIAS:
        tl.store(summed + run * MADE + channel, tl.sum(biases, 0), mask=is_channel)
