"""Where each place of a resized axis looks, and with what weights: Pillow's filters, for all images at once."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.axis_views import PER_AXIS, places
from hotlap.parts.exact_products import WEIGHT_BITS
from hotlap.parts.packed_images import sent

_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}


def taps(numbers: np.ndarray, device: torch.device, filter: str, is_whole: bool) -> tuple[Tensor, Tensor]:
    """Source places (N, out, K) and their weights in float64, of views, a resize, and views of what it gave.

    The weights of levels are whole numbers of 22 bits. Where nothing is weighed, the place may be any."""
    table, longest = sent(numbers, device), int(numbers[:, PER_AXIS - 1].max())
    at = torch.arange(longest, device=device).expand(len(numbers), -1)
    place, there = places(table[:, PER_AXIS - 5 : PER_AXIS], at, "constant", shows_all(numbers[:, PER_AXIS - 5 :]))
    if filter == "nearest":
        tap = sent(nearest(numbers), device).gather(1, place)[:, :, None]
        weight = torch.ones_like(tap, dtype=torch.float64)
    else:
        tap, weight = _weighted(numbers, place, filter, table[:, 4].view(-1, 1, 1))
    if is_whole:
        weight = weight * (1 << WEIGHT_BITS)
        half = 0.5 if filter != "bicubic" else torch.copysign(torch.full_like(weight, 0.5), weight)
        weight = torch.trunc(weight + half)
    source, inside = places(table[:, :5], tap, "constant", shows_all(numbers, any_length=True))
    if there is not None:
        weight = weight * there[:, :, None]
    if inside is not None:
        weight = weight * inside
    return source, weight


def taken_each(numbers: np.ndarray, filter: str) -> np.ndarray:
    """How many places of what `taps` gives may weigh something, image by image: as many pixels have their middle within
    the filter's reach. Where rounding takes in one more, that lies at its very end and weighs nothing."""
    if filter == "nearest":
        return np.ones(len(numbers), dtype=np.int64)
    ends = 2 * int(_SUPPORT[filter])
    return np.maximum(-(-ends * numbers[:, 4] // numbers[:, 5]), ends)


def _reach(numbers: np.ndarray, filter: str) -> np.ndarray:
    return np.maximum(numbers[:, 4] / numbers[:, 5], 1.0) * _SUPPORT[filter]


def shows_all(views: np.ndarray, any_length: bool = False) -> bool:
    """Whether every place of every view is one of the source, so that nothing need be hidden. With views of different
    lengths what lies behind the shorter ones must be, unless nobody looks there."""
    sign, offset, low, high, length = views[:, :5].T
    ends = np.stack([offset, offset + sign * (length - 1)])
    inside = (ends.min(0) >= low) & (ends.max(0) < high) & (any_length | (length == length.max()))
    return bool(inside.all())


def _weighted(numbers: np.ndarray, place: Tensor, filter: str, length: Tensor) -> tuple[Tensor, Tensor]:
    scale = numbers[:, 4] / numbers[:, 5]
    stretch, reach = np.maximum(scale, 1.0), _reach(numbers, filter)
    fractions = sent(np.stack([scale, reach, 1.0 / stretch]), place.device)[:, :, None, None]
    centre = (place[:, :, None].double() + 0.5) * fractions[0]
    first = (centre - fractions[1] + 0.5).clamp(min=0).long()
    last = torch.minimum((centre + fractions[1] + 0.5).long(), length)
    tap = first + torch.arange(int(np.ceil(reach.max())) * 2 + 1, device=place.device)
    weight = weigh(filter, (tap - centre + 0.5) * fractions[2]) * (tap < last)
    return tap, weight / weight.sum(2, keepdim=True)


def weigh(filter: str, distance: Tensor) -> Tensor:
    x = distance.abs()
    if filter == "bilinear":
        return (1 - x).clamp(min=0)
    a = -0.5
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def nearest(numbers: np.ndarray) -> np.ndarray:
    """Pillow adds the step up from place to place; the sum decides where a place falls right between two pixels."""
    table = np.zeros((len(numbers), int(numbers[:, 5].max())), dtype=np.int64)
    for image, (length, resized) in enumerate(numbers[:, 4:6]):
        step = length / resized
        steps = np.full(resized, step)
        steps[0] = step * 0.5
        table[image, :resized] = np.minimum(np.add.accumulate(steps).astype(np.int64), length - 1)
    return table


def without_nothing(place: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What weighs nothing says the same as what weighs most: whichever is written last, a matrix is the same."""
    most, best = weight.max(2, keepdim=True)
    is_some = weight != 0
    return torch.where(is_some, place, place.gather(2, best)), torch.where(is_some, weight, most)


@functools.cache
def pillow_takes_rows_first() -> bool:
    """Pillow 13 resizes rows first where the height shrinks more than twice what the width does: asked of Pillow."""
    from PIL import Image

    picture = Image.fromarray(np.random.RandomState(0).randint(0, 256, (90, 20), dtype=np.uint8))
    bilinear = Image.Resampling.BILINEAR
    rows_first = picture.resize((20, 8), bilinear).resize((16, 8), bilinear)
    return np.array_equal(np.asarray(picture.resize((16, 8), bilinear)), np.asarray(rows_first))
