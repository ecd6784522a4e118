"""Gaussian blurs of a whole batch, each image with its own width of the bell, in two products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.exact_products import product
from hotlap.parts.packed_images import Images, sent


@dataclass
class Blurring:
    """A stage. Numbers: the bell's width, zero where an image is left alone. `reach` is (columns, rows)."""

    reach: tuple[int, int]
    is_whole: bool = True
    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return (0.0,)

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        bells = sent(numbers[:, 0].astype(np.float32), images.device)
        lengths = sent(np.stack([images.heights, images.widths]), images.device)

        def change(pixels: Tensor, part: slice) -> Tensor:
            number, channels, height, width = pixels.shape
            across = _matrix(bells[part], lengths[1, part], width, self.reach[0])
            down = _matrix(bells[part], lengths[0, part], height, self.reach[1])
            made = product(pixels.float().reshape(number, -1, width), across.transpose(1, 2))
            made = made.view(pixels.shape).permute(0, 2, 1, 3).reshape(number, height, -1)
            made = product(down, made).view(number, height, channels, width).permute(0, 2, 1, 3)
            made = made.round().clamp(0, 255) if self.is_whole else made
            return torch.where((bells[part] > 0).view(-1, 1, 1, 1), made.to(pixels.dtype), pixels)

        return images.by_parts(change)


def _matrix(bells: Tensor, lengths: Tensor, size: int, reach: int) -> Tensor:
    """N, size, size: what each place takes of each, what lies beyond an end folded back to where it is mirrored."""
    bells, last = bells.clamp(min=1e-6).view(-1, 1, 1), (lengths - 1).view(-1, 1, 1)
    place = torch.arange(size, device=bells.device)
    to, source = place.view(1, -1, 1), place.view(1, 1, -1)
    total = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=bells.device) / bells) ** 2).sum(2, keepdim=True)

    def taken(distance: Tensor, there: Tensor) -> Tensor:
        weight = torch.exp(-0.5 * (distance / bells) ** 2) / total
        return torch.where(there & (distance.abs() <= reach), weight, 0)

    whole = taken(to - source, source <= last) + taken(to + source, (source > 0) & (source <= last))
    return whole + taken(2 * last - source - to, source < last)
