"""`cached_open`: PIL's `Image.open` that decodes each file once and then reads it from shared memory.

    from hotlap.parts.image_cache import cached_open

    class Photos(Dataset):
        def __getitem__(self, index):
            image = cached_open(self.paths[index]).convert("RGB")

What comes back is a fresh image each time, so random transforms and drawing into it are safe. A file that changes on
disk is decoded again. Import this before loader workers are forked: then they share one copy."""

from __future__ import annotations

import os
import pickle
from typing import Any

import psutil
from PIL import Image

from hotlap.parts.shared_pool import SharedPool

_FORMATS = ("JPEG", "PNG", "BMP", "PPM")
_MODES = ("RGB", "L", "RGBA", "CMYK", "LA", "1")
_pil_open = Image.open  # taken at import: `cached_open` may later stand in its place
_pool: SharedPool | None = None


def default_limit_bytes() -> int:
    return min(4 << 30, psutil.virtual_memory().available // 4)


def set_limit(limit_bytes: int) -> None:
    """Start over with an empty pool of this size."""
    global _pool
    _pool = SharedPool(limit_bytes)


def clear() -> None:
    """Forget everything and give the memory back; the next `set_limit` starts anew."""
    global _pool
    _pool = None


def hits() -> int:
    return _pool.hits if _pool is not None else 0


def used_bytes() -> int:
    return _pool.used_bytes if _pool is not None else 0


def cached_open(file: Any, *args: Any, original: Any = None, **kwargs: Any) -> Image.Image:
    """As `PIL.Image.open(file)`. Anything but a plain image file read from its start goes straight to PIL."""
    pil_open = original or _pil_open
    key = None if args or kwargs or _pool is None else _key(file)
    if key is None:
        return pil_open(file, *args, **kwargs)
    assert _pool is not None
    kept = _pool.get(key)
    if kept is not None:
        cut = 4 + int.from_bytes(kept[:4], "little")
        return _image(kept[4:cut], kept[cut:], file, pil_open)
    image = pil_open(file)
    if image.format not in _FORMATS or image.mode not in _MODES or getattr(image, "is_animated", False):
        return image
    try:
        head, pixels = _pack(image)
    except Exception:  # damaged file: the error must come where the script's own code meets it
        if hasattr(file, "seek"):
            file.seek(0)
        return pil_open(file)
    _pool.put(key, len(head).to_bytes(4, "little"), head, pixels)
    return _image(head, pixels, file, pil_open)


class _Remembered(Image.Image):
    """A decoded image that can still be asked for a draft, which decodes the file anew at a smaller scale."""

    format: str | None
    filename: str

    def draft(self, mode: str | None, size: Any) -> Any:
        fresh = self._pil_open(self.filename)
        drafted = fresh.draft(mode, size)
        if drafted is not None:
            fresh.load()
            self.im, self._size, self._mode = fresh.im, fresh.size, fresh.mode
        return drafted

    def _new(self, im: Any) -> Image.Image:
        return Image.Image()._new(im) if not self.info else _with_info(Image.Image()._new(im), self)


def _with_info(image: Image.Image, source: Image.Image) -> Image.Image:
    image.info = source.info.copy()
    return image


def _key(file: Any) -> bytes | None:
    try:
        if isinstance(file, (str, os.PathLike)):
            path, stat = os.fspath(file), os.stat(file)
        elif isinstance(getattr(file, "name", None), str) and file.tell() == 0:
            path, stat = file.name, os.fstat(file.fileno())
        else:
            return None
    except (OSError, AttributeError, ValueError):
        return None
    return f"{os.path.abspath(os.fsdecode(path))}\0{stat.st_size}\0{stat.st_mtime_ns}\0{stat.st_ino}".encode()


def _pack(image: Image.Image) -> tuple[bytes, bytes]:
    pixels = image.tobytes()
    info = {name: value for name, value in image.info.items() if isinstance(value, (int, float, str, bytes, tuple))}
    return pickle.dumps((image.mode, image.size, image.format, info)), pixels


def _image(head: Any, pixels: Any, file: Any, pil_open: Any) -> Image.Image:
    mode, size, format, info = pickle.loads(head)
    image = _Remembered()
    image.im = Image.frombytes(mode, size, pixels).im
    image._size, image._mode, image.info, image.format = size, mode, info, format
    image.filename = os.fspath(file if isinstance(file, (str, os.PathLike)) else file.name)
    image._pil_open = pil_open  # type: ignore[attr-defined]
    return image


set_limit(default_limit_bytes())
