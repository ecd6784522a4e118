"""Sums over all pixels of each channel, as Triton kernels over rows of channels that lie side by side, and what
follows from them. Programs take tiles by turns; what they found is added up by one more kernel, always in the same
order.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from hotlap.parts.pixel_kernels import Tiling, plan

_TILING = Tiling(2048, 64, 528, 3)  # the fastest of 48 on one H200, for ResNet-50
_RUNS, _CHANNELS = 128, 16  # of the tiles in which what programs found is added up


@triton_op("hotlap::channel_statistics", mutates_args=())
def statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and the factor that makes that one, of rows, channels. Deviations are from the first row."""
    rows, channels = x.shape
    mean, var, inverse = (torch.empty(channels, dtype=torch.float32, device=x.device) for _ in range(3))
    out, grid, tile = _plan(x)
    wrap_triton(_sums)[grid](x, out, rows, channels, **tile)
    wrap_triton(_statistics)[(triton.cdiv(channels, _CHANNELS),)](
        out, x, mean, var, inverse, grid[1], channels, rows, eps, RUNS=_RUNS, CHANNELS=_CHANNELS
    )
    return mean, var, inverse


@triton_op("hotlap::channel_grad_sums", mutates_args=())
def grad_sums(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor, is_rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Of gradients, and of gradients times deviations from `mean`; where rectified, of those above zero after `scale`
    and `shift`. With what of them goes along with deviations, and what all pixels share."""
    out, grid, tile = _plan(x)
    wrap_triton(_grad_sums)[grid](grad, x, mean, scale, shift, out, *x.shape, IS_RECTIFIED=is_rectified, **tile)
    totals, along, level = _shared(out, inverse, inverse, x.shape[0], grid[1])
    return totals, along[0], level


@triton_op("hotlap::channel_joined_sums", mutates_args=())
def joined_sums(
    grad: Tensor, other: Tensor | None, marks: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, added: Tensor | None,
    added_mean: Tensor | None, added_inverse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What passes of one or two gradients together where it is marked, and the same of that; and third, where something
    that was added is normed too, its sums of gradients times deviations, and what goes along with those."""
    passed = torch.empty_like(x)
    sums, grid, tile = _plan(x, 2 if added is None else 3)
    given = grad if other is None else other
    second = (x, mean) if added is None else (added, added_mean)
    wrap_triton(_joined_sums)[grid](
        grad, given, marks, x, mean, *second, passed, sums, *x.shape,
        HAS_OTHER=other is not None, HAS_SECOND=added is not None, **tile,
    )  # fmt: skip
    return passed, *_shared(sums, inverse, inverse if added_inverse is None else added_inverse, x.shape[0], grid[1])


def _plan(x: Tensor, count: int = 2) -> tuple[Tensor, tuple[int, int], dict[str, Any]]:
    grid, tile = plan(x, _TILING)
    return torch.empty((grid[1], count, x.shape[1]), dtype=torch.float32, device=x.device), grid, tile


def _shared(sums: Tensor, inverse: Tensor, other: Tensor, rows: int, runs: int) -> tuple[Tensor, Tensor, Tensor]:
    _, count, channels = sums.shape
    totals, along = sums.new_empty(count, channels), sums.new_empty(count - 1, channels)
    level = torch.empty_like(inverse)
    wrap_triton(_add_up)[(triton.cdiv(channels, _CHANNELS),)](
        sums, inverse, other, totals, along, level, runs, channels, rows, COUNT=count, RUNS=_RUNS, CHANNELS=_CHANNELS
    )
    return totals, along, level


@triton.jit
def _sums(x, out, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    begin = tl.load(x + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
    first = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    second = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        apart = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - begin
        apart = tl.where(is_there, apart, 0.0)
        first += apart
        second += apart * apart
    made = out + run * 2 * channels + channel
    tl.store(made, tl.sum(first, 0), mask=is_channel)
    tl.store(made + channels, tl.sum(second, 0), mask=is_channel)


@triton.jit
def _statistics(sums, x, mean, var, inverse, runs, channels, rows, eps, RUNS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    apart = _total(sums, 0, 2, runs, channels, RUNS, CHANNELS) / rows
    squares = _total(sums, 1, 2, runs, channels, RUNS, CHANNELS) / rows
    spread = squares - apart * apart
    spread = tl.where(spread < 0.0, 0.0, spread)
    start = tl.load(x + channel, mask=is_channel, other=0.0).to(tl.float32)
    tl.store(mean + channel, apart + start, mask=is_channel)
    tl.store(var + channel, spread, mask=is_channel)
    tl.store(inverse + channel, 1.0 / tl.sqrt(spread + eps), mask=is_channel)


@triton.jit
def _add_up(
    sums, inverse, other, totals, along, level, runs, channels, rows,
    COUNT: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    first = _total(sums, 0, COUNT, runs, channels, RUNS, CHANNELS)
    tl.store(totals + channel, first, mask=is_channel)
    tl.store(level + channel, first / rows, mask=is_channel)
    for place in tl.static_range(1, COUNT):
        total = _total(sums, place, COUNT, runs, channels, RUNS, CHANNELS)
        factor = tl.load((inverse if place == 1 else other) + channel, mask=is_channel, other=0.0)
        tl.store(totals + place * channels + channel, total, mask=is_channel)
        tl.store(along + (place - 1) * channels + channel, total * factor * factor / rows, mask=is_channel)


@triton.jit
def _total(sums, place, count, runs, channels, RUNS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    found = tl.full((RUNS, CHANNELS), 0.0, tl.float32)
    for first in range(0, runs, RUNS):
        run = first + tl.arange(0, RUNS)
        is_there = (run < runs)[:, None] & (channel < channels)[None, :]
        found += tl.load(sums + (run * count + place)[:, None] * channels + channel[None, :], mask=is_there, other=0.0)
    return tl.sum(found, 0)


@triton.jit
def _grad_sums(
    grad, x, mean, scale, shift, out, rows, channels,
    IS_RECTIFIED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
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
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        given = tl.load(grad + place, mask=is_there, other=0.0).to(tl.float32)
        apart = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle
        if IS_RECTIFIED:
            given = tl.where(apart * factor + moved <= 0.0, 0.0, given)
        first += given
        second += given * apart
    made = out + run * 2 * channels + channel
    tl.store(made, tl.sum(first, 0), mask=is_channel)
    tl.store(made + channels, tl.sum(second, 0), mask=is_channel)


@triton.jit
def _joined_sums(
    grad, other, marks, x, mean, added, added_mean, passed, sums, rows, channels,
    HAS_OTHER: tl.constexpr, HAS_SECOND: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
    STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    byte = tl.program_id(0) * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
    is_channel, is_byte = channel < channels, byte < channels // 8
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    if HAS_SECOND:
        added_middle = tl.load(added_mean + channel, mask=is_channel, other=0.0)[None, :]
    first = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    second = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    third = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    bit = tl.arange(0, 8)[None, None, :]
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        given = tl.load(grad + place, mask=is_there, other=0.0).to(tl.float32)
        if HAS_OTHER:
            given += tl.load(other + place, mask=is_there, other=0.0).to(tl.float32)
        mark = row.to(tl.int64)[:, None] * (channels // 8) + byte[None, :]
        packed = tl.load(marks + mark, mask=(row < rows)[:, None] & is_byte[None, :], other=0).to(tl.int32)
        is_above = ((packed[:, :, None] >> bit) & 1).reshape(ROWS, CHANNELS)
        rounded = tl.where(is_above == 0, 0.0, given).to(passed.dtype.element_ty)
        tl.store(passed + place, rounded, mask=is_there)
        apart = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle
        first += rounded.to(tl.float32)
        second += rounded.to(tl.float32) * apart
        if HAS_SECOND:
            apart = tl.load(added + place, mask=is_there, other=0.0).to(tl.float32) - added_middle
            third += rounded.to(tl.float32) * apart
    made = sums + run * (3 if HAS_SECOND else 2) * channels + channel
    tl.store(made, tl.sum(first, 0), mask=is_channel)
    tl.store(made + channels, tl.sum(second, 0), mask=is_channel)
    if HAS_SECOND:
        tl.store(made + 2 * channels, tl.sum(third, 0), mask=is_channel)
