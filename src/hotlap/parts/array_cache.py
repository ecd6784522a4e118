"""`cached_imread`: OpenCV's `cv2.imread` that decodes each file once and then reads it from shared memory.

    from hotlap.parts.array_cache import cached_imread, hits

    class Photos(Dataset):
        def __getitem__(self, index):
            image = cached_imread(self.paths[index], cv2.IMREAD_COLOR)

    print(hits())  # images that were not decoded again

What comes back is a fresh array each time. It shares its pool, and the limit, with `image_cache`."""

from __future__ import annotations

import os
import pickle
from typing import Any

import cv2
import numpy

from hotlap.parts import file_pool
from hotlap.parts.file_pool import clear, hits, set_limit, used_bytes

__all__ = ["cached_imread", "clear", "hits", "set_limit", "used_bytes"]

_SAME_FROM_MEMORY = (".jpg", ".jpeg", ".png", ".bmp")
_imread = cv2.imread  # taken at import: `cached_imread` may later stand in its place


def cached_imread(filename: Any, flags: Any = cv2.IMREAD_COLOR, *, original: Any = None) -> Any:
    """As `cv2.imread(filename, flags)`: what cannot be read is None, and not remembered."""
    imread, about = original or _imread, f"cv2 {flags}"
    can_keep = file_pool.is_open() and isinstance(filename, (str, os.PathLike))
    key = file_pool.key(filename, about) if can_keep else None
    if key is None:
        return imread(filename, flags)
    kept = file_pool.kept(key)
    if kept is not None:
        return _array(*kept) if kept[0] else cv2.imdecode(numpy.frombuffer(kept[1], numpy.uint8), flags)
    image = imread(filename, flags)
    if image is None:
        return None
    is_known = os.fsdecode(filename).lower().endswith(_SAME_FROM_MEMORY)
    if is_known and file_pool.keeps_encoded(key, image.nbytes):
        file_pool.keep_file(key, filename, about)
    else:
        file_pool.keep(key, pickle.dumps((image.shape, image.dtype.str)), image.tobytes())
    return image


def _array(head: memoryview, pixels: memoryview) -> Any:
    shape, dtype = pickle.loads(head)
    return numpy.frombuffer(pixels, dtype).reshape(shape).copy()


if not file_pool.is_open():
    set_limit()
