"""Which transforms of torchvision have a batched form, and how each is read: the stage it joins, and what it draws.

A transform counts only where it is torchvision's own class, unhooked: a subclass may do anything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from hotlap.parts.blurring import Blurring
from hotlap.parts.colours import Greying, Jitter
from hotlap.parts.drawn_transforms import (
    CenterCrop,
    ColorJitter,
    Drawing,
    Flip,
    GaussianBlur,
    Grayscale,
    Nothing,
    OneOf,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    RandomRotation,
    Resize,
    Several,
    Sometimes,
    Stage,
    sides,
)
from hotlap.parts.finishing import Erasing, Floating, Normalising
from hotlap.parts.resampling import Framing
from hotlap.parts.warping import Warping

PICTURE, LEVELS, FLOATS = "picture", "levels", "floats"  # what goes from transform to transform: PIL, uint8, float
# largest mean differences, in levels of 255: to Pillow, and to torchvision's own code for tensors
MET, RESIZED_TENSOR, COLOURED_TENSOR = 0.01, 0.25, 0.6
_PILLOW_NUMBERS = {0: "nearest", 2: "bilinear", 3: "bicubic"}


class NotKnown(Exception):
    """Why a transform stays with the script, in words that follow its name."""


def known(transform: Any) -> tuple[str, int] | None:
    """Name and version of a transform that is torchvision's own and was not tampered with."""
    name = type(transform).__name__
    for module, version in (("torchvision.transforms", 1), ("torchvision.transforms.v2", 2)):
        if getattr(sys.modules.get(module), name, None) is type(transform):
            own = vars(transform)
            is_hooked = own.get("_forward_hooks") or own.get("_forward_pre_hooks")
            return None if is_hooked or "forward" in own or "transform" in own else (name, version)
    return None


def inner(transform: Any) -> list[Any] | None:
    """The transforms of one that only calls them one after another."""
    if type(transform) is torch.nn.Sequential and not transform._forward_hooks and not transform._forward_pre_hooks:
        return list(transform)
    if type(transform).__module__ == "torchvision.datasets.vision" and type(transform).__name__ == "StandardTransform":
        return [transform.transform] if transform.transform is not None else []
    found = known(transform)
    return list(transform.transforms) if found is not None and found[0] == "Compose" else None


def flat(transform: Any) -> list[Any]:
    inside = inner(transform)
    return [transform] if inside is None else [last for one in inside for last in flat(one)]


Reader = Callable[["Builder", Any, int], Drawing]


class Builder:
    """The stages so far, and what a pixel is at this point of the pipeline."""

    def __init__(self, pixels: str) -> None:
        self.pixels = pixels
        self.stages: list[Stage] = [Framing()]  # the first brings images of any size into one stack

    def read(self, transform: Any) -> Drawing:
        inside = inner(transform)
        if inside is not None:
            return Several([self.read(one) for one in inside])
        if type(transform) is torch.nn.Identity:
            return Nothing()
        found = known(transform)
        if found is None:
            raise NotKnown("is not a transform of torchvision's")
        name, version = found
        if name in ("RandomApply", "RandomChoice"):
            return self._drawn(transform, name, version)
        if name not in READERS:
            raise NotKnown("has no batched form")
        return READERS[name](self, transform, version)

    def add(self, drawing: Drawing, stage: Stage) -> Drawing:
        self.stages.append(stage)
        drawing.at = len(self.stages) - 1
        return drawing

    def _drawn(self, transform: Any, name: str, version: int) -> Drawing:
        pixels, before = self.pixels, len(self.stages)
        drawings = [self.read(one) for one in transform.transforms]
        new = self.stages[before:]
        if self.pixels != pixels or any(_is_for_all(stage) for stage in new):
            raise NotKnown("converts only some of the images")
        return (Sometimes if name == "RandomApply" else OneOf)(transform, version, drawings)


def _is_for_all(stage: Stage) -> bool:
    """Whether a stage makes of an image what does not stack with, or compare to, one that it left alone."""
    return isinstance(stage, Normalising) or (isinstance(stage, Greying) and stage.channels == 1)


def _framed(kind: type[Drawing], pads: bool = False, resizes: bool = False) -> Reader:
    def read(builder: Builder, transform: Any, version: int) -> Drawing:
        drawing = kind(transform, version)
        border, fill = _border(transform, builder.pixels) if pads else ("constant", (0.0,))
        is_whole, last = builder.pixels != FLOATS, builder.stages[-1]
        may_pad = kind is CenterCrop or (pads and _may_pad(transform))
        filter = _filter(transform, builder.pixels) if resizes else None
        if not isinstance(last, Framing) or not last.takes(is_whole, (border, fill) if may_pad else None, resizes):
            last = Framing(is_whole=is_whole)
            builder.stages.append(last)
        drawing.at = len(builder.stages) - 1
        if may_pad and last.filter is None:
            last.border, last.fill = border, fill
        if filter is not None:
            last.filter, last.by_pillow = filter, builder.pixels == PICTURE
            last.levels += RESIZED_TENSOR if builder.pixels == LEVELS else MET
        return drawing

    return read


def _jitter(builder: Builder, transform: Any, version: int) -> Drawing:
    if builder.pixels == FLOATS:
        raise NotKnown("changes colours of floats, not of levels")
    if builder.pixels == LEVELS and transform.hue is not None:
        raise NotKnown("turns the hue of a tensor, which is not what Pillow does")
    levels = 2 * COLOURED_TENSOR if builder.pixels == LEVELS else MET
    return builder.add(ColorJitter(transform, version), Jitter(levels=levels))


def _grey(builder: Builder, transform: Any, version: int) -> Drawing:
    if builder.pixels == FLOATS:
        raise NotKnown("changes colours of floats, not of levels")
    stage = Greying(getattr(transform, "num_output_channels", 0))
    stage.levels = COLOURED_TENSOR if builder.pixels == LEVELS else 0.0
    return builder.add(Grayscale(transform, version), stage)


def _blur(builder: Builder, transform: Any, version: int) -> Drawing:
    columns, rows = transform.kernel_size
    stage = Blurring((columns // 2, rows // 2), builder.pixels != FLOATS, MET)
    return builder.add(GaussianBlur(transform, version), stage)


def _warped(kind: type[Drawing]) -> Reader:
    def read(builder: Builder, transform: Any, version: int) -> Drawing:
        if builder.pixels != PICTURE:
            raise NotKnown("turns a tensor, which is not what Pillow does")
        filter = _filter(transform, builder.pixels)
        if filter == "bicubic" or getattr(transform, "expand", False):
            raise NotKnown("is known with nearest and bilinear, without expand")
        fill = tuple(float(int(level)) for level in _fill(transform))
        return builder.add(kind(transform, version), Warping(filter, fill, MET))

    return read


def _erased(builder: Builder, transform: Any, version: int) -> Drawing:
    value = transform.value
    if value is None or isinstance(value, str):
        raise NotKnown("fills with noise that is drawn pixel by pixel")
    value = (float(value),) if isinstance(value, (int, float)) else tuple(float(level) for level in value)
    return builder.add(RandomErasing(transform, version), Erasing(value))


def _to_levels(builder: Builder, transform: Any, version: int) -> Drawing:
    builder.pixels = LEVELS if builder.pixels == PICTURE else builder.pixels
    return Nothing()


def _unchanged(builder: Builder, transform: Any, version: int) -> Drawing:
    return Nothing()


def _to_floats(builder: Builder, transform: Any, version: int) -> Drawing:
    name = type(transform).__name__
    dtype = None if name == "ToTensor" else transform.dtype
    if builder.pixels == FLOATS and (name == "ToTensor" or dtype is torch.float32):
        return Nothing()
    if (name == "ToTensor") != (builder.pixels == PICTURE):
        raise NotKnown(f"does not fit {'a picture' if builder.pixels == PICTURE else 'a tensor'}")
    if dtype is torch.uint8 and builder.pixels == LEVELS:
        return Nothing()
    if dtype not in (None, torch.float32, torch.float64) or not getattr(transform, "scale", True):
        raise NotKnown("is known as a scaling to float32 or float64")
    builder.pixels = FLOATS
    divides = name == "ToTensor" or version == 1
    return builder.add(Nothing(), Floating(dtype, divides))


def _normalised(builder: Builder, transform: Any, version: int) -> Drawing:
    if builder.pixels != FLOATS:
        raise NotKnown("has no floats to work on")
    mean, std = (_numbers(numbers) for numbers in (transform.mean, transform.std))
    if not all(std):
        raise NotKnown("divides by zero")
    return builder.add(Nothing(), Normalising(mean, std, widens=version == 2 and not transform.inplace))


def _numbers(given: Any) -> tuple[float, ...]:
    try:
        return tuple(float(number) for number in given) if hasattr(given, "__len__") else (float(given),)
    except (TypeError, ValueError):
        raise NotKnown("has other settings than plain numbers") from None


def _fill(transform: Any) -> tuple[float, ...]:
    fill = transform.fill
    if isinstance(fill, dict):
        raise NotKnown("fills by type")
    return (0.0,) if fill is None else _numbers(fill)


def _border(transform: Any, pixels: str) -> tuple[str, tuple[float, ...]]:
    mode, fill = transform.padding_mode, _fill(transform)
    if mode != "constant":
        if getattr(transform, "pad_if_needed", False) and transform.padding is not None:
            raise NotKnown("mirrors twice")
        return mode, (0.0,)
    return mode, fill if pixels == FLOATS else tuple(float(int(level)) for level in fill)


def _may_pad(transform: Any) -> bool:
    padding = transform.padding
    if padding is not None and min(sides(padding)) < 0:
        raise NotKnown("pads by less than nothing")
    return padding is not None or getattr(transform, "pad_if_needed", False)


def _filter(transform: Any, pixels: str) -> str:
    given = transform.interpolation
    name = _PILLOW_NUMBERS.get(given) if isinstance(given, int) else getattr(given, "value", given)
    if name == "nearest-exact" and pixels == PICTURE:
        name = "nearest"
    if name not in ("nearest", "bilinear", "bicubic"):
        raise NotKnown("is known with nearest, bilinear and bicubic")
    if pixels != PICTURE and (name == "nearest" or not getattr(transform, "antialias", True)):
        raise NotKnown("looks at single pixels of a tensor, which is not what Pillow does")
    return name


READERS: dict[str, Reader] = {
    "Resize": _framed(Resize, resizes=True),
    "CenterCrop": _framed(CenterCrop),
    "RandomCrop": _framed(RandomCrop, pads=True),
    "RandomResizedCrop": _framed(RandomResizedCrop, resizes=True),
    "RandomHorizontalFlip": _framed(Flip),
    "RandomVerticalFlip": _framed(Flip),
    "Pad": _framed(Pad, pads=True),
    "ColorJitter": _jitter,
    "Grayscale": _grey,
    "RandomGrayscale": _grey,
    "GaussianBlur": _blur,
    "RandomRotation": _warped(RandomRotation),
    "RandomAffine": _warped(RandomAffine),
    "RandomErasing": _erased,
    "ToTensor": _to_floats,
    "ToDtype": _to_floats,
    "ConvertImageDtype": _to_floats,
    "PILToTensor": _to_levels,
    "ToImage": _to_levels,
    "ToPureTensor": _unchanged,
    "Identity": _unchanged,
    "Normalize": _normalised,
}
