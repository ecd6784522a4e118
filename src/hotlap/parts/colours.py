"""Colours of a whole batch changed as Pillow changes them, level by level: grey, brightness, contrast, saturation, hue.

Brightness, contrast and saturation are one formula, `other + factor * (pixel - other)`, cut off to whole levels; other
is black, the image's mean grey, or the pixel's own grey. So images that change in different orders go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.packed_images import Images, parts_of, sent

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # as torchvision numbers them
_NOTHING = -1
# which of value, rising, low and falling is red, green and blue on each side of the colour wheel
_SIDES = np.array([[0, 3, 2, 2, 1, 0], [1, 0, 0, 3, 2, 2], [2, 2, 1, 0, 0, 3]])


def grey(pixels: Tensor) -> Tensor:
    """N, 1, H, W of int32: Pillow's L, in fixed point."""
    if pixels.shape[1] == 1:
        return pixels.int()
    red, green, blue = pixels.int().split(1, 1)
    fixed: Tensor = red * 19595 + green * 38470 + blue * 7471 + 0x8000
    return fixed >> 16


@dataclass
class Greying:
    """A stage: grey where drawn. `channels` of what comes out, 0 for as many as went in."""

    channels: int = 0
    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return (0.0,)

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        channels = self.channels or images.channels
        every = bool(numbers.all())
        if not numbers.any():
            return images
        if not every and channels != images.channels:
            raise ValueError("only some of the images would have more colours")
        drawn = sent(numbers.astype(bool), images.device).view(-1, 1, 1, 1)

        def change(pixels: Tensor, part: slice) -> Tensor:
            made = grey(pixels).to(pixels.dtype).expand(-1, channels, -1, -1)
            return made.contiguous() if every else torch.where(drawn[part], made, pixels)

        return images.by_parts(change)


@dataclass
class Jitter:
    """A stage: up to four changes in each image's own order. Numbers: four of what, then four of how much."""

    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return (*[float(_NOTHING)] * 4, *[1.0] * 4)

    @staticmethod
    def numbers(order: Sequence[int], factors: Sequence[float | None]) -> tuple[float, ...]:
        """From the order drawn and the factor of each, None for what is left alone."""
        what = [float(_NOTHING if factors[change] is None else change) for change in order]
        return (*what, *(1.0 if factors[change] is None else float(factors[change]) for change in order))  # type: ignore[arg-type]

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        inside = _inside(images)
        areas = sent((images.heights * images.widths).astype(np.float64), images.device)

        def change(pixels: Tensor, part: slice) -> Tensor:
            seen = None if inside is None else inside[part]
            for turn in range(4):
                what, factor = numbers[part, turn], numbers[part, 4 + turn]
                pixels = _blended(pixels, what, factor, seen, areas[part])
                pixels = _turned(pixels, what, factor)
            return pixels

        return images.by_parts(change)


def _inside(images: Images) -> Tensor | None:
    """Where the images are in their stack, None where they fill it."""
    height, width = images.pixels.shape[2:]
    if (images.heights == height).all() and (images.widths == width).all():
        return None
    rows = sent(images.heights, images.device)[:, None] > torch.arange(height, device=images.device)
    columns = sent(images.widths, images.device)[:, None] > torch.arange(width, device=images.device)
    return rows[:, None, :, None] & columns[:, None, None]


def _blended(pixels: Tensor, what: np.ndarray, factor: np.ndarray, inside: Tensor | None, areas: Tensor) -> Tensor:
    kinds = {int(kind) for kind in what} - {_NOTHING, HUE}
    if not kinds:
        return pixels
    drawn = sent(np.where((what == _NOTHING) | (what == HUE), 1.0, factor).astype(np.float32), pixels.device)
    other = pixels.new_zeros((), dtype=torch.float32)
    if kinds - {BRIGHTNESS}:
        own = grey(pixels)
        seen = own if inside is None else own * inside
        mean = (seen.sum((1, 2, 3)).double() / areas + 0.5).floor().int().view(-1, 1, 1, 1)
        is_saturation, is_contrast = sent(np.stack([what == SATURATION, what == CONTRAST]), pixels.device)
        other = torch.where(is_saturation.view(-1, 1, 1, 1), own, mean * is_contrast.view(-1, 1, 1, 1)).float()
    return (pixels - other).mul_(drawn.view(-1, 1, 1, 1)).add_(other).clamp_(0, 255).to(torch.uint8)


def _turned(pixels: Tensor, what: np.ndarray, factor: np.ndarray) -> Tensor:
    chosen = np.flatnonzero(what == HUE)
    if pixels.shape[1] == 1 or not len(chosen):
        return pixels
    shifts = np.trunc(factor[chosen] * 255).astype(np.int64) % 256
    made = pixels.clone()
    for part in parts_of(len(chosen), 8 * pixels[0].numel()):  # several float64 a pixel
        where, shift = sent(chosen[part], pixels.device), sent(shifts[part], pixels.device)
        made.index_copy_(0, where, turned_hue(pixels[where], shift.view(-1, 1, 1)))
    return made


def turned_hue(pixels: Tensor, shift: Tensor) -> Tensor:
    """Through Pillow's eight-bit HSV and back, with its roundings."""
    hue, saturation, value = _to_hsv(pixels)
    return _from_hsv((hue + shift) % 256, saturation, value)


def _to_hsv(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    red, green, blue = (channel.float() for channel in pixels.unbind(1))
    most = torch.maximum(torch.maximum(red, green), blue)
    spread = most - torch.minimum(torch.minimum(red, green), blue)
    divisor = torch.where(spread == 0, 1, spread)
    from_red, from_green, from_blue = ((most - channel) / divisor for channel in (red, green, blue))
    hue = torch.where(
        red == most,
        from_blue - from_green,
        torch.where(
            green == most,
            (2.0 + from_red.double() - from_blue).float(),
            (4.0 + from_green.double() - from_red).float(),
        ),
    )
    hue = torch.fmod(hue.double() / 6.0 + 1.0, 1.0).float()
    saturation = spread / torch.where(most == 0, 1, most)
    levels = [(number.double() * 255.0).long().clamp(0, 255) for number in (hue, saturation)]
    grey_ones = spread == 0
    return levels[0].masked_fill(grey_ones, 0), levels[1].masked_fill(grey_ones, 0), most.long()


def _from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    sixth = hue.double() * 6.0 / 255.0
    side = sixth.floor()
    rest = (sixth - side).float().double()
    part, value_ = (saturation.double() / 255.0).float().double(), value.double()
    low, falling, rising = (
        (value_ * (1.0 - part * share) + 0.5).floor().clamp(0, 255) for share in (1.0, rest, 1.0 - rest)
    )
    channels = torch.stack([value_, rising, low, falling])
    chosen = sent(_SIDES, hue.device)[:, side.long() % 6]  # 3, N, H, W
    made = channels.gather(0, chosen).permute(1, 0, 2, 3)
    return torch.where((saturation == 0)[:, None], value_[:, None], made).to(torch.uint8)
