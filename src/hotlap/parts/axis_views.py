"""Crops, flips and pads of one axis in closed form: five whole numbers, however many of them follow one another.

Place i of the result shows place `sign * i + offset` of the source; all but `low <= place < high` of it is border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

PER_AXIS = 11  # numbers in `Frame.numbers` for one axis: a view, the length it is resized to, a view of that


class View(NamedTuple):
    sign: int
    offset: int
    low: int
    high: int
    length: int

    @classmethod
    def whole(cls, length: int) -> View:
        return cls(1, 0, 0, length, length)

    def cropped(self, start: int, length: int) -> View:
        return View(self.sign, self.offset + self.sign * start, self.low, self.high, length)

    def flipped(self) -> View:
        offset = self.offset + self.sign * (self.length - 1)
        return View(-self.sign, offset, self.low, self.high, self.length)

    def padded(self, before: int, after: int) -> View:
        """What a crop took away before stays away: the border begins where the view ends now."""
        ends = (self.offset, self.offset + self.sign * (self.length - 1))
        low, high = max(self.low, min(ends)), min(self.high, max(ends) + 1)
        return View(self.sign, self.offset - self.sign * before, low, high, self.length + before + after)


class Frame:
    """What one image goes through in one stage: views, at most one resize, views of what that gave."""

    def __init__(self, height: int, width: int) -> None:
        self.rows, self.columns = View.whole(height), View.whole(width)
        self.resized: tuple[View, View, int, int] | None = None  # the views before it, and its height and width

    @property
    def height(self) -> int:
        return self.rows.length

    @property
    def width(self) -> int:
        return self.columns.length

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        self.rows, self.columns = self.rows.cropped(top, height), self.columns.cropped(left, width)

    def pad(self, left: int, top: int, right: int, bottom: int) -> None:
        self.rows, self.columns = self.rows.padded(top, bottom), self.columns.padded(left, right)

    def flip(self, rows: bool = False, columns: bool = False) -> None:
        self.rows = self.rows.flipped() if rows else self.rows
        self.columns = self.columns.flipped() if columns else self.columns

    def resize(self, height: int, width: int) -> None:
        assert self.resized is None, "a second resize has a stage of its own"
        self.resized = (self.rows, self.columns, height, width)
        self.rows, self.columns = View.whole(height), View.whole(width)

    def numbers(self) -> tuple[int, ...]:
        rows, columns, height, width = self.resized or (self.rows, self.columns, self.height, self.width)
        rows_after, columns_after = self.rows, self.columns
        if self.resized is None:
            rows_after, columns_after = View.whole(height), View.whole(width)
        return (*rows, height, *rows_after, *columns, width, *columns_after)


@dataclass
class Axis:
    """One axis of all images. The part of the source that is looked at begins at `begin`, whence places are counted."""

    numbers: np.ndarray
    begin: np.ndarray
    count: np.ndarray
    longest: int

    @classmethod
    def of(cls, numbers: np.ndarray, sizes: np.ndarray, keeps_whole: bool, begins: bool = True) -> Axis:
        numbers = numbers.astype(np.int64)
        sign, offset, low, high, length = numbers[:, :5].T
        ends = np.stack([offset, offset + sign * (length - 1)])
        first, last = np.maximum(low, ends.min(0)), np.minimum(high, ends.max(0) + 1)
        if keeps_whole:
            first, last = low, high
        first = np.clip(first, 0, sizes - 1) if begins else np.zeros_like(first)
        numbers[:, 1:4] -= first[:, None]
        return cls(numbers, first, np.maximum(last - first, 1), int(numbers[:, PER_AXIS - 1].max()))

    @property
    def lengths(self) -> np.ndarray:
        return self.numbers[:, PER_AXIS - 1]

    def taken(self, order: np.ndarray) -> Axis:
        return Axis(self.numbers[order], self.begin[order], self.count[order], self.longest)


def places(view: Tensor, at: Tensor, border: str, shows_all: bool = False) -> tuple[Tensor, Tensor | None]:
    """Which source place each place `at` (images first) of the views (N, 5) shows, and whether there is one: None where
    it is known that there always is."""
    sign, offset, low, high, length = (column.view(-1, *[1] * (at.dim() - 1)) for column in view.unbind(1))
    if shows_all:
        return sign * at + offset, None
    place = sign * torch.minimum(at, length - 1) + offset  # behind a shorter view lies what nobody may look at
    there = (at >= 0) & (at < length)
    if border == "constant":
        there = there & (place >= low) & (place < high)
    elif border == "reflect":
        period = (2 * (high - low - 1)).clamp(min=1)
        turn = torch.remainder(place - low, period)
        place = low + torch.minimum(turn, period - turn)
    elif border == "symmetric":
        period = 2 * (high - low)
        turn = torch.remainder(place - low, period)
        place = low + torch.minimum(turn, period - 1 - turn)
    return torch.minimum(torch.maximum(place, low), high - 1).clamp(min=0), there
