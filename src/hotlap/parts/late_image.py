"""Images whose pixels are made when they are wanted."""

from __future__ import annotations

from typing import Any, ClassVar

from PIL import Image

_END = b"\xff\xd9"


def whole_jpeg(image: Any) -> bytes | None:
    """The bytes of a JPEG file that Pillow has opened; None where it is cut off: then Pillow's error must come here and
    now."""
    try:
        image.fp.seek(0)
        data: bytes = image.fp.read()
    except Exception:
        return None
    return data if _END in data[-64:] else None  # some writers pad


class Late:
    """An image of another class until `load` makes it Pillow's own: whoever compares or pickles it wants that."""

    load: Any

    def __eq__(self, other: object) -> bool:
        for one in (self, other):
            if isinstance(one, Late):
                one.load()
        return bool(self == other)  # both by now of Pillow's own kind

    __hash__ = None  # type: ignore[assignment]  # as every image

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)  # by now Pillow's own: a pickle of the script's must not need this module


class LateImage(Late, Image.Image):
    """Knows its mode and size. The first time its pixels are wanted they are made by `made()`."""

    own: ClassVar[tuple[str, ...]]  # what it needs until then

    def made(self) -> Image.Image:
        raise NotImplementedError

    @property
    def im(self) -> Any:
        self.load()
        return self.im  # by now a plain image's

    @im.setter
    def im(self, im: Any) -> None:
        self._im = im

    def load(self) -> Any:
        im, own = self.made().im, self.own
        self.__class__ = Image.Image  # type: ignore[assignment]
        self.im = im
        for name in own:
            delattr(self, name)
        return self.load()
