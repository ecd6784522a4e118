"""Images whose pixels are made when they are wanted."""

from __future__ import annotations

from typing import Any, ClassVar

from PIL import Image


class LateImage(Image.Image):
    """Knows its mode and size. The first time its pixels are wanted, by Pillow or by whoever compares or pickles it,
    they are made by `made()`, and from then on it is a plain image."""

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

    def __eq__(self, other: object) -> bool:
        for one in (self, other):
            if isinstance(one, LateImage):
                one.load()
        return bool(self == other)

    __hash__ = None  # type: ignore[assignment]  # as every image

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.load()
        return self.__reduce_ex__(protocol)
