"""JPEG files that stay undecoded as long as nobody looks, and are Pillow's own as soon as somebody does."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile

from hotlap.parts.undecoded_jpeg import Undecoded, open_undecoded

opened = functools.partial(open_undecoded, Image.open)


@pytest.fixture
def picture() -> Image.Image:
    return Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=numpy.uint8)).resize((40, 30))


@pytest.fixture
def path(tmp_path: Path, picture: Image.Image) -> Path:
    picture.save(tmp_path / "a.jpg", quality=90)
    return tmp_path / "a.jpg"


def test_converted_it_is_the_file_itself(path: Path) -> None:
    with open(path, "rb") as file:  # closed before anybody looks, as torchvision's loader does it
        image = opened(file).convert("RGB")
    assert type(image) is Undecoded and image.data == path.read_bytes()
    assert image.size == (40, 30) and image.mode == "RGB" and type(image.convert("RGB")) is Undecoded


USES = {
    "array": numpy.asarray,
    "crop": lambda image: image.crop((3, 4, 20, 20)).tobytes(),
    "resize": lambda image: image.resize((9, 9)).tobytes(),
    "pixel": lambda image: image.getpixel((5, 5)),
    "load": lambda image: image.load()[2, 2],
    "grey": lambda image: image.convert("L").tobytes(),
    "copy": lambda image: image.copy().tobytes(),
    "flip": lambda image: ImageOps.mirror(image).tobytes(),
    "pickle": lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
    "split": lambda image: [band.tobytes() for band in image.split()],
}


@pytest.mark.parametrize("is_converted", [False, True])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_whoever_looks_sees_pillows_pixels(path: Path, use, is_converted: bool) -> None:
    found, expected = opened(path), Image.open(path)
    if is_converted:
        found, expected = found.convert("RGB"), expected.convert("RGB")
    assert numpy.array_equal(use(found), use(expected))
    assert found == expected and type(found) is type(expected)


def test_two_of_one_file_are_equal(path: Path) -> None:
    assert opened(path) == opened(path) and opened(path).convert("RGB") == opened(path).convert("RGB")
    assert opened(path) == Image.open(path) and Image.open(path) == opened(path)


@pytest.mark.parametrize("mode", ["CMYK", "RGB stored as it is", "PNG", "cut off"])
def test_other_files_are_pillows(tmp_path: Path, picture: Image.Image, path: Path, mode: str) -> None:
    other = tmp_path / "b.jpg"
    if mode == "cut off":
        other.write_bytes(path.read_bytes()[:-200])
    elif mode == "PNG":
        picture.save(other, format="PNG")
    elif mode == "CMYK":
        picture.convert("CMYK").save(other)
    else:
        picture.save(other, keep_rgb=True)
    if mode == "cut off":
        with pytest.raises(OSError, match="truncated"):
            opened(other).convert("RGB")
    else:
        assert type(opened(other).convert("RGB")) is Image.Image


def test_grey_files_are_decoded_in_colour_when_asked(tmp_path: Path, picture: Image.Image) -> None:
    picture.convert("L").save(tmp_path / "grey.jpg")
    image = opened(tmp_path / "grey.jpg")
    assert type(image.convert("RGB")) is Undecoded
    assert image.convert("L").mode == "L" and type(image) is JpegImageFile
