"""Images of many sizes in one buffer, so that one launch reaches all of them.

A row is a window of the buffer that may start anywhere: the buffer is seen as all its windows, which overlap and cost
nothing, and one `index_select` takes those that are wanted. A few numbers a row travel, instead of one a pixel. Images
that were decoded one by one lie apart: kernels reach each by its own address, and the buffer is made for who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

MOST_ELEMENTS = 1 << 26  # of one intermediate tensor: 256 MiB of float32
SPARE = 8  # rows are read up to a multiple of this
_TAKEN_DOWN = 1 << 16  # bytes: as CUDA's manual says of copies from memory that is not pinned


def sent(numbers: np.ndarray, device: torch.device) -> Tensor:
    """On the device, without making the host wait for it. CUDA takes down a few numbers at once, wherever they lie;
    pinned memory costs calls in which other threads may take the interpreter away."""
    tensor = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type == "cuda" and tensor.nbytes >= _TAKEN_DOWN:
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass
class Images:
    """Row r of channel c of image n starts at `starts[n] + c * planes[n] + r * strides[n]` of `flat`."""

    buffer: Tensor | None  # None: there is none yet
    starts: np.ndarray
    planes: np.ndarray
    strides: np.ndarray
    heights: np.ndarray
    widths: np.ndarray
    channels: int
    spare: int = 0  # elements behind the last row that may be read
    stack: Tensor | None = None  # the same pixels as one N, C, H, W, where they are
    each: Sequence[Tensor] = ()  # image by image, where they lie apart

    @classmethod
    def packed(cls, images: Sequence[Tensor], device: torch.device) -> Images:
        kinds = {(image.dtype, image.dim(), image.shape[0]) for image in images}
        if len(kinds) != 1 or next(iter(kinds))[:2] != (torch.uint8, 3) or next(iter(kinds))[2] not in (1, 3):
            raise ValueError("a batch of images is uint8, CHW, and all of them have one channel or three")
        sizes = [(image.shape[1], image.shape[2]) for image in images]
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        if all(image.device == device for image in images):
            return cls._apart(images, sizes)
        flat = _joined(images, max(width for _, width in sizes) + SPARE)
        return cls.in_buffer(flat.to(device, non_blocking=True), sizes, images[0].shape[0])

    @classmethod
    def _apart(cls, images: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> Images:
        """Where they are."""
        channels, (heights, widths) = images[0].shape[0], np.array(sizes, dtype=np.int64).T
        ends, spare = np.cumsum(channels * heights * widths), int(widths.max()) + SPARE
        starts, each = ends - channels * heights * widths, [image.contiguous() for image in images]
        return cls(None, starts, heights * widths, widths, heights, widths, channels, spare, each=each)

    @classmethod
    def in_buffer(cls, flat: Tensor, sizes: Sequence[tuple[int, int]] | np.ndarray, channels: int) -> Images:
        """Images that lie one after another in `flat`: CHW, as (height, width) of `sizes` says."""
        heights, widths = np.array(sizes, dtype=np.int64).T
        ends = np.cumsum(channels * heights * widths)
        needed, spare = int(widths.max()) + SPARE, flat.numel() - int(ends[-1])
        if spare < needed:
            flat, spare = torch.cat([flat, flat.new_zeros(needed)]), spare + needed
        starts = ends - channels * heights * widths
        return cls(flat, starts, heights * widths, widths, heights, widths, channels, spare)

    @classmethod
    def stacked(cls, pixels: Tensor, heights: np.ndarray, widths: np.ndarray) -> Images:
        """Of one N, C, H, W, in whose upper left corners the images lie."""
        number, channels, height, width = pixels.shape
        pixels = pixels.contiguous()  # kernels read them by address
        starts = np.arange(number, dtype=np.int64) * (channels * height * width)
        planes, strides = np.full(number, height * width), np.full(number, width)
        return cls(pixels, starts, planes, strides, heights, widths, channels, stack=pixels)

    @property
    def flat(self) -> Tensor:
        if self.buffer is None:
            self.buffer = _joined(self.each, self.spare)
        return self.buffer

    def reached(self) -> tuple[Tensor, np.ndarray]:
        """A tensor, and how far behind its first element each image starts: in memory, which only kernels may follow.
        The images must be there until these are through, as any tensor that is read on another stream."""
        if self.buffer is not None:
            return self.buffer, self.starts
        addresses = np.array([image.data_ptr() for image in self.each], dtype=np.int64)  # of bytes
        return self.each[0], addresses - addresses[0]

    @property
    def device(self) -> torch.device:
        return self.each[0].device if self.buffer is None else self.buffer.device

    @property
    def pixels(self) -> Tensor:
        assert self.stack is not None, "the first stage of a pipeline stacks the images"
        return self.stack

    def __len__(self) -> int:
        return len(self.starts)

    def with_pixels(self, pixels: Tensor) -> Images:
        return Images.stacked(pixels, self.heights, self.widths)

    def rows(self, starts: Tensor, length: int) -> Tensor:
        """The windows of `length` that start there: the shape of `starts`, and one dimension more."""
        flat = self.flat.reshape(-1)
        windows = flat.as_strided((flat.numel() - length + 1, length), (1, 1))
        return windows.index_select(0, starts.reshape(-1)).view(*starts.shape, length)

    def by_parts(self, change: Callable[[Tensor, slice], Tensor]) -> Images:
        """`change` over so many images at a time that no intermediate tensor grows beyond the bound."""
        pixels = self.pixels
        made = [change(pixels[part], part) for part in parts_of(len(self), pixels[0].numel())]
        return self.with_pixels(made[0] if len(made) == 1 else torch.cat(made))


def _joined(images: Sequence[Tensor], spare: int) -> Tensor:
    """One call: other threads want the interpreter too."""
    flat: Tensor = torch._C._nn.flatten_dense_tensors([*images, images[0].new_zeros(spare)])
    return flat


def parts_of(number: int, elements: int) -> Iterator[slice]:
    size = max(1, MOST_ELEMENTS // max(1, elements))
    return (slice(first, min(first + size, number)) for first in range(0, number, size))
