"""The cache against OpenCV itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy
import pytest

cv2 = pytest.importorskip("cv2", reason="needs opencv-python-headless")

from hotlap.parts import array_cache  # noqa: E402
from hotlap.parts.array_cache import cached_imread  # noqa: E402

FLAGS = ("IMREAD_COLOR", "IMREAD_GRAYSCALE", "IMREAD_UNCHANGED", "IMREAD_REDUCED_COLOR_2", "IMREAD_IGNORE_ORIENTATION")


@pytest.fixture(autouse=True, params=["decoded", "encoded"])
def pool(request: pytest.FixtureRequest):
    array_cache.set_limit(8 << 20, request.param)
    yield
    array_cache.clear()


def saved(folder: Path, name: str) -> str:
    path, kind = folder / name, Path(name).stem
    noise = numpy.random.default_rng(3).integers(0, 256, (9, 9, 4 if kind == "alpha" else 3), dtype=numpy.uint8)
    pixels = cv2.resize(noise, (61, 41))
    if kind == "rotated":
        image = pytest.importorskip("PIL.Image").fromarray(pixels)
        exif = image.getexif()
        exif[0x0112] = 6
        image.save(path, exif=exif)
    else:
        cv2.imwrite(str(path), pixels.astype(numpy.uint16) * 200 if kind == "sixteen" else pixels)
    return str(path)


@pytest.mark.parametrize(
    "name", ["a.jpg", "a.png", "alpha.png", "sixteen.png", "a.bmp", "a.webp", "a.tiff", "rotated.jpg"]
)
@pytest.mark.parametrize("flag", FLAGS)
def test_the_same_array_first_and_later(tmp_path: Path, name: str, flag: str) -> None:
    path, flags = saved(tmp_path, name), getattr(cv2, flag)
    expected = cv2.imread(path, flags)
    for _ in range(3):
        array = cached_imread(path, flags)
        assert (array.dtype, array.shape, array.strides) == (expected.dtype, expected.shape, expected.strides)
        assert numpy.array_equal(array, expected)
    assert array_cache.hits() == 2


def test_flags_and_names(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.jpg")
    assert cached_imread(path).shape == (41, 61, 3)
    assert cached_imread(path, cv2.IMREAD_GRAYSCALE).shape == (41, 61)
    assert numpy.array_equal(cached_imread(Path(path)), cv2.imread(path))
    assert array_cache.hits() == 1, "the name is the same, whatever its type; the flags are not"


def test_arrays_are_the_scripts_own(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.png")
    expected = cv2.imread(path)
    for _ in range(3):
        array = cached_imread(path)
        assert array.flags.writeable and array.flags.owndata and numpy.array_equal(array, expected)
        array[:] = 0


def test_what_cannot_be_read_is_none_each_time(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    for _ in range(2):
        assert cached_imread(str(tmp_path / "missing.png")) is None
        assert cached_imread(str(broken)) is None
    with pytest.raises(Exception, match="imread"):
        cached_imread(3)
    cv2.imwrite(str(broken), numpy.zeros((4, 5, 3), numpy.uint8))
    assert cached_imread(str(broken)).shape == (4, 5, 3)


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = saved(tmp_path, "a.bmp")
    cached_imread(path)
    cv2.imwrite(path, numpy.full((41, 61, 3), 7, numpy.uint8))
    os.utime(path, ns=(1, os.stat(path).st_mtime_ns + 10**6))
    assert (cached_imread(path) == 7).all()
