"""The largest of each window, and gradients back to where they were, as two Triton kernels over N, C, H, W in
channels_last. A program makes some rows of the last axes and some channels, which lie side by side.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_TILE, _MOST_CHANNELS = 1024, 128


def find(x: Tensor, out: Tensor, place: Tensor, side: int, stride: int, padding: int) -> None:
    rows = out.shape[0] * out.shape[2] * out.shape[3]
    _launch(_find, x, out, place, rows, x.shape, out.shape, side, stride, padding)


def give_back(grad: Tensor, place: Tensor, out: Tensor, side: int, stride: int, padding: int) -> None:
    """Pixels that the same few windows see, a stride's block of them, are made together."""
    down, across = (triton.cdiv(size, stride) for size in out.shape[2:])
    rows = out.shape[0] * down * across
    _launch(_give_back, grad, place, out, rows, out.shape, grad.shape, side, stride, padding)


def _launch(kernel, one, two, three, rows, outer, inner, side, stride, padding):  # type: ignore[no-untyped-def]
    wide = min(_MOST_CHANNELS, triton.next_power_of_2(outer[1]))
    high = _TILE // wide
    grid = (triton.cdiv(rows, high), triton.cdiv(outer[1], wide))
    kernel[grid](
        one, two, three, rows, *outer[1:], *inner[2:],
        SIDE=side, STRIDE=stride, PADDING=padding, ROWS=high, CHANNELS=wide,
    )  # fmt: skip


@triton.jit
def _find(
    x, out, place, rows, channels, high, wide, made_high, made_wide,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """As torch does it: the first of the largest, or the last that is not a number."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_there = (row < rows)[:, None] & (channel < channels)[None, :]
    across, down, image = row % made_wide, row // made_wide % made_high, row // made_wide // made_high
    best = tl.full((ROWS, CHANNELS), float("-inf"), tl.float32)
    best_at = tl.full((ROWS, CHANNELS), -1, tl.int32)
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            y, z = down * STRIDE - PADDING + i, across * STRIDE - PADDING + j
            is_inside = (y >= 0) & (y < high) & (z >= 0) & (z < wide)
            looked = is_there & is_inside[:, None]
            pixel = (image.to(tl.int64) * high + y) * wide + z
            level = tl.load(x + pixel[:, None] * channels + channel[None, :], mask=looked, other=0.0).to(tl.float32)
            is_better = looked & ((level > best) | (level != level) | (best_at < 0))
            best = tl.where(is_better, level, best)
            best_at = tl.where(is_better, i * SIDE + j, best_at)
    made = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(out + made, best.to(out.dtype.element_ty), mask=is_there)
    tl.store(place + made, best_at.to(tl.int8), mask=is_there)


@triton.jit
def _give_back(
    grad, place, out, rows, channels, high, wide, given_high, given_wide,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """A pixel i rows into its block lies (i + PADDING) % STRIDE rows into the last window that begins no later, and a
    stride further into the one before."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    blocks_high, blocks_wide = (high + STRIDE - 1) // STRIDE, (wide + STRIDE - 1) // STRIDE
    across, down, image = row % blocks_wide, row // blocks_wide % blocks_high, row // blocks_wide // blocks_high
    is_there = (row < rows)[:, None] & (channel < channels)[None, :]
    image = image.to(tl.int64)
    for i in tl.static_range(STRIDE):
        for j in tl.static_range(STRIDE):
            total = tl.full((ROWS, CHANNELS), 0.0, tl.float32)
            for m in tl.static_range((SIDE + STRIDE - 1) // STRIDE):
                for n in tl.static_range((SIDE + STRIDE - 1) // STRIDE):
                    if (i + PADDING) % STRIDE + m * STRIDE < SIDE and (j + PADDING) % STRIDE + n * STRIDE < SIDE:
                        y, z = down + (i + PADDING) // STRIDE - m, across + (j + PADDING) // STRIDE - n
                        is_inside = (y >= 0) & (y < given_high) & (z >= 0) & (z < given_wide)
                        looked = is_there & is_inside[:, None]
                        given = ((image * given_high + y) * given_wide + z)[:, None] * channels + channel[None, :]
                        at = ((i + PADDING) % STRIDE + m * STRIDE) * SIDE + (j + PADDING) % STRIDE + n * STRIDE
                        is_its = tl.load(place + given, mask=looked, other=-1) == at
                        level = tl.load(grad + given, mask=looked, other=0.0).to(tl.float32)
                        total += tl.where(is_its, level, 0.0)
            y, z = down * STRIDE + i, across * STRIDE + j
            made = ((image * high + y) * wide + z)[:, None] * channels + channel[None, :]
            is_made = is_there & ((y < high) & (z < wide))[:, None]
            tl.store(out + made, total.to(out.dtype.element_ty), mask=is_made)
