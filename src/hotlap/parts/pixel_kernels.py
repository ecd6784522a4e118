"""Batch norm's own work on pixels as Triton kernels over rows of channels that lie side by side: normed and rectified,
with something added or without, and gradients back to them. What is known of a channel is loaded once for many rows,
where a compiler's own kernels load it for every pixel anew.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton


class Tiling(NamedTuple):
    """How rows are shared out: each program takes tiles of so many numbers by turns, some of them ahead."""

    size: int
    most_channels: int
    programs: int
    stages: int


_MOST_RUNS = 65535  # of a grid
_ONCE = Tiling(4096, 64, 1 << 30, 1)  # a program a tile; both the fastest of eight on one H200, for ResNet-50
_BY_TURNS = Tiling(4096, 128, 1056, 2)  # by eight warps
MARKS = 8  # in a byte


@triton_op("hotlap::normed", mutates_args=())
def normed(x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Rectified, of rows, channels."""
    out = torch.empty_like(x)
    grid, tile = plan(x, _ONCE)
    wrap_triton(_normed)[grid](x, mean, scale, shift, out, *x.shape, **tile)
    return out


@triton_op("hotlap::joined_normed", mutates_args=())
def joined_normed(
    x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, added: Tensor,
    added_mean: Tensor | None, added_scale: Tensor | None, added_shift: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """With something added, which is normed as well or not, and rectified; and a bit for each pixel above zero."""
    rows, channels = x.shape
    out, marks = torch.empty_like(x), torch.empty((rows, channels // MARKS), dtype=torch.uint8, device=x.device)
    grid, tile = plan(x, _ONCE)
    others = (mean, scale, shift) if added_mean is None else (added_mean, added_scale, added_shift)
    wrap_triton(_joined_normed)[grid](
        x, mean, scale, shift, added, *others, out, marks, rows, channels, IS_NORMED=added_mean is not None, **tile
    )
    return out, marks


@triton_op("hotlap::norm_given_back", mutates_args=())
def given_back(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, along: Tensor, level: Tensor,
    is_rectified: bool,
) -> Tensor:  # fmt: skip
    """What passes of gradients, without what goes along with deviations and what all pixels share; scaled."""
    out = torch.empty_like(x)
    grid, tile = plan(x, _BY_TURNS)
    wrap_triton(_given_back)[grid](
        grad, x, mean, scale, shift, along, level, out, *x.shape, IS_RECTIFIED=is_rectified, **tile
    )
    return out


@triton_op("hotlap::two_norms_given_back", mutates_args=())
def both_given_back(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, along: Tensor, other: Tensor, other_mean: Tensor,
    other_scale: Tensor, other_along: Tensor, level: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The same for two norms that were added, by one look at their gradient."""
    one, two = torch.empty_like(x), torch.empty_like(other)
    grid, tile = plan(x, _ONCE)
    wrap_triton(_both_given_back)[grid](
        grad, x, mean, scale, along, other, other_mean, other_scale, other_along, level, one, two, *x.shape, **tile
    )
    return one, two


def plan(x: Tensor, tiling: Tiling) -> tuple[tuple[int, int], dict[str, Any]]:
    """A grid over channels and runs of rows, and the tile."""
    rows, channels = x.shape
    wide = min(tiling.most_channels, triton.next_power_of_2(channels))
    high, across = tiling.size // wide, triton.cdiv(channels, wide)
    runs = min(max(1, tiling.programs // across), _MOST_RUNS)
    if isinstance(rows, int):
        runs = min(runs, triton.cdiv(rows, high))
    return (across, runs), {"ROWS": high, "CHANNELS": wide, "STAGES": tiling.stages}


@triton.jit
def _normed(
    x, mean, scale, shift, out, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr
):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    moved = tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        made = (tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle) * factor + moved
        tl.store(out + place, tl.where(made <= 0.0, 0.0, made).to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _joined_normed(
    x, mean, scale, shift, added, added_mean, added_scale, added_shift, out, marks, rows, channels,
    IS_NORMED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    byte = tl.program_id(0) * (CHANNELS // 8) + tl.arange(0, CHANNELS // 8)
    is_channel, is_byte = channel < channels, byte < channels // 8
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    moved = tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]
    if IS_NORMED:
        added_middle = tl.load(added_mean + channel, mask=is_channel, other=0.0)[None, :]
        added_factor = tl.load(added_scale + channel, mask=is_channel, other=0.0)[None, :]
        moved += tl.load(added_shift + channel, mask=is_channel, other=0.0)[None, :]
    bit = tl.arange(0, 8)[None, None, :]
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        made = (tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle) * factor + moved
        other = tl.load(added + place, mask=is_there, other=0.0).to(tl.float32)
        if IS_NORMED:
            other = (other - added_middle) * added_factor
        made += other
        rounded = tl.where(made <= 0.0, 0.0, made).to(out.dtype.element_ty)
        tl.store(out + place, rounded, mask=is_there)
        above = tl.where(rounded.to(tl.float32) <= 0.0, 0, 1).reshape(ROWS, CHANNELS // 8, 8)
        mark = row.to(tl.int64)[:, None] * (channels // 8) + byte[None, :]
        packed = tl.sum(above << bit, 2).to(tl.uint8)
        tl.store(marks + mark, packed, mask=(row < rows)[:, None] & is_byte[None, :])


@triton.autotune([triton.Config({}, num_warps=8)], key=[])  # said in a call, each call would be compiled by itself
@triton.jit
def _given_back(
    grad, x, mean, scale, shift, along, level, out, rows, channels,
    IS_RECTIFIED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    moved = tl.load(shift + channel, mask=is_channel, other=0.0)[None, :]
    share = tl.load(along + channel, mask=is_channel, other=0.0)[None, :]
    constant = tl.load(level + channel, mask=is_channel, other=0.0)[None, :]
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        passed = tl.load(grad + place, mask=is_there, other=0.0).to(tl.float32)
        apart = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle
        if IS_RECTIFIED:
            passed = tl.where(apart * factor + moved <= 0.0, 0.0, passed)
        made = (passed - apart * share - constant) * factor
        tl.store(out + place, made.to(out.dtype.element_ty), mask=is_there)


@triton.jit
def _both_given_back(
    grad, x, mean, scale, along, other, other_mean, other_scale, other_along, level, one, two, rows, channels,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    factor = tl.load(scale + channel, mask=is_channel, other=0.0)[None, :]
    share = tl.load(along + channel, mask=is_channel, other=0.0)[None, :]
    other_middle = tl.load(other_mean + channel, mask=is_channel, other=0.0)[None, :]
    other_factor = tl.load(other_scale + channel, mask=is_channel, other=0.0)[None, :]
    other_share = tl.load(other_along + channel, mask=is_channel, other=0.0)[None, :]
    constant = tl.load(level + channel, mask=is_channel, other=0.0)[None, :]
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        passed = tl.load(grad + place, mask=is_there, other=0.0).to(tl.float32) - constant
        apart = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle
        tl.store(one + place, ((passed - apart * share) * factor).to(one.dtype.element_ty), mask=is_there)
        apart = tl.load(other + place, mask=is_there, other=0.0).to(tl.float32) - other_middle
        made = (passed - apart * other_share) * other_factor
        tl.store(two + place, made.to(two.dtype.element_ty), mask=is_there)
