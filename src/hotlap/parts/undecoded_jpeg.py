"""PIL's `Image.open` that leaves a JPEG file undecoded through `convert("RGB")`, for somebody else to decode.

Only what nvJPEG and libjpeg decode alike is left: 8 bits, grey or YCbCr, whole to its end. Anything else is Pillow's,
errors included. As soon as somebody wants pixels, the image decodes itself and is a plain one from then on."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from hotlap.parts.late_image import Late, LateImage, whole_jpeg

_COMPONENTS = ((1, 2, 3), (0, 1, 2))  # by any other number they may be RGB


def open_undecoded(original: Any, file: Any, *args: Any, **kwargs: Any) -> Any:
    """As `original(file)`, which is PIL's `Image.open`."""
    image = original(file, *args, **kwargs)
    if type(image) is JpegImageFile and _is_plain(image):
        image.__class__ = Unread
    return image


class Unread(Late, JpegImageFile):
    """A file that Pillow has opened and not yet loaded."""

    def load(self) -> Any:
        self.__class__ = JpegImageFile  # type: ignore[assignment]
        return self.load()

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        if mode == "RGB" and not args and not kwargs and not self.decoderconfig:
            data = whole_jpeg(self)
            if data is not None:
                return Undecoded(data, self.size, self.info)
        return super().convert(mode, *args, **kwargs)


class Undecoded(LateImage):
    """An RGB image of which only the size is known, until its pixels are wanted."""

    own = ("data",)

    def __init__(self, data: bytes, size: tuple[int, int], info: dict[Any, Any]) -> None:
        super().__init__()
        self.data, self.info = data, info.copy()
        self._mode, self._size = "RGB", size

    def made(self) -> Image.Image:
        return _pil_open(BytesIO(self.data)).convert("RGB")

    def convert(self, mode: str | None = None, *args: Any, **kwargs: Any) -> Image.Image:
        if mode == "RGB" and not args and not kwargs:
            return Undecoded(self.data, self.size, self.info)
        return super().convert(mode, *args, **kwargs)


_pil_open = Image.open  # taken at import: something of ours may later stand in its place


def _is_plain(image: JpegImageFile) -> bool:
    if len(image.tile) != 1 or image.bits != 8 or image.info.get("adobe_transform", 1) != 1:
        return False
    if image.mode == "L":
        return image.layers == 1
    return image.mode == "RGB" and image.layers == 3 and tuple(one[0] for one in image.layer) in _COMPONENTS
