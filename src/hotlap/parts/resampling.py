"""Resizes of a whole batch as Pillow does them, with the crops, flips and pads before and after, in two products.

Each image has two matrices, one for its columns and one for its rows. A row of a matrix holds the few weights by which
one place of the result looks at the source, so crops, flips and pads are other rows, not other work. As Pillow does:
columns first (or rows, see `pillow_takes_rows_first`), weights of 22 bits, whole levels between the two products. On a
GPU kernels of our own look at those few weights alone, and no matrix is written. Where nothing is resized, pixels are
picked, there by one kernel. Images are taken in parts of similar size, so that no intermediate tensor exceeds
`MOST_ELEMENTS`."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.axis_views import PER_AXIS, Axis, Frame, places
from hotlap.parts.exact_products import half_type, in_halves, levels_times, product
from hotlap.parts.filter_taps import pillow_takes_rows_first, shows_all, taps, without_nothing
from hotlap.parts.framing_by_kernels import framed
from hotlap.parts.packed_images import MOST_ELEMENTS, SPARE, Images, sent


@dataclass
class Framing:
    """A stage: views, at most one resize, and views of what that gave."""

    filter: str | None = None
    border: str | None = None  # None: nothing was padded yet
    fill: tuple[float, ...] = (0.0,)
    is_whole: bool = True  # the pixels are levels, not floats
    by_pillow: bool = True
    levels: float = 0.0

    def takes(self, is_whole: bool, border: tuple[str, tuple[float, ...]] | None, resizes: bool) -> bool:
        """Whether one more may join: one resize at most, borders of one kind, black ones where weights make them."""
        if is_whole != self.is_whole:
            return False
        if resizes:
            return self.filter is None and (self.border is None or (self.border == "constant" and not any(self.fill)))
        if border is None:
            return True
        if self.filter is not None:
            return border[0] == "constant" and not any(border[1])
        return self.border is None or (self.border == "constant" and border == (self.border, self.fill))

    def blank(self, height: int, width: int) -> Frame:
        return Frame(height, width)

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        made = self.run_by_kernels(images, numbers, None)
        return made or self._made(images, numbers, _Picking if self.filter is None else _Resizing)

    def run_by_kernels(self, images: Images, numbers: np.ndarray, table: Tensor | None) -> Images | None:
        """With what becomes of each level (C, 256), where stages follow that do no more than that. None where there are
        no kernels for it."""
        own = kernels(images.device)
        if not self.is_whole or own is None:
            return None
        try:
            return framed(own, self, images, numbers, table)
        except torch.OutOfMemoryError:
            raise
        except Exception:
            _unusable.add(images.device.type)  # no compiler, above all
            return None

    def axes(self, images: Images, numbers: np.ndarray) -> tuple[Axis, Axis]:
        """Of rows and of columns."""
        keeps_whole = self.border not in (None, "constant")
        rows = Axis.of(numbers[:, :PER_AXIS], images.heights, keeps_whole)
        return rows, Axis.of(numbers[:, PER_AXIS:], images.widths, keeps_whole, begins=images.spare > 0)

    def takes_rows_first(self, rows: Axis, columns: Axis) -> np.ndarray:
        """Image by image, as Pillow does."""
        shrinks, narrows = (axis.numbers[:, 4] - axis.numbers[:, 5] for axis in (rows, columns))
        is_tall: np.ndarray = (shrinks > 0) & (shrinks > 2 * narrows)
        if self.filter is None or not self.is_whole or not self.by_pillow or not pillow_takes_rows_first():
            is_tall[:] = False
        return is_tall

    def _made(self, images: Images, numbers: np.ndarray, work: type[_Work]) -> Images:
        rows, columns = self.axes(images, numbers)
        parts = self._parts(rows, columns, work.elements(rows, columns, images.channels))
        if len(parts) == 1:
            parts = [(np.arange(len(images)), parts[0][1])]  # as they came
        order = np.concatenate([part for part, _ in parts])
        starts = images.starts + rows.begin * images.strides + columns.begin
        addresses = np.stack([starts, images.planes, images.strides])[:, order]
        several = work(self, images, rows.taken(order), columns.taken(order), addresses)
        if len(parts) == 1:
            pixels = several.made(slice(None), parts[0][1])
            return Images.stacked(pixels, rows.lengths, columns.lengths)
        shape = (len(images), images.channels, rows.longest, columns.longest)
        pixels = torch.empty(shape, dtype=images.flat.dtype, device=images.device)
        chosen, first = sent(order, images.device), 0
        for part, rows_first in parts:
            here = slice(first, first := first + len(part))
            pixels.index_copy_(0, chosen[here], several.made(here, rows_first))
        return Images.stacked(pixels, rows.lengths, columns.lengths)

    def _parts(self, rows: Axis, columns: Axis, sides: tuple[np.ndarray, np.ndarray]) -> list[tuple[np.ndarray, bool]]:
        """Images of similar size together, and those apart whose rows are resized first."""
        order = np.argsort(rows.count * columns.count, kind="stable")
        is_tall = self.takes_rows_first(rows, columns)
        groups = [(order[is_tall[order] == tall], tall) for tall in (False, True)]
        return [(part, tall) for group, tall in groups for part in _within_bound(group, *sides)]


class _Work:
    """What a framing does to the images, in their new order, some at a time."""

    def __init__(self, framing: Framing, images: Images, rows: Axis, columns: Axis, addresses: np.ndarray) -> None:
        self.framing, self.images, self.rows, self.columns = framing, images, rows, columns
        self.device = images.device
        self.prepare(addresses)

    @staticmethod
    def elements(rows: Axis, columns: Axis, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Two numbers an image, whose product bounds what is made of it on the way."""
        return np.maximum(rows.count, rows.longest), channels * np.maximum(columns.count, columns.longest)

    def prepare(self, addresses: np.ndarray) -> None:
        self.addresses = sent(addresses, self.device)

    def made(self, here: slice, rows_first: bool) -> Tensor:
        raise NotImplementedError

    def source(self, here: slice, rows: Tensor) -> Tensor:
        """Those rows (N or 1, R) of every channel, as N, R, C, W. What lies behind an image is not looked at."""
        start, plane, stride = (numbers.view(-1, 1, 1) for numbers in self.addresses[:, here])
        length = int(self.images.strides.max())
        if self.images.spare:
            length = _in_eights(self.columns.count[here])
        channel = torch.arange(self.images.channels, device=self.device)
        at = start + channel * plane + rows[:, :, None] * stride
        return self.images.rows(at.clamp_(max=self.images.flat.numel() - length), length)


class _Picking(_Work):
    def prepare(self, addresses: np.ndarray) -> None:
        super().prepare(addresses)
        border = self.framing.border or "constant"
        found = []
        for axis in (self.rows, self.columns):
            at = torch.arange(axis.longest, device=self.device).expand(len(axis.numbers), -1)
            found.append(places(sent(axis.numbers[:, :5], self.device), at, border, shows_all(axis.numbers)))
        (self.row, self.row_there), (self.column, self.column_there) = found
        self.fill = sent(np.array(self.framing.fill), self.device).view(1, -1, 1, 1)

    def made(self, here: slice, rows_first: bool) -> Tensor:
        source = self.source(here, self.row[here])
        pixels = source.gather(3, self.column[here, None, None].expand(*source.shape[:3], -1)).permute(0, 2, 1, 3)
        if self.framing.border != "constant":
            return pixels
        if self.row_there is not None:
            pixels = torch.where(self.row_there[here, None, :, None], pixels, self.fill.to(pixels.dtype))
        if self.column_there is not None:
            pixels = torch.where(self.column_there[here, None, None], pixels, self.fill.to(pixels.dtype))
        return pixels


class _Resizing(_Work):
    """By products with matrices, from the weights of both axes."""

    @staticmethod
    def elements(rows: Axis, columns: Axis, channels: int) -> tuple[np.ndarray, np.ndarray]:
        """Results are in halves."""
        return np.maximum(rows.count, 2 * rows.longest), channels * np.maximum(columns.count, 2 * columns.longest)

    def prepare(self, addresses: np.ndarray) -> None:
        super().prepare(addresses)
        framing = self.framing
        both = np.concatenate([self.rows.numbers, self.columns.numbers])  # one launch for two axes
        place, weight = taps(both, self.device, str(framing.filter), framing.is_whole)
        number, rows, columns = len(self.rows.numbers), self.rows.longest, self.columns.longest
        self.down = self.written(place[:number, :rows], weight[:number, :rows])
        self.across = self.written(place[number:, :columns], weight[number:, :columns])

    def written(self, place: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """As the matrices will have them: in halves where the device has matrix units."""
        place, weight = without_nothing(place, weight)
        if not self.framing.is_whole:
            return place, weight.to(self.images.flat.dtype)
        half = half_type(self.device)
        return (place, weight) if half is None else (place.repeat(1, 2, 1), in_halves(weight).to(half))

    def made(self, here: slice, rows_first: bool) -> Tensor:
        height = _in_eights(self.rows.count[here])
        pixels = self.source(here, torch.arange(height, device=self.device)[None])
        across = _matrix(self.across, here, pixels.shape[3]).transpose(1, 2)
        down = _matrix(self.down, here, height)
        if rows_first:
            return self._across(self._down(pixels, down), across).permute(0, 2, 1, 3)
        return self._down(self._across(pixels, across), down).permute(0, 2, 1, 3)

    def _across(self, pixels: Tensor, weights: Tensor) -> Tensor:
        number, height, channels, width = pixels.shape
        pixels = pixels.view(number, height * channels, width)
        made = levels_times(pixels, weights, 2) if self.framing.is_whole else product(pixels, weights)
        return made.view(number, height, channels, -1)

    def _down(self, pixels: Tensor, weights: Tensor) -> Tensor:
        number, height, channels, width = pixels.shape
        pixels = pixels.view(number, height, channels * width)
        made = levels_times(weights, pixels, 1) if self.framing.is_whole else product(weights, pixels)
        return made.view(number, -1, channels, width)


_unusable: set[str] = set()  # kinds of devices on which kernels of ours could not be started


def kernels(device: torch.device) -> ModuleType | None:
    return None if device.type != "cuda" or device.type in _unusable else _kernels()


@functools.cache
def _kernels() -> ModuleType | None:
    try:
        from hotlap.parts import resampling_kernels
    except ImportError:
        return None
    return resampling_kernels


def _matrix(written: tuple[Tensor, Tensor], here: slice, count: int) -> Tensor:
    place, weight = written[0][here], written[1][here]
    return torch.zeros(*place.shape[:2], count, dtype=weight.dtype, device=weight.device).scatter_(2, place, weight)


def _in_eights(counts: np.ndarray) -> int:
    """As long as the longest, rounded up to what matrix units like."""
    return -(-int(counts.max()) // SPARE) * SPARE


def _within_bound(order: np.ndarray, heights: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    """Images of similar size together, each part within the bound with all of it padded to its largest."""
    if not len(order):
        return []
    if len(order) * int(heights[order].max()) * int(widths[order].max()) <= MOST_ELEMENTS:
        return [order]
    parts, first, height, width = [], 0, 0, 0
    for last, image in enumerate(order):
        height, width = max(height, int(heights[image])), max(width, int(widths[image]))
        if last > first and (last + 1 - first) * height * width > MOST_ELEMENTS:
            parts.append(order[first:last])
            first, height, width = last, int(heights[image]), int(widths[image])
    return [*parts, order[first:]]
