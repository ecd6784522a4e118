"""A framing by kernels: what they are told of each image in one copy, and the few launches that it takes.

A resize has two passes, with levels between them that lie image by image, each only as large as it is looked at. The
last pass writes every image to its place in the batch, whichever axis it took first."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.axis_views import Axis
from hotlap.parts.filter_taps import nearest, taken_each
from hotlap.parts.packed_images import MOST_ELEMENTS, Images, sent

if TYPE_CHECKING:
    from hotlap.parts.resampling import Framing

_WIDE = 16  # rows between two passes begin at a multiple of this
_BEHIND = 256  # bytes that a tile may look at behind the last row


def framed(own: ModuleType, framing: Framing, images: Images, numbers: np.ndarray, table: Tensor | None) -> Images:
    """With what becomes of each level (C, 256), where that is more than itself."""
    rows, columns = framing.axes(images, numbers)
    device, shape = images.device, (len(images), images.channels, rows.longest, columns.longest)
    flat, starts = images.reached()
    made = torch.empty(shape, dtype=torch.uint8 if table is None else table.dtype, device=device)
    starts = starts + rows.begin * images.strides + columns.begin
    if framing.filter is None:
        batch = own.Batch(flat, sent(told(images, starts, rows, columns), device), made, table)
        own.picked(batch, framing.border, _levels(framing.fill, images.channels, device))
        return Images.stacked(made, rows.lengths, columns.lengths)
    plan = Plan(images, rows, columns, framing.takes_rows_first(rows, columns))
    batch = own.Batch(flat, sent(told(images, starts, rows, columns, plan), device), made, table)
    axes = [axis.numbers for axis in (rows, columns)]
    most = [int(taken_each(axis, framing.filter).max()) for axis in axes]
    down, across = own.taps(batch.told, _nearest(framing.filter, axes, device), most, shape, framing.filter)
    between = torch.empty(plan.bytes, dtype=torch.uint8, device=device)
    for part, rows_first in plan.parts:
        chosen = plan.order[part]
        if rows_first:
            first, extent, last = down, (rows.longest, int(columns.count[chosen].max())), across
        else:
            first, extent, last = across, (float(rows.count[chosen].mean()), columns.longest), down
        own.resampled(batch, between, first, part, extent, is_across=not rows_first, is_last=False)
        own.resampled(batch, between, last, part, shape[2:], is_across=rows_first, is_last=True)
    return Images.stacked(made, rows.lengths, columns.lengths)


class Plan:
    """In which order images are taken, in which parts, and where each lies between its two passes."""

    def __init__(self, images: Images, rows: Axis, columns: Axis, is_tall: np.ndarray) -> None:
        wide = np.where(is_tall, columns.count, columns.longest)
        self.strides = -(-wide // _WIDE) * _WIDE
        sizes = images.channels * self.strides * np.where(is_tall, rows.longest, rows.count)
        self.order = np.argsort(is_tall, kind="stable")
        self.starts, self.parts = np.zeros_like(sizes), []
        for is_among in (False, True):
            group = np.flatnonzero(is_tall == is_among)
            first = len(images) - len(group) if is_among else 0
            for part in within(sizes[group], 4 * MOST_ELEMENTS):
                inside = group[part]
                self.starts[inside] = np.cumsum(sizes[inside]) - sizes[inside]
                self.parts.append((slice(first + part.start, first + part.stop), is_among))
        self.bytes = int((self.starts + sizes).max()) + _BEHIND


def within(sizes: np.ndarray, most: int) -> list[slice]:
    """Neighbours, as many as together are no larger than that, or one alone."""
    if not len(sizes):
        return []
    if sizes.sum() <= most:
        return [slice(0, len(sizes))]
    parts, first, held = [], 0, 0
    for last, size in enumerate(sizes.tolist()):
        if last > first and held + size > most:
            parts.append(slice(first, last))
            first, held = last, 0
        held += size
    return [*parts, slice(first, len(sizes))]


def told(images: Images, starts: np.ndarray, rows: Axis, columns: Axis, plan: Plan | None = None) -> np.ndarray:
    """What kernels must know of each image, in 32 numbers of 32 bits (N, 32): where it starts and where it lies between
    two passes (two numbers each), its plane and stride, the stride between, what is looked at of its rows and columns,
    which image comes at this place of the order, and the views of rows and of columns."""
    found = np.zeros((len(images), 32), dtype=np.int32)
    wide = found.view(np.int64)
    wide[:, 0] = starts
    found[:, 4], found[:, 5], found[:, 7], found[:, 8] = images.planes, images.strides, rows.count, columns.count
    if plan is not None:
        wide[:, 1], found[:, 6], found[:, 9] = plan.starts, plan.strides, plan.order
    found[:, 10:21], found[:, 21:] = rows.numbers, columns.numbers
    return found


def _nearest(filter: str, axes: list[np.ndarray], device: torch.device) -> Tensor | None:
    if filter != "nearest":
        return None
    tables = [nearest(numbers) for numbers in axes]
    both = np.zeros((2, len(axes[0]), max(table.shape[1] for table in tables)), dtype=np.int32)
    for table, kept in zip(tables, both, strict=True):
        kept[:, : table.shape[1]] = table
    return sent(both, device)


@functools.cache
def _levels(fill: tuple[float, ...], channels: int, device: torch.device) -> Tensor:
    """Whole levels, as torchvision makes them of what it was given."""
    levels = torch.tensor(fill, dtype=torch.float64).to(torch.uint8).expand(channels).contiguous().to(device)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # other streams will read it
    return levels
