"""PIL's `Image.fromarray` that makes no image of an array of colours before somebody wants one: for somebody else to
take its levels as they are."""

from __future__ import annotations

from typing import Any

import numpy
from PIL import Image

from hotlap.parts.late_image import LateImage


def from_array_late(original: Any, array: Any, *args: Any, **kwargs: Any) -> Any:
    """As `original(array)`, which is PIL's `Image.fromarray`. Only where that copies the array, so that nobody can tell
    from what is later written into it."""
    is_plain = type(array) is numpy.ndarray and array.dtype == numpy.uint8 and array.ndim == 3 and array.shape[2] == 3
    if args or kwargs or not is_plain or not array.size:
        return original(array, *args, **kwargs)
    return OfArray(array.copy())


class OfArray(LateImage):
    """An RGB image that is still an array (height, width, 3) of bytes. Until somebody wants more of it, it is hardly
    more than its size: there is one for each sample."""

    own = ("levels",)

    def __init__(self, levels: numpy.ndarray) -> None:
        super().__init__()
        self.levels = levels
        self._mode, self._size = "RGB", (levels.shape[1], levels.shape[0])

    def made(self) -> Image.Image:
        return _pil_from_array(self.levels)


_pil_from_array = Image.fromarray  # taken at import: something of ours may later stand in its place
