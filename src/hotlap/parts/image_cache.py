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
    """A decoded image that behaves as one just opened: until it is loaded it can be asked for a draft, which decodes
    the file anew at a smaller scale, and what only the file's format knows is asked of the file."""

    _is_untouched = False
    _path = ""

    def load(self) -> Any:
        self._is_untouched = False
        return super().load()

    def draft(self, mode: str | None, size: Any) -> Any:
        if not self._is_untouched:
            return None
        fresh = self._pil_open(self._path)
        drafted = fresh.draft(mode, size)
        if drafted is not None:
            fresh.load()
            self.im, self._size, self._mode = fresh.im, fresh.size, fresh.mode
            self._is_untouched = False
        return drafted

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self._path:
            raise AttributeError(name)
        return getattr(self._pil_open(self._path), name)

    def __reduce__(self) -> Any:
        return Image.Image, (), self.__getstate__()  # a pickle of the script's must not need this module


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
    info = {name: value for name, value in image.info.items() if _is_plain(value)}
    return pickle.dumps((image.mode, image.size, image.format, info)), pixels


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str, bytes, tuple, list, dict, type(None)))


def _image(head: Any, pixels: Any, file: Any, pil_open: Any) -> Image.Image:
    mode, size, format, info = pickle.loads(head)
    image = _Remembered()
    image.im = Image.frombytes(mode, size, pixels).im
    image._size, image._mode, image.info, image.format = size, mode, info, format
    is_path = isinstance(file, (str, os.PathLike))
    image.filename = os.fspath(file) if is_path else ""  # as PIL has it
    image._path = os.path.abspath(file if is_path else file.name)
    image._pil_open = pil_open
    image._is_untouched = True
    return image


set_limit(default_limit_bytes())
