"""The last steps of a pipeline for a whole batch: to floats, normalised, parts erased."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hotlap.parts.packed_images import Images, sent


@dataclass
class Floating:
    """A stage: levels to floats of 0 to 1. Torchvision divides in one place and multiplies in another."""

    dtype: torch.dtype | None  # None: torch's default, as `ToTensor` takes
    divides: bool
    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return ()

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        pixels = images.pixels.to(self.dtype or torch.get_default_dtype())
        if not self.divides:
            return images.with_pixels(pixels.mul_(1.0 / 255))
        divisor = sent(np.array([255.0]), images.device)  # by a plain number CUDA would multiply instead
        return images.with_pixels(pixels.div_(divisor.to(pixels.dtype)))


@dataclass
class Normalising:
    """A stage."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    widens: bool = False  # with one colour and several means torchvision gives several colours, or raises
    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return ()

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        pixels = images.pixels
        channels = max(len(self.mean), len(self.std))
        if channels > pixels.shape[1] and not self.widens:
            raise ValueError("there are more means than colours")
        numbers = np.array([np.broadcast_to(self.mean, channels), np.broadcast_to(self.std, channels)])
        mean, std = sent(numbers, images.device).to(pixels.dtype).view(2, 1, -1, 1, 1)
        return images.with_pixels((pixels - mean).div_(std))


@dataclass
class Erasing:
    """A stage. Numbers: top, left, height, width of what is erased."""

    value: tuple[float, ...]
    levels: float = 0.0

    def blank(self, height: int, width: int) -> tuple[float, ...]:
        return (0, 0, 0, 0)

    def run(self, images: Images, numbers: np.ndarray) -> Images:
        pixels = images.pixels
        top, left, height, width = sent(numbers.astype(np.int64), images.device)[:, :, None].unbind(1)
        row, column = (torch.arange(size, device=images.device) for size in pixels.shape[2:])
        rows, columns = (row >= top) & (row < top + height), (column >= left) & (column < left + width)
        if len(self.value) not in (1, pixels.shape[1]):
            raise ValueError("there are more or fewer values than colours")
        value = sent(np.array(self.value), images.device).to(pixels.dtype).view(1, -1, 1, 1)
        return images.with_pixels(torch.where(rows[:, None, :, None] & columns[:, None, None], value, pixels))
