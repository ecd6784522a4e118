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


@triton_op("hotlap::channel_statistics", mutates_args=("running_mean", "running_var"))
def statistics(
    x: Tensor, weight: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None, momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of rows, channels: their mean, the factor that makes their variance one, and that times the weight. Running
    statistics are moved on. Deviations are from the first row."""
    sums, grid, tile = _plan(x)
    wrap_triton(_sums)[grid](x, sums, *x.shape, **tile)
    return _known(sums, x, x.shape[0], weight, running_mean, running_var, momentum, eps)


@triton_op("hotlap::statistics_of_sums", mutates_args=("running_mean", "running_var"))
def statistics_of_sums(
    sums: Tensor, start: Tensor, rows: int, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The same, where sums over some rows each are there already, with that from which they deviate."""
    return _known(sums, start, rows, weight, running_mean, running_var, momentum, eps)


def _known(
    sums: Tensor, start: Tensor, rows: int, weight: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    runs, _, channels = sums.shape
    mean, inverse, scale = (torch.empty(channels, dtype=torch.float32, device=sums.device) for _ in range(3))
    is_running = running_mean is not None and running_var is not None
    wrap_triton(_statistics)[(triton.cdiv(channels, _CHANNELS),)](
        sums, start, mean, inverse, scale, mean if weight is None else weight,
        running_mean if is_running else mean, running_var if is_running else mean,
        runs, channels, rows, momentum, eps,
        HAS_WEIGHT=weight is not None, IS_RUNNING=is_running, RUNS=_RUNS, CHANNELS=_CHANNELS,
    )  # fmt: skip
    return mean, inverse, scale


@triton_op("hotlap::channel_grad_sums", mutates_args=())
def grad_sums(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor, is_rectified: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """For biases and weights: of gradients, and of gradients times deviations from `mean`, normed; where rectified, of
    those above zero after `scale` and `shift`. With what of them goes along with deviations, and what all pixels
    share."""
    out, grid, tile = _plan(x)
    wrap_triton(_grad_sums)[grid](grad, x, mean, scale, shift, out, *x.shape, IS_RECTIFIED=is_rectified, **tile)
    totals, along, level = shared(out, inverse, inverse, x.shape[0])
    return totals, along[0], level


@triton_op("hotlap::channel_joined_sums", mutates_args=())
def joined_sums(
    grad: Tensor, other: Tensor | None, marks: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, added: Tensor | None,
    added_mean: Tensor | None, added_inverse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What passes of one or two gradients together where it is marked, and the same of that; and third, where something
    that was added is normed too, for its weights, and what goes along with its deviations."""
    passed = torch.empty_like(x)
    sums, grid, tile = _plan(x, 2 if added is None else 3)
    given = grad if other is None else other
    second = (x, mean) if added is None else (added, added_mean)
    wrap_triton(_joined_sums)[grid](
        grad, given, marks, x, mean, *second, passed, sums, *x.shape,
        HAS_OTHER=other is not None, HAS_SECOND=added is not None, **tile,
    )  # fmt: skip
    return passed, *shared(sums, inverse, inverse if added_inverse is None else added_inverse, x.shape[0])


def _plan(x: Tensor, count: int = 2) -> tuple[Tensor, tuple[int, int], dict[str, Any]]:
    grid, tile = plan(x, _TILING)
    return torch.empty((grid[1], count, x.shape[1]), dtype=torch.float32, device=x.device), grid, tile


def shared(sums: Tensor, inverse: Tensor, other: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """What follows from sums over some rows each: what is for a bias and for weights, what goes along with deviations,
    and what all pixels share. Of two norms the second has a bias as well, whose gradient is the same but must lie in a
    place of its own: the script may change each where it lies."""
    runs, count, channels = sums.shape
    totals, along = sums.new_empty(2 * count - 2, channels), sums.new_empty(count - 1, channels)
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
def _statistics(
    sums, begin, mean, inverse, scale, weight, running_mean, running_var, runs, channels, rows, momentum, eps,
    HAS_WEIGHT: tl.constexpr, IS_RUNNING: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    # all that is read, before anybody waits
    start = tl.load(begin + channel, mask=is_channel, other=0.0).to(tl.float32)
    if HAS_WEIGHT:
        weighed = tl.load(weight + channel, mask=is_channel, other=0.0)
    if IS_RUNNING:
        old_mean = tl.load(running_mean + channel, mask=is_channel, other=0.0).to(tl.float32)
        old_var = tl.load(running_var + channel, mask=is_channel, other=0.0).to(tl.float32)
    apart = _total(sums, 0, 2, runs, channels, RUNS, CHANNELS) / rows
    squares = _total(sums, 1, 2, runs, channels, RUNS, CHANNELS) / rows
    spread = squares - apart * apart
    spread = tl.where(spread < 0.0, 0.0, spread)
    middle, factor = apart + start, 1.0 / tl.sqrt(spread + eps)
    tl.store(mean + channel, middle, mask=is_channel)
    tl.store(inverse + channel, factor, mask=is_channel)
    if HAS_WEIGHT:
        factor *= weighed
    tl.store(scale + channel, factor, mask=is_channel)
    if IS_RUNNING:
        new_mean = old_mean + (middle - old_mean) * momentum
        new_var = old_var + (spread * (rows / (rows - 1)) - old_var) * momentum
        tl.store(running_mean + channel, new_mean.to(running_mean.dtype.element_ty), mask=is_channel)
        tl.store(running_var + channel, new_var.to(running_var.dtype.element_ty), mask=is_channel)


@triton.jit
def _add_up(
    sums, inverse, other, totals, along, level, runs, channels, rows,
    COUNT: tl.constexpr, RUNS: tl.constexpr, CHANNELS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channel < channels
    first = _total(sums, 0, COUNT, runs, channels, RUNS, CHANNELS)
    tl.store(totals + channel, first, mask=is_channel)
    if COUNT > 2:
        tl.store(totals + COUNT * channels + channel, first, mask=is_channel)
    tl.store(level + channel, first / rows, mask=is_channel)
    for place in tl.static_range(1, COUNT):
        total = _total(sums, place, COUNT, runs, channels, RUNS, CHANNELS)
        factor = tl.load((inverse if place == 1 else other) + channel, mask=is_channel, other=0.0)
        tl.store(totals + place * channels + channel, total * factor, mask=is_channel)
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
def passing(given, packed, ROWS: tl.constexpr, CHANNELS: tl.constexpr):  # type: ignore[no-untyped-def]
    """What of it is marked, by eight marks to a byte."""
    bits = (packed.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.where(bits.reshape(ROWS, CHANNELS) == 0, 0.0, given)


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
    run, runs = tl.program_id(1), tl.num_programs(1)
    for top in tl.range(run * ROWS, rows, runs * ROWS, num_stages=STAGES):
        row = top + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None] & is_channel[None, :]
        place = row.to(tl.int64)[:, None] * channels + channel[None, :]
        given = tl.load(grad + place, mask=is_there, other=0.0).to(tl.float32)
        if HAS_OTHER:
            given += tl.load(other + place, mask=is_there, other=0.0).to(tl.float32)
        mark = row.to(tl.int64)[:, None] * (channels // 8) + byte[None, :]
        packed = tl.load(marks + mark, mask=(row < rows)[:, None] & is_byte[None, :], other=0)
        rounded = passing(given, packed, ROWS, CHANNELS).to(passed.dtype.element_ty)
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
