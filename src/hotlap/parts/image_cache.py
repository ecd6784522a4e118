"""`cached_open`: PIL's `Image.open` that decodes each file once and then reads it from shared memory.

    from hotlap.parts.image_cache import cached_open, hits

    class Photos(Dataset):
        def __getitem__(self, index):
            image = cached_open(self.paths[index]).convert("RGB")

    print(hits())  # images that were not decoded again

What comes back is a fresh image each time, so random transforms and drawing into it are safe. A file that changes on
disk is decoded again. Import this before loader workers are forked: then they share one copy."""

from __future__ import annotations

import io
import os
import pickle
from typing import Any

from PIL import Image

from hotlap.parts import file_pool
from hotlap.parts.file_pool import clear, hits, set_limit, used_bytes

__all__ = ["cached_open", "clear", "hits", "set_limit", "used_bytes"]

_FORMATS = ("JPEG", "PNG", "BMP", "PPM")
_MODES = ("RGB", "L", "RGBA", "CMYK", "LA", "1")
_AS_KEPT = {"RGB": "RGBX"}  # as PIL itself holds them, four bytes a pixel: such bytes become an image without a copy
_MAPPED = ("RGB", "RGBA", "CMYK", "L")
_ALIGNED = 16
_pil_open = Image.open  # taken at import: `cached_open` may later stand in its place


def cached_open(file: Any, *args: Any, original: Any = None, **kwargs: Any) -> Image.Image:
    """As `PIL.Image.open(file)`. Anything but a plain image file read from its start goes straight to PIL."""
    pil_open = original or _pil_open
    key = None if args or kwargs or not file_pool.is_open() else file_pool.key(file)
    if key is None:
        return pil_open(file, *args, **kwargs)
    kept = file_pool.kept(key)
    if kept is not None:
        return _image(*kept, file, pil_open) if kept[0] else _encoded(kept[1], file, pil_open)
    image = pil_open(file)
    if image.format not in _FORMATS or image.mode not in _MODES or getattr(image, "is_animated", False):
        return image
    if file_pool.keeps_encoded(key, image.width * image.height * len(_AS_KEPT.get(image.mode, image.getbands()))):
        file_pool.keep_file(key, file)
        return image
    try:
        head, pixels = _pack(image)
    except Exception:  # damaged file: the error must come where the script's own code meets it
        if hasattr(file, "seek"):
            file.seek(0)
        return pil_open(file)
    file_pool.keep(key, head, pixels)
    return _image(head, pixels, file, pil_open)


def _encoded(content: Any, file: Any, pil_open: Any) -> Image.Image:
    """PIL's own image, which will read its file from memory."""
    image = pil_open(io.BytesIO(content))
    if isinstance(file, (str, os.PathLike)):
        image.filename = os.fspath(file)  # as PIL has it
    return image


class _Shared(Image.Image):
    """An image whose pixels lie in memory that others look at, too. PIL copies such pixels before it changes them."""

    def load(self) -> Any:
        pixels = super().load()
        return _Pixels(self) if pixels is not None and self.readonly else pixels

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        """To its own mode, which many loaders do to be sure: not a copy, but one more that looks at the same pixels."""
        if mode != self.mode or args or kwargs or not self.readonly:
            return super().convert(mode, *args, **kwargs)
        self.load()
        return _sharing(_Shared(), self.im, self.mode, self.size, self.info.copy())

    def __eq__(self, other: object) -> bool:
        """By its pixels: PIL would ask for the same class first, and ours is none a script knows of."""
        if not isinstance(other, Image.Image):
            return NotImplemented
        return Image.Image.__eq__(self._new(self.im), other._new(other.im) if isinstance(other, _Shared) else other)

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return Image.Image, (), self.__getstate__()  # a pickle of the script's must not need this module


class _Pixels:
    """`image.load()[x, y]`, to read and to write, where the first write makes the pixels the image's own."""

    def __init__(self, image: Image.Image) -> None:
        self._image = image

    def __getitem__(self, place: Any) -> Any:
        return self._image.im.pixel_access(self._image.readonly)[place]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._image._ensure_mutable()
        self._image.im.pixel_access(0)[place] = value


class _Remembered(_Shared):
    """A decoded image that behaves as one just opened: until it is loaded it can be asked for a draft, which decodes
    the file anew at a smaller scale, and what only the file's format knows is asked of the file."""

    _is_untouched = False
    _path = ""
    _kind: type = Image.Image

    @property
    def __class__(self) -> Any:  # what the script asks for, and what is printed
        return self._kind

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
            self.im, self._size, self._mode, self.readonly = fresh.im, fresh.size, fresh.mode, 0
            self._is_untouched = False
        return drafted

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not self._path:
            raise AttributeError(name)
        return getattr(self._pil_open(self._path), name)


def _pack(image: Image.Image) -> tuple[bytes, bytes]:
    pixels = image.tobytes("raw", _AS_KEPT.get(image.mode, image.mode))
    info = {name: value for name, value in image.info.items() if _is_plain(value)}
    head = pickle.dumps((image.mode, image.size, image.format, info, type(image)))
    return head.ljust(-(-(len(head) + 4) // _ALIGNED) * _ALIGNED - 4), pixels  # four bytes come before it


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str, bytes, tuple, list, dict, type(None)))


def _image(head: Any, pixels: Any, file: Any, pil_open: Any) -> Image.Image:
    mode, size, format, info, kind = pickle.loads(head)
    image = _Remembered()
    if mode in _MAPPED and _can_map:
        _sharing(image, _mapped(mode, size, pixels), mode, size, info)
    else:
        image.im = Image.frombytes(mode, size, pixels, "raw", _AS_KEPT.get(mode, mode)).im
        image._size, image._mode, image.info = size, mode, info
    is_path = isinstance(file, (str, os.PathLike))
    image.format = format
    image.filename = os.fspath(file) if is_path else ""  # as PIL has it
    image._kind = kind
    image._path = os.path.abspath(file if is_path else file.name)
    image._pil_open = pil_open
    image._is_untouched = True
    return image


def _sharing(image: Any, core: Any, mode: str, size: Any, info: Any) -> Any:
    image.im, image._mode, image._size, image.info, image.readonly = core, mode, size, info, 1
    return image


def _mapped(mode: str, size: tuple[int, int], pixels: Any) -> Any:
    return Image.core.map_buffer(pixels, size, "raw", 0, (mode, 0, 1))


def _tried_to_map() -> bool:
    """PIL maps memory for `frombuffer`, though not under this mode's name: seen to be right before it is relied on."""
    plain = Image.frombytes("RGB", (3, 2), bytes(range(18)))
    try:
        core = _mapped("RGB", plain.size, plain.tobytes("raw", "RGBX"))
        return _sharing(Image.Image(), core, "RGB", plain.size, {}).tobytes() == plain.tobytes()
    except (AttributeError, TypeError, ValueError):
        return False


_can_map = _tried_to_map()
if not file_pool.is_open():
    set_limit()
