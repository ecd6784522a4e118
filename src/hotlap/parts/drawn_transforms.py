"""What a torchvision transform draws for one image, without its pixels, and the stage that carries it out later.

A `Drawing` stands for one transform of the script's, of the first version of torchvision's or the second. It draws by
the transform's own code, so that generators move as they would have, and notes down what came out. Torchvision is never
imported: where a script has none of it, none of its transforms can be met."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from hotlap.parts.axis_views import Frame
from hotlap.parts.colours import Jitter
from hotlap.parts.packed_images import Images
from hotlap.parts.warping import affine, rotation

Recipe = tuple[tuple[float, ...], ...]  # what every stage does to one image


class Stage(Protocol):
    levels: float  # largest mean difference to the script's own, of 255

    def blank(self, height: int, width: int) -> Any: ...

    def run(self, images: Images, numbers: np.ndarray) -> Images: ...


class Sketch:
    """One image on its way through the transforms: its size so far, and what every stage will do to it."""

    def __init__(self, stages: Sequence[Stage], width: int, height: int) -> None:
        self.stages, self.width, self.height = stages, width, height
        self.entries: list[Any] = []

    def frame(self, at: int) -> Frame:
        self._upto(at)
        frame: Frame = self.entries[at]
        return frame

    def note(self, at: int, numbers: Sequence[float]) -> None:
        self._upto(at)
        self.entries[at] = tuple(numbers)

    def resized(self, frame: Frame) -> None:
        self.width, self.height = frame.width, frame.height

    def recipe(self) -> Recipe:
        self._upto(len(self.stages) - 1)
        return tuple(entry.numbers() if isinstance(entry, Frame) else entry for entry in self.entries)

    def _upto(self, at: int) -> None:
        while len(self.entries) <= at:
            self.entries.append(self.stages[len(self.entries)].blank(self.height, self.width))

    def image(self) -> torch.Tensor:
        """As large as the image, without pixels: what the transforms ask for its size."""
        return _blank(self.height, self.width)


@functools.lru_cache(16)
def _blank(height: int, width: int) -> torch.Tensor:
    return torch.empty(3, height, width, device="meta")


class Recipes:
    """Of a whole batch, stage by stage, with a row of numbers for each image: nobody need look at them one by one."""

    def __init__(self, stages: list[np.ndarray]) -> None:
        self.stages = stages

    @classmethod
    def of(cls, each: Sequence[Recipe]) -> Recipes:
        return cls([np.array(rows) for rows in zip(*each, strict=True)])

    def first(self, number: int) -> Recipes:
        return Recipes([rows[:number] for rows in self.stages])


class Drawing:
    """`version` is torchvision's: 1 or 2. `at` is the stage it writes to."""

    at = -1

    def __init__(self, transform: Any, version: int) -> None:
        self.transform, self.version = transform, version

    def draw(self, sketch: Sketch) -> None:
        raise NotImplementedError


class Several(Drawing):
    """Transforms one after another."""

    def __init__(self, drawings: Iterable[Drawing]) -> None:
        self.drawings = list(drawings)

    def draw(self, sketch: Sketch) -> None:
        for drawing in self.drawings:
            drawing.draw(sketch)


class Sometimes(Drawing):
    """`RandomApply`: its two versions compare differently."""

    def __init__(self, transform: Any, version: int, drawings: list[Drawing]) -> None:
        super().__init__(transform, version)
        self.inner = Several(drawings)

    def draw(self, sketch: Sketch) -> None:
        number = torch.rand(1)
        if number < self.transform.p if self.version == 2 else not self.transform.p < number:
            self.inner.draw(sketch)


class OneOf(Drawing):
    """`RandomChoice`: drawn by `random` in one version, by torch in the other."""

    def __init__(self, transform: Any, version: int, drawings: list[Drawing]) -> None:
        super().__init__(transform, version)
        self.drawings = drawings

    def draw(self, sketch: Sketch) -> None:
        if self.version == 1:
            random.choices(self.drawings, weights=self.transform.p)[0].draw(sketch)
        else:
            self.drawings[int(torch.multinomial(torch.tensor(self.transform.p), 1))].draw(sketch)


class Nothing(Drawing):
    """Changes no pixel and draws nothing."""

    def __init__(self) -> None:
        pass

    def draw(self, sketch: Sketch) -> None:
        pass


class Flip(Drawing):
    def draw(self, sketch: Sketch) -> None:
        if is_drawn(self.transform.p):
            is_vertical = type(self.transform).__name__ == "RandomVerticalFlip"
            sketch.frame(self.at).flip(rows=is_vertical, columns=not is_vertical)


class Pad(Drawing):
    def draw(self, sketch: Sketch) -> None:
        frame = sketch.frame(self.at)
        frame.pad(*sides(self.transform.padding))
        sketch.resized(frame)


class CenterCrop(Drawing):
    def draw(self, sketch: Sketch) -> None:
        height, width = self.transform.size
        frame = sketch.frame(self.at)
        short, narrow = max(0, height - sketch.height), max(0, width - sketch.width)
        frame.pad(narrow // 2, short // 2, (narrow + 1) // 2, (short + 1) // 2)
        top, left = round((frame.height - height) / 2.0), round((frame.width - width) / 2.0)
        frame.crop(top, left, height, width)
        sketch.resized(frame)


class RandomCrop(Drawing):
    def draw(self, sketch: Sketch) -> None:
        frame, (height, width) = sketch.frame(self.at), self.transform.size
        if self.version == 2:
            drawn = self.transform.make_params([sketch.image()])
            frame.pad(*drawn["padding"])
            frame.crop(drawn["top"], drawn["left"], height, width)
        else:
            if self.transform.padding is not None:
                frame.pad(*sides(self.transform.padding))
            if self.transform.pad_if_needed:
                narrow, short = max(0, width - frame.width), max(0, height - frame.height)
                frame.pad(narrow, short, narrow, short)
            sketch.resized(frame)
            frame.crop(*self.transform.get_params(sketch.image(), self.transform.size))
        sketch.resized(frame)


class RandomResizedCrop(Drawing):
    def draw(self, sketch: Sketch) -> None:
        frame, one = sketch.frame(self.at), self.transform
        if self.version == 2:
            drawn = one.make_params([sketch.image()])
            frame.crop(drawn["top"], drawn["left"], drawn["height"], drawn["width"])
        else:
            frame.crop(*one.get_params(sketch.image(), one.scale, one.ratio))
        frame.resize(*one.size)
        sketch.resized(frame)


class Resize(Drawing):
    def draw(self, sketch: Sketch) -> None:
        frame = sketch.frame(self.at)
        frame.resize(*_resized(sketch.height, sketch.width, self.transform.size, self.transform.max_size))
        sketch.resized(frame)


class ColorJitter(Drawing):
    def draw(self, sketch: Sketch) -> None:
        one = self.transform
        if self.version == 2:
            order, *factors = one.make_params([]).values()
        else:
            order, *factors = one.get_params(one.brightness, one.contrast, one.saturation, one.hue)
        sketch.note(self.at, Jitter.numbers(order.tolist(), factors))


class Grayscale(Drawing):
    def draw(self, sketch: Sketch) -> None:
        if type(self.transform).__name__ == "Grayscale" or is_drawn(self.transform.p):
            sketch.note(self.at, (1.0,))


class GaussianBlur(Drawing):
    def draw(self, sketch: Sketch) -> None:
        one = self.transform
        if one.kernel_size[0] // 2 >= sketch.width or one.kernel_size[1] // 2 >= sketch.height:
            raise ValueError("the image is too small to be mirrored at its edges")
        bell = one.make_params([])["sigma"][0] if self.version == 2 else one.get_params(one.sigma[0], one.sigma[1])
        sketch.note(self.at, (bell,))


class RandomRotation(Drawing):
    def draw(self, sketch: Sketch) -> None:
        one = self.transform
        angle = one.make_params([])["angle"] if self.version == 2 else one.get_params(one.degrees)
        sketch.note(self.at, rotation(angle, sketch.width, sketch.height, one.center))


class RandomAffine(Drawing):
    def draw(self, sketch: Sketch) -> None:
        one = self.transform
        if self.version == 2:
            angle, shift, scale, shear = one.make_params([sketch.image()]).values()
        else:
            size = [sketch.width, sketch.height]
            angle, shift, scale, shear = one.get_params(one.degrees, one.translate, one.scale, one.shear, size)
        centre = one.center if one.center is not None else (sketch.width * 0.5, sketch.height * 0.5)
        sketch.note(self.at, affine(angle, shift, scale, shear, centre, self.version))


class RandomErasing(Drawing):
    """A place that was found ten times too large is not erased."""

    def draw(self, sketch: Sketch) -> None:
        one, image = self.transform, sketch.image()
        if not is_drawn(one.p):
            return
        if self.version == 2:
            *place, value = one.make_params([image]).values()
        else:
            *place, value = one.get_params(image, scale=one.scale, ratio=one.ratio, value=[0.0])
        if value is not None and value is not image:
            sketch.note(self.at, place)


def is_drawn(chance: float) -> bool:
    """`torch.rand(1) < chance`, which compares in the dtype that is drawn in; without a tensor for the answer, which
    takes longer than the draw."""
    number = torch.rand(1)
    return number.item() < float(np.float32(chance)) if number.dtype is torch.float32 else bool(number < chance)


def sides(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Left, top, right, bottom."""
    given = (padding,) if isinstance(padding, int) else tuple(padding)
    return (given * 4)[:4] if len(given) < 4 else given  # type: ignore[return-value]


def _resized(height: int, width: int, size: Any, longest: int | None) -> tuple[int, int]:
    given = [size] if isinstance(size, int) else size
    if given is not None and len(given) == 2:
        return given[0], given[1]
    short, long = min(height, width), max(height, width)
    if given is None:
        assert longest is not None
        new_short, new_long = int(longest * short / long), longest
    else:
        new_short, new_long = given[0], int(given[0] * long / short)
        if longest is not None and new_long > longest:
            new_short, new_long = int(longest * new_short / new_long), longest
    return (new_long, new_short) if width <= height else (new_short, new_long)
