"""`open_jpeg`: PIL's `Image.open` whose JPEG files are decoded by libjpeg-turbo directly; `decode_batch`: many at once.

    from hotlap.parts.fast_jpeg import decode_batch, open_jpeg

    class Photos(Dataset):
        def __getitem__(self, index):
            image = open_jpeg(self.paths[index]).convert("RGB")

    tensors = decode_batch([path.read_bytes() for path in paths], device="cuda")

The file is opened by Pillow, so everything but the pixels is Pillow's own, and so is every file that is not a plain
8-bit RGB or grayscale JPEG, and every error: what libjpeg-turbo warns of is decoded again by Pillow. With `scaled=True`
a file that is cropped and resized to half its size or less is decoded no larger than needed: see `scaled_jpeg`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, Protocol

import numpy as np
import simplejpeg
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from hotlap.parts.late_image import Late

_STORED = {"RGB": ("RGBX", 3), "L": ("L", 1)}  # by mode: how Pillow stores it, and how many layers the file has
_COLOURS = {"RGBX": "RGBX", "L": "GRAY"}  # what simplejpeg calls it
pil_open = inspect.unwrap(Image.open)  # `open_jpeg` may already stand in its place


class Judge(Protocol):
    """Who wants the first images decoded both ways, and may call the whole thing off."""

    @property
    def failed(self) -> bool: ...
    @property
    def is_open(self) -> bool: ...
    def add(self, difference: float) -> None: ...


def verdict(judge: Judge | None) -> bool | None:
    """Of what was just decoded: True it may be used, None it has to be compared first, False it may not. Asked in this
    order: another process may find a fault at any moment, after which nothing is to be compared either."""
    if judge is None:
        return True
    return None if judge.is_open else not judge.failed


def open_jpeg(
    file: Any, *args: Any, original: Any = None, scaled: bool = False, judge: Judge | None = None, **kwargs: Any
) -> Any:
    """As `PIL.Image.open(file)`. A judge is told how far the first images are from Pillow's, in levels of 255: the
    largest difference, or the mean where they were decoded smaller."""
    image = (original or pil_open)(file, *args, **kwargs)
    if type(image) is not JpegImageFile or not _is_plain(image) or (judge is not None and judge.failed):
        return image
    if scaled:
        from hotlap.parts.scaled_jpeg import ScaledJpeg

        image.__class__ = ScaledJpeg
    else:
        image.__class__ = FastJpeg
    vars(image)["_judge"] = judge
    return image


class FastJpeg(Late, JpegImageFile):
    """A JPEG file that Pillow has opened and not yet loaded. Once loaded it is Pillow's own kind of image again."""

    fp: Any
    _judge: Judge | None = None

    def load(self) -> Any:
        judge, pixels = self._judge, self._pixels()
        is_good = pixels is not None and verdict(judge)
        if is_good:
            self._take(pixels)
        else:
            super().load()
        self.__class__ = JpegImageFile  # type: ignore[assignment]
        vars(self).pop("_judge", None)
        if is_good is None and judge is not None:
            judge.add(_difference(self, pixels))
        return self.load()

    def _pixels(self) -> Any:
        """None wherever Pillow shall have its own way with the file, errors included."""
        if not _is_plain(self) or (self._judge is not None and self._judge.failed):
            return None
        try:
            self.fp.seek(0)
            pixels = decode(self.fp.read(), self.mode, self.size if self.decoderconfig else (0, 0))
        except Exception:  # damaged, closed, or something libjpeg-turbo warns of
            return None
        return pixels if pixels.shape[1::-1] == self.size else None

    def _take(self, pixels: Any) -> None:
        """Leave behind what Pillow's own `load` does."""
        self.load_prepare()
        self.frombytes(pixels, "raw", _STORED[self.mode][0], 0, 1)
        self.tile, self.readonly, self.map = [], 0, None
        if self._exclusive_fp and self._close_exclusive_fp_after_loading:
            self.fp.close()
        self.fp = None


def decode(data: bytes, mode: str, least: tuple[int, int] = (0, 0)) -> Any:
    """Rows, columns and colours as Pillow stores them, RGB with a fourth byte; scaled down as far as `least` allows, a
    width and a height. Raises where libjpeg-turbo warns."""
    return simplejpeg.decode_jpeg(data, _COLOURS[_STORED[mode][0]], min_width=least[0], min_height=least[1])


def decode_batch(files: Sequence[bytes], device: str = "cpu", threads: int | None = None) -> list[Any]:
    """RGB tensors (3, height, width) of bytes: by nvJPEG in one go on a CUDA device, else by libjpeg-turbo in threads.
    nvJPEG rounds otherwise than libjpeg-turbo. A file that fails there is decoded by itself, by Pillow in the end."""
    if device.startswith("cuda"):
        import torch

        from hotlap.parts.device_jpeg import decode_all

        return list(
            decode_all([torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files], torch.device(device))
        )
    with ThreadPoolExecutor(threads or min(len(files) or 1, _cores())) as pool:
        return list(pool.map(_decode_one, files))


def _decode_one(file: bytes) -> Any:
    import torch

    image = open_jpeg(BytesIO(file)).convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _is_plain(image: JpegImageFile) -> bool:
    """Not loaded yet, and of a kind that both decode alike; very small drafts could come out at another scale."""
    if len(image.tile) != 1 or image.mode not in _STORED or image.bits != 8:
        return False
    is_as_stored = image.tile[0][3] == (image.mode, "") and image.layers == _STORED[image.mode][1]
    return is_as_stored and (not image.decoderconfig or min(image.size) >= 16)


def _difference(image: Image.Image, pixels: Any) -> float:
    own = np.asarray(image, np.int16)
    return float(np.abs(own - pixels[..., :3].reshape(own.shape)).max())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
