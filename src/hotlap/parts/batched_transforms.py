"""A torchvision pipeline run on whole batches, on any device, with the very draws the script would have made.

    from hotlap.parts.batched_transforms import recognised

    pipeline = recognised(dataset.transform)                           # or a sentence that says why not
    pictures = [Image.open(path).convert("RGB") for path in paths]
    if pipeline.head is not None:                                      # what has no batched form stays on the CPU
        pictures = [pipeline.head(picture) for picture in pictures]
    recipes = [pipeline.draw(*picture.size) for picture in pictures]   # moves generators as the transforms would
    batch = pipeline.run([pil_to_tensor(one) for one in pictures], recipes, device)

With a head that draws too, call it and `draw` picture by picture, as the script does.

Same seed, same images: `draw` asks each transform for its numbers without giving it pixels, in the same order. `run`
then reckons as Pillow does, to the last bit where tests could see it; what is promised is a mean difference of 0.01
levels of 255 for each resize, blur, rotation, affine map and colour jitter, and none for crops, flips, pads, grey,
erasing and normalising. Where the script works on tensors (after `ToImage` or `PILToTensor`), torchvision itself is off
from Pillow: 0.25 levels for a resize, 0.6 for each change of colour.

Images are levels (uint8) of one or three channels. The number of launches does not depend on how many there are, only
on how many parts they are taken in: no intermediate tensor has more than `MOST_ELEMENTS` elements, 256 MiB."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from hotlap.parts.drawn_transforms import Drawing, Recipe, Recipes, Sketch, Stage
from hotlap.parts.finishing import Floating, Normalising
from hotlap.parts.known_transforms import FLOATS, LEVELS, PICTURE, Builder, NotKnown, flat, known
from hotlap.parts.packed_images import Images
from hotlap.parts.resampling import Framing, kernels

_PHOTO_LEVELS = 32.0  # a batch whose standard deviation is less than this is hardly a batch of photos: they have 60


class Head:
    """What comes before the recognised tail, called as the script's pipeline would call it."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image


class Pipeline:
    """A recognised tail of a torchvision pipeline.

    `head`: what is not recognised; called on the image first, it must give what `expects` says. None: nothing stays.
    `expects`: "picture" (PIL) or "levels" (uint8 CHW): what the first recognised transform is given by the script.
    `tolerance`: largest mean difference to the script's own, in standard deviations of the batch that comes out, for
    batches that spread over at least 32 levels; `levels` is the same in levels of 255."""

    def __init__(self, head: Head | None, expects: str, drawings: Sequence[Drawing], stages: Sequence[Stage]) -> None:
        self.head, self.expects, self.drawings, self.stages = head, expects, drawings, stages
        self.levels = sum(stage.levels for stage in stages)
        self.tolerance = self.levels / _PHOTO_LEVELS + 1e-6
        self._last = max(at for at, stage in enumerate(stages) if not isinstance(stage, (Floating, Normalising)))

    def draw(self, width: int, height: int) -> Recipe:
        """The numbers for one image of this size; every generator moves as the transforms would have moved it."""
        sketch = Sketch(self.stages, width, height)
        for drawing in self.drawings:
            drawing.draw(sketch)
        return sketch.recipe()

    def run(
        self, images: Sequence[Tensor] | Images, recipes: Sequence[Recipe] | Recipes, device: torch.device | str
    ) -> Tensor:
        """The batch. Images that lie in one buffer already may be given as `Images.in_buffer`."""
        device = torch.device(device)
        drawn = recipes if isinstance(recipes, Recipes) else Recipes.of(recipes)
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            held = images if isinstance(images, Images) else Images.packed(images, device)
            for at, (stage, numbers) in enumerate(zip(self.stages, drawn.stages, strict=True)):
                if at == self._last and (made := self._at_once(stage, held, numbers)) is not None:
                    held = made
                    break
                held = stage.run(held, numbers)
        if len({*held.heights}) > 1 or len({*held.widths}) > 1:
            raise ValueError("images of different sizes came out of the transforms, which do not stack")
        return held.pixels

    def _at_once(self, stage: Stage, images: Images, numbers: np.ndarray) -> Images | None:
        """Crops and resizes after which each level only becomes a number of its own, which their kernel looks up."""
        if not isinstance(stage, Framing) or stage is self.stages[-1] or kernels(images.device) is None:
            return None
        table = self._table(images)
        return None if table is None else stage.run_by_kernels(images, numbers, table)

    def _table(self, images: Images) -> Tensor | None:
        """Channels by 256: what the stages after the last of those make of a level. None where there is more to it."""
        kept, key = _tables.setdefault(self, {}), (images.device, images.channels, torch.get_default_dtype())
        if key not in kept:
            levels = torch.arange(256, dtype=torch.uint8, device=images.device).expand(1, images.channels, 1, 256)
            ramp = Images.stacked(levels, np.array([1]), np.array([256]))
            for stage in self.stages[self._last + 1 :]:
                ramp = stage.run(ramp, np.empty((1, 0)))
            is_each = ramp.pixels.shape[1] == images.channels
            table = ramp.pixels.reshape(-1, 256).contiguous() if is_each else None
            if images.device.type == "cuda":
                torch.cuda.current_stream(images.device).synchronize()  # other streams will read it
            kept[key] = table
        return kept[key]


_tables: WeakKeyDictionary[Pipeline, dict[Any, Tensor | None]] = WeakKeyDictionary()


def recognised(transform: Any) -> Pipeline | str:
    """The longest tail of a pipeline that has a batched form, or why there is none."""
    if transform is None:
        return "There is no transform."
    steps, first = flat(transform), 0
    why = "There is no transform."
    while first < len(steps):
        builder, drawings = Builder(_given(steps[:first])), []
        if builder.pixels == FLOATS:
            return why
        try:
            for step in steps[first:]:
                drawings.append(builder.read(step))
        except NotKnown as reason:
            first += len(drawings) + 1
            why = f"{type(steps[first - 1]).__name__} {reason}."
            continue
        if builder.pixels == PICTURE:
            return "The pipeline ends with a PIL image, which does not stack."
        head = Head(steps[:first]) if first else None
        return Pipeline(head, _given(steps[:first]), drawings, builder.stages)
    return why


def _given(head: Sequence[Any]) -> str:
    """What comes out of these: a PIL image, unless one of torchvision's turns it into something else."""
    pixels = PICTURE
    for transform in head:
        name = (known(transform) or ("", 0))[0]
        if name in ("ToTensor", "ToDtype", "ConvertImageDtype"):
            pixels = FLOATS
        elif name in ("PILToTensor", "ToImage"):
            pixels = LEVELS
        elif name == "ToPILImage":
            pixels = PICTURE
    return pixels
