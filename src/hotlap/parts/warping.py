"""Rotations and affine maps of a whole batch, as Pillow does them: nearest in 16.16 fixed point, bilinear cut off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.packed_images import Images, sent

_LEFT_ALONE = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclass
class Warping:
    """A stage. Numbers: the six of the map from a place of the result to one of the source."""

    filter: str
    fill: tuple[float, ...] = (0.0,)
    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return _LEFT_ALONE

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        maps = sent(numbers.astype(np.float64), images.device)
        sizes = sent(np.stack([images.widths, images.heights]), images.device)
        fill = sent(np.array(self.fill), images.device).to(images.flat.dtype).view(1, -1, 1)
        look = _nearest if self.filter == "nearest" else _bilinear

        def change(pixels: Tensor, part: slice) -> Tensor:
            width, height = (size.view(-1, 1, 1) for size in sizes[:, part])
            made, there = look(pixels, [number.view(-1, 1, 1) for number in maps[part].unbind(1)], width, height)
            return torch.where(there.flatten(1)[:, None], made, fill).view(pixels.shape)

        return images.by_parts(change)


def rotation(angle: float, width: int, height: int, centre: Sequence[float] | None) -> tuple[float, ...]:
    """The map of Pillow's `rotate`."""
    x, y = centre or (width / 2, height / 2)
    turn = -math.radians(angle % 360.0)
    cosine, sine = round(math.cos(turn), 15), round(math.sin(turn), 15)
    return (cosine, sine, cosine * -x + sine * -y + x, -sine, cosine, -sine * -x + cosine * -y + y)


def affine(
    angle: float, shift: Sequence[float], scale: float, shear: Sequence[float], centre: Sequence[float], version: int
) -> tuple[float, ...]:
    """The map from result to source of: shear, turn and scale about the centre, then shift. The two versions of
    torchvision round in different orders, which quarter turns show."""
    turn, shear_x, shear_y = (math.radians(degrees) for degrees in (angle, *shear))
    (x, y), (right, down), slant = centre, shift, math.tan(shear_x)
    a = math.cos(turn - shear_y) / math.cos(shear_y)
    c = math.sin(turn - shear_y) / math.cos(shear_y)
    if version == 2:
        b, d = -(a * slant + math.sin(turn)), math.cos(turn) - c * slant
        a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
        return (a, b, x - a * (x + right) - b * (y + down), c, d, y - c * (x + right) - d * (y + down))
    b = -math.cos(turn - shear_y) * slant / math.cos(shear_y) - math.sin(turn)
    d = -math.sin(turn - shear_y) * slant / math.cos(shear_y) + math.cos(turn)
    a, b, c, d = d / scale, -b / scale, -c / scale, a / scale
    return (a, b, a * (-x - right) + b * (-y - down) + x, c, d, c * (-x - right) + d * (-y - down) + y)


def _grid(pixels: Tensor) -> tuple[Tensor, Tensor]:
    rows = torch.arange(pixels.shape[2], device=pixels.device)
    return torch.arange(pixels.shape[3], device=pixels.device).view(1, 1, -1), rows.view(1, -1, 1)


def _looked_up(pixels: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """N, C, H * W: the pixels at those places (N, H, W)."""
    place = (y * pixels.shape[3] + x).flatten(1)[:, None]
    return pixels.flatten(2).gather(2, place.expand(-1, pixels.shape[1], -1))


def _nearest(pixels: Tensor, map_: list[Tensor], width: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c, d, e, f = map_
    x, y = _grid(pixels)

    def fixed(number: Tensor) -> Tensor:
        return torch.floor(number * 65536.0 + 0.5).long()

    from_x = (fixed(a) * x + fixed(b) * y + fixed(c + a * 0.5 + b * 0.5)) >> 16
    from_y = (fixed(d) * x + fixed(e) * y + fixed(f + d * 0.5 + e * 0.5)) >> 16
    is_straight = (b == 0) & (d == 0)  # there Pillow reckons in float64
    from_x = torch.where(is_straight, torch.floor(c + a * 0.5 + a * x).long(), from_x)
    from_y = torch.where(is_straight, torch.floor(f + e * 0.5 + e * y).long(), from_y)
    there = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    return _looked_up(pixels, from_x * there, from_y * there), there


def _bilinear(pixels: Tensor, map_: list[Tensor], width: Tensor, height: Tensor) -> tuple[Tensor, Tensor]:
    a, b, c, d, e, f = map_
    x, y = _grid(pixels)
    from_x, from_y = (a * (x + 0.5) + b * (y + 0.5)) + c, (d * (x + 0.5) + e * (y + 0.5)) + f
    there = (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
    from_x, from_y = (from_x - 0.5) * there, (from_y - 0.5) * there
    left, top = from_x.floor(), from_y.floor()
    share_x, share_y = (from_x - left).flatten(1)[:, None], (from_y - top).flatten(1)[:, None]
    left, top = left.long(), top.long()
    columns = [torch.minimum((left + step).clamp(min=0), width - 1) for step in (0, 1)]
    rows = [torch.minimum((top + step).clamp(min=0), height - 1) for step in (0, 1)]
    corners = [[_looked_up(pixels, column, row).double() for column in columns] for row in rows]
    upper, lower = (_between(left_one, right_one, share_x) for left_one, right_one in corners)
    return _between(upper, lower, share_y).to(pixels.dtype), there


def _between(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    return first + (second - first) * share
