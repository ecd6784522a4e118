"""Sums over all pixels of each channel, as Triton kernels over rows of channels that lie side by side. Programs take
tiles by turns; what they found is added up by whoever asked, always in the same order.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

_TILE, _MOST_CHANNELS, _PROGRAMS, _STAGES = 2048, 64, 528, 3  # the fastest of 48 on one H200, for ResNet-50


@triton_op("hotlap::channel_sums", mutates_args=())
def sums(x: Tensor, start: Tensor) -> Tensor:
    """Of deviations from `start` and of their squares, in the middle of `programs, 2, channels`; of rows, channels."""
    out, grid, tile = _plan(x)
    wrap_triton(_sums)[grid](x, start, out, *x.shape, **tile)
    return out


@triton_op("hotlap::channel_grad_sums", mutates_args=())
def grad_sums(grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, shift: Tensor, is_rectified: bool) -> Tensor:
    """Of gradients, and of gradients times deviations from `mean`; where rectified, of those above zero after
    `scale` and `shift`."""
    out, grid, tile = _plan(x)
    wrap_triton(_grad_sums)[grid](grad, x, mean, scale, shift, out, *x.shape, IS_RECTIFIED=is_rectified, **tile)
    return out


@triton_op("hotlap::channel_joined_sums", mutates_args=())
def joined_sums(grad: Tensor, other: Tensor | None, out: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """What passes of one or two gradients together where `out` is above zero, and the same sums of that."""
    passed = torch.empty_like(x)
    sums, grid, tile = _plan(x)
    given = grad if other is None else other
    wrap_triton(_joined_sums)[grid](
        grad, given, out, x, mean, passed, sums, *x.shape, HAS_OTHER=other is not None, **tile
    )
    return passed, sums


def _plan(x: Tensor) -> tuple[Tensor, tuple[int, int], dict[str, Any]]:
    rows, channels = x.shape
    wide = min(_MOST_CHANNELS, triton.next_power_of_2(channels))
    high, across = _TILE // wide, triton.cdiv(channels, wide)
    runs = max(1, _PROGRAMS // across)
    if isinstance(rows, int):
        runs = min(runs, triton.cdiv(rows, high))
    out = torch.empty((runs, 2, channels), dtype=torch.float32, device=x.device)
    return out, (across, runs), {"ROWS": high, "CHANNELS": wide, "STAGES": _STAGES}


@triton.jit
def _sums(x, start, out, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr):  # type: ignore[no-untyped-def]
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    begin = tl.load(start + channel, mask=is_channel, other=0.0).to(tl.float32)[None, :]
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
    grad, other, out, x, mean, passed, sums, rows, channels,
    HAS_OTHER: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    middle = tl.load(mean + channel, mask=is_channel, other=0.0)[None, :]
    first = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    second = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        given = tl.load(grad + place, mask=is_there, other=0.0).to(tl.float32)
        if HAS_OTHER:
            given += tl.load(other + place, mask=is_there, other=0.0).to(tl.float32)
        level = tl.load(out + place, mask=is_there, other=0.0).to(tl.float32)
        rounded = tl.where(level <= 0.0, 0.0, given).to(passed.dtype.element_ty)
        tl.store(passed + place, rounded, mask=is_there)
        apart = tl.load(x + place, mask=is_there, other=0.0).to(tl.float32) - middle
        first += rounded.to(tl.float32)
        second += rounded.to(tl.float32) * apart
    made = sums + run * 2 * channels + channel
    tl.store(made, tl.sum(first, 0), mask=is_channel)
    tl.store(made + channels, tl.sum(second, 0), mask=is_channel)
