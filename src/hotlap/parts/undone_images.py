"""Images left undone: transforms that only draw, files that stay encoded, and a batch of them in a few tensors."""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from hotlap.parts.device_jpeg import Decoded, pixels_of
from hotlap.parts.drawn_transforms import Recipes
from hotlap.parts.packed_images import SPARE, Images
from hotlap.parts.transform_sites import Site

_MODES = ("RGB", "L")
_FILE = (0, 0, 0)  # in place of a shape


class Unsuitable(Exception):
    """A sample that cannot be left undone; the batch is then made as ever."""


class Undone:
    """In a sample where the transformed image would be."""

    def __init__(self, site: int, image: Any, recipe: Any) -> None:
        self.site, self.image, self.recipe = site, image, recipe


class UndoneBatch:
    """In a batch where the images would be: what they are made from, in as few tensors and arrays as possible, so that
    who takes it from a worker has as much to do with one image as with a thousand. `recipes` by site, in the order of
    its images. `ready` may hold its files, decoded ahead."""

    ready: Decoded | None = None

    def __init__(self, undone: Sequence[Undone]) -> None:
        if not all(type(one) is Undone for one in undone):
            raise Unsuitable("some samples of a batch were transformed, some were not")
        sites = [one.site for one in undone]
        self.sites = np.array(sites)
        self.recipes = {
            site: Recipes.of([one.recipe for one in undone if one.site == site]) for site in sorted(set(sites))
        }
        images = [one.image for one in undone]
        self.shapes = np.array([_shape(image) for image in images])
        files = [image for image in images if isinstance(image, bytes)]
        self.lengths = [len(file) for file in files]
        self.files = torch.frombuffer(bytearray().join(files) or bytearray(1), dtype=torch.uint8)
        pixels = _laid_out([image for image in images if not isinstance(image, bytes)])
        spare = torch.zeros(self.shapes[:, 2].max() + SPARE if pixels else 0, dtype=torch.uint8, device="cpu")
        self.pixels = torch.cat([*pixels, spare])

    def __len__(self) -> int:
        return len(self.sites)

    def encoded(self) -> list[torch.Tensor]:
        return list(self.files.split([*self.lengths, len(self.files) - sum(self.lengths)])[: len(self.lengths)])

    def file(self, place: int) -> torch.Tensor | None:
        """The file of one of them, where it has one."""
        is_file = ~self.shapes.any(1)
        return self.encoded()[is_file[:place].sum()] if is_file[place] else None

    def decoded(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        """Images out of `pixels`, which may be a copy elsewhere. Those of one shape come out of one tensor."""
        shapes = [tuple(shape) for shape in self.shapes.tolist() if any(shape)]
        sizes = [math.prod(shape) for shape in shapes]
        if len(set(shapes)) == 1:
            return list(pixels[: sum(sizes)].view(-1, *shapes[0]).unbind(0))
        parts = pixels.split([*sizes, len(pixels) - sum(sizes)])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=False)]

    def together(self, pixels: torch.Tensor) -> Images | None:
        """All of them where they lie, if none is a file, one transform is for all, and all have as many channels."""
        channels = int(self.shapes[0, 0])
        if self.lengths or len(self.recipes) > 1 or channels not in (1, 3) or (self.shapes[:, 0] != channels).any():
            return None
        return Images.in_buffer(pixels, self.shapes[:, 1:], channels)


def _shape(image: bytes | torch.Tensor | np.ndarray) -> tuple[int, ...]:
    """Channels, height, width."""
    if isinstance(image, bytes):
        return _FILE
    return (image.shape[2], *image.shape[:2]) if isinstance(image, np.ndarray) else tuple(image.shape)


def _laid_out(images: list[torch.Tensor | np.ndarray]) -> list[torch.Tensor]:
    """Their levels channel by channel; arrays of one shape, as most data sets in memory have them, all at once."""
    if images and all(isinstance(image, np.ndarray) and image.shape == images[0].shape for image in images):
        return [torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).reshape(-1)]
    tensors = (torch.from_numpy(one).permute(2, 0, 1) if isinstance(one, np.ndarray) else one for one in images)
    return [one.reshape(-1) for one in tensors]


class _Later:
    """In the place of a transform: draws what that would draw, and does nothing."""

    def __init__(self, number: int, site: Site) -> None:
        self._number, self._pipeline, self._transform = number, site.pipeline, site.transform
        self._expects = site.pipeline.expects

    def __call__(self, image: Any) -> Undone:
        if self._pipeline.head is not None:
            image = self._pipeline.head(image)
        if isinstance(image, torch.Tensor) != (self._expects == "levels"):
            raise Unsuitable("its transforms are given something else than their kind suggests")
        kept, width, height = _kept(image)
        return Undone(self._number, kept, self._pipeline.draw(width, height))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._transform, name)


def _kept(image: Any) -> tuple[Any, int, int]:
    """What travels: the file's bytes, or pixels; with its width and height."""
    if isinstance(image, torch.Tensor):
        if image.dtype is not torch.uint8 or image.ndim != 3 or image.device.type != "cpu":
            raise Unsuitable("an image is no tensor of bytes")
        return image, image.shape[2], image.shape[1]
    from hotlap.parts.late_array import OfArray

    if type(image) is OfArray:
        return image.levels, *image.size
    from PIL import Image

    from hotlap.parts.undecoded_jpeg import Undecoded, Unread

    if not isinstance(image, Image.Image) or image.mode not in _MODES:
        raise Unsuitable("an image is neither grey nor RGB")
    if isinstance(image, Unread) and image.mode == "RGB":
        image = image.convert("RGB")
    kept = image.data if isinstance(image, Undecoded) else pixels_of(image)
    return kept, *image.size


@contextmanager
def left_undone(sites: Sequence[Site]) -> Iterator[None]:
    """In the data set's own `__dict__`, whatever its class makes of an assignment. Nobody else reads it meanwhile: this
    is a worker's copy, or the thread that asked for the batch."""
    pil: Any = sys.modules.get("PIL.Image")
    pil_open, from_array = (pil.open, pil.fromarray) if pil is not None else (None, None)
    try:
        for number, site in enumerate(sites):
            later: Any = _Later(number, site)
            if site.held is not site.transform:
                later, joint = copy.copy(site.held), later
                later.transform = joint
            vars(site.owner)[site.name] = later
        if pil is not None:
            from hotlap.parts.late_array import from_array_late
            from hotlap.parts.undecoded_jpeg import open_undecoded

            pil.open = lambda *args, **kwargs: open_undecoded(pil_open, *args, **kwargs)
            pil.fromarray = lambda *args, **kwargs: from_array_late(from_array, *args, **kwargs)
        yield
    finally:
        for site in sites:
            vars(site.owner)[site.name] = site.held
        if pil is not None:
            pil.open, pil.fromarray = pil_open, from_array


def is_undone(sample: Any) -> bool:
    return any(isinstance(leaf, Undone) for leaf in tree_flatten(sample)[0])


def undone_in(batch: Any) -> list[UndoneBatch]:
    return [leaf for leaf in tree_flatten(batch)[0] if isinstance(leaf, UndoneBatch)]


def collated_undone(samples: Any) -> Any:
    """As `default_collate` would; raises where a transform was called for some of the samples only."""
    return collate(samples, collate_fn_map={Undone: _packed, **default_collate_fn_map})


def _packed(batch: Any, **_: Any) -> UndoneBatch:
    return UndoneBatch(batch)
