"""The cache against PIL itself: whatever a script asks of an image, it gets the same answer."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import os
import pickle
from pathlib import Path

import numpy
import pytest
from PIL import Image, ImageDraw, ImageFile, ImageOps

from hotlap.parts import file_pool, image_cache
from hotlap.parts.image_cache import cached_open


@pytest.fixture(autouse=True, params=["decoded", "encoded"])
def pool(request: pytest.FixtureRequest):
    image_cache.set_limit(8 << 20, request.param)
    yield
    image_cache.clear()


def picture(mode: str, size: tuple[int, int] = (201, 135)) -> Image.Image:
    noise = numpy.random.default_rng(3).integers(0, 256, (size[1], size[0], 4), dtype=numpy.uint8)
    smooth = Image.fromarray(noise, "RGBA").resize((9, 9)).resize(size)
    return smooth.convert(mode)


def saved(folder: Path, name: str) -> Path:
    """One file of every kind that behaves in its own way."""
    path = folder / name
    kind = path.stem
    if kind == "rotated":
        exif = Image.Exif()
        exif[0x0112] = 6
        picture("RGB").save(path, exif=exif)
    elif kind == "animated":
        picture("P").save(path, save_all=True, append_images=[picture("P").rotate(90)])
    elif kind == "sixteen":
        Image.fromarray(numpy.arange(3000, dtype=numpy.uint16).reshape(50, 60)).save(path)
    elif kind == "truncated":
        picture("RGB", (200, 200)).save(path)
        path.write_bytes(path.read_bytes()[:1500])
    elif kind == "transparent":
        picture("RGB").save(path, transparency=(1, 2, 3))
    elif kind == "progressive":
        picture("RGB").save(path, progressive=True, dpi=(72, 72), icc_profile=b"profile")
    else:
        picture(kind).save(path)
    return path


JPEGS = ["RGB.jpg", "L.jpg", "CMYK.jpg", "rotated.jpg", "progressive.jpg"]
PNGS = ["RGB.png", "L.png", "RGBA.png", "LA.png", "P.png", "1.png", "transparent.png", "sixteen.png"]
FILES = [*JPEGS, *PNGS, "RGB.bmp", "RGB.ppm", "animated.gif", "RGB.webp"]
CACHED = {"RGB.jpg", "L.jpg", "CMYK.jpg", "RGB.png", "RGBA.png", "RGB.bmp", "rotated.jpg", "1.png"}


def same(ours: Image.Image, theirs: Image.Image) -> None:
    assert (ours.mode, ours.size, ours.format, ours.filename) == (
        theirs.mode,
        theirs.size,
        theirs.format,
        theirs.filename,
    )
    assert ours.tobytes() == theirs.tobytes()
    assert ours.info == theirs.info
    assert dict(ours.getexif()) == dict(theirs.getexif())


@pytest.mark.parametrize("name", FILES)
def test_same_image_first_and_second_time(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, name)
    for how in (str(path), path):
        for _ in range(2):
            same(cached_open(how), Image.open(how))
    for _ in range(2):
        with open(path, "rb") as ours, open(path, "rb") as theirs:
            same(cached_open(ours), Image.open(theirs))
    assert (image_cache.hits() == 5) if name in CACHED else image_cache.hits() in (0, 5)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "use",
    [
        lambda image: image.convert("RGB"),
        lambda image: image.convert("L").resize((20, 30)),
        lambda image: image.crop((3, 4, 20, 30)).transpose(Image.Transpose.ROTATE_90),
        ImageOps.exif_transpose,
        lambda image: image.thumbnail((12, 12)) or image,
        lambda image: image.thumbnail((12, 12), reducing_gap=None) or image,
        lambda image: (image.load(), image.thumbnail((12, 12)), image)[-1],
        lambda image: (image.draft("L", (16, 12)), image)[-1],
        lambda image: (image.draft("L", (30, 20)), image.draft("RGB", (8, 8)), image.thumbnail((7, 7)), image)[-1],
        lambda image: copy.deepcopy(image),
        lambda image: pickle.loads(pickle.dumps(image)),
    ],
    ids=["rgb", "grey", "crop", "exif", "thumbnail", "fair", "loaded", "draft", "twice", "deepcopy", "pickle"],
)
def test_same_answer(tmp_path: Path, name: str, use) -> None:
    path = saved(tmp_path, name)
    try:
        expected = use(Image.open(path))
    except ValueError as refused:  # PIL does not shrink every mode
        with pytest.raises(ValueError, match=str(refused)):
            use(cached_open(path))
        return
    for _ in range(2):
        answer = use(cached_open(path))
        assert (answer.mode, answer.size, answer.tobytes()) == (expected.mode, expected.size, expected.tobytes())
        assert numpy.array_equal(numpy.asarray(answer), numpy.asarray(expected))


def test_a_pickle_needs_nothing_of_ours(tmp_path: Path) -> None:
    path = saved(tmp_path, "RGB.png")
    cached_open(path)
    assert b"hotlap" not in pickle.dumps(cached_open(path))


def test_what_only_the_format_knows(tmp_path: Path) -> None:
    path = saved(tmp_path, "rotated.jpg")
    cached_open(path)
    ours, theirs = cached_open(path), Image.open(path)
    assert ours._getexif() == theirs._getexif()
    assert ours.quantization == theirs.quantization
    assert getattr(ours, "n_frames", 1) == getattr(theirs, "n_frames", 1)
    assert not hasattr(ours, "no_such_thing")


def test_used_as_a_context_and_closed(tmp_path: Path) -> None:
    path = saved(tmp_path, "RGB.jpg")
    cached_open(path)
    with cached_open(path) as image:
        assert image.convert("RGB").size == (201, 135)
    image.close()
    assert cached_open(path).getpixel((0, 0)) == Image.open(path).getpixel((0, 0))


def test_copies_are_independent(tmp_path: Path) -> None:
    path = saved(tmp_path, "RGB.png")
    expected = Image.open(path).tobytes()
    first, second = cached_open(path), cached_open(path)
    first.paste((0, 0, 0), (0, 0, 201, 135))
    second.info["mine"] = 1
    assert first.tobytes() != expected and second.tobytes() == expected
    third = cached_open(path)
    assert third.tobytes() == expected and "mine" not in third.info


def test_what_was_drawn_into_it_survives_a_thumbnail(tmp_path: Path) -> None:
    path = saved(tmp_path, "RGB.jpg")
    cached_open(path)
    ours, theirs = cached_open(path), Image.open(path)
    for image in (ours, theirs):
        image.paste((0, 0, 0), (20, 20, 100, 100))
        image.thumbnail((10, 10))
    assert ours.tobytes() == theirs.tobytes()


def test_a_changed_file_is_decoded_again(tmp_path: Path) -> None:
    path = tmp_path / "one.bmp"
    Image.new("RGB", (8, 8), (1, 2, 3)).save(path)
    assert cached_open(path).getpixel((0, 0)) == (1, 2, 3)
    Image.new("RGB", (8, 8), (4, 5, 6)).save(path)  # the same size in bytes
    os.utime(path, ns=(1, os.stat(path).st_mtime_ns + 10**6))
    assert cached_open(path).getpixel((0, 0)) == (4, 5, 6)
    other = tmp_path / "two.bmp"
    Image.new("RGB", (8, 8), (7, 8, 9)).save(other)
    os.replace(other, path)
    assert cached_open(path).getpixel((0, 0)) == (7, 8, 9)


def test_a_file_written_over_with_the_times_it_had_is_decoded_again(tmp_path: Path) -> None:
    """As data sets are whose times were all set alike."""
    path = tmp_path / "one.bmp"
    for colour in ((1, 2, 3), (4, 5, 6)):
        Image.new("RGB", (8, 8), colour).save(path)
        os.utime(path, (1, 1))
        assert cached_open(path).getpixel((0, 0)) == colour


def error(open_image, source) -> tuple[type, str]:
    with pytest.raises(Exception) as caught:
        open_image(source).load()
    return caught.type, str(caught.value)


def test_errors_are_pils_own_and_come_where_pils_come(tmp_path: Path) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("no image")
    truncated = saved(tmp_path, "truncated.jpg")
    for path in (text, truncated, tmp_path / "missing.jpg"):
        for _ in range(2):
            assert error(cached_open, str(path)) == error(Image.open, str(path))
    assert cached_open(truncated).size == (200, 200), "opening a damaged file is no error; loading it is"
    with open(truncated, "rb") as ours:
        assert error(cached_open, ours) == error(Image.open, str(truncated))


def test_truncated_files_that_the_script_tolerates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    path = saved(tmp_path, "truncated.jpg")
    for _ in range(2):
        assert cached_open(path).tobytes() == Image.open(path).tobytes()


def test_what_is_no_plain_file_goes_to_pil(tmp_path: Path) -> None:
    path = saved(tmp_path, "RGB.png")
    expected = Image.open(path).tobytes()
    for _ in range(2):
        assert cached_open(io.BytesIO(path.read_bytes())).tobytes() == expected
        assert cached_open(path, "r").tobytes() == expected
        assert cached_open(path, formats=["PNG"]).tobytes() == expected
        with open(path, "rb") as file:
            file.seek(8)  # PIL goes back to the start by itself
            assert cached_open(file).tobytes() == expected
    assert image_cache.hits() == 0


def test_nothing_is_kept_beyond_the_limit(tmp_path: Path) -> None:
    image_cache.set_limit(2000)
    path = saved(tmp_path, "RGB.png")  # 81,405 bytes of pixels
    for _ in range(3):
        assert cached_open(path).tobytes() == Image.open(path).tobytes()
    assert (image_cache.hits(), image_cache.used_bytes()) == (0, 0)


def test_a_relative_name_is_found_again_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path, "RGB.jpg")
    expected = Image.open(path)
    expected.thumbnail((10, 10))
    monkeypatch.chdir(tmp_path)
    image = cached_open("RGB.jpg")
    monkeypatch.chdir("/")
    image.thumbnail((10, 10))
    assert image.tobytes() == expected.tobytes()


def kept_bytes(path: Path, limit: int, files: int, hold: str = "auto") -> int:
    image_cache.clear()
    image_cache.set_limit(limit, hold)
    file_pool.expect(files)
    for _ in range(2):
        same(cached_open(path), Image.open(path))
    assert image_cache.hits() == 1
    return image_cache.used_bytes()


def test_files_are_kept_where_their_pixels_would_not_fit(tmp_path: Path) -> None:
    path = saved(tmp_path, "RGB.jpg")
    encoded, decoded = path.stat().st_size, 201 * 135 * 4
    assert encoded < decoded / 4
    assert kept_bytes(path, 10 * decoded, files=9) > decoded
    assert kept_bytes(path, 10 * decoded, files=20) < encoded + 4200
    assert kept_bytes(path, 10 * decoded, files=20, hold="decoded") > decoded
    assert kept_bytes(path, 10 * decoded, files=9, hold="encoded") < encoded + 4200
    assert kept_bytes(path, 10 * decoded, files=2000) > decoded, "neither fits: a part of the pixels saves decoding"
    assert kept_bytes(path, 10 * decoded, files=0) > decoded, "nobody said how many"
    with pytest.raises(ValueError, match="decoded, encoded, auto"):
        image_cache.set_limit(100, "both")


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path: Path) -> None:
    image_cache.set_limit(8 << 20, "encoded")
    path = saved(tmp_path, "RGB.png")

    def opened_late(file):
        image = Image.open(file)
        picture("L").save(path)
        os.utime(path, ns=(1, 10**9))
        return image

    cached_open(path, original=opened_late)
    assert image_cache.used_bytes() == 0
    assert cached_open(path).mode == "L"


CHANGES = {
    "pixel access": lambda image: image.load().__setitem__((3, 4), image.getpixel((7, 8))),
    "putpixel": lambda image: image.putpixel((3, 4), image.getpixel((7, 8))),
    "paste": lambda image: image.paste(image.crop((0, 0, 9, 9)), (20, 20)),
    "draw": lambda image: ImageDraw.Draw(image).line((0, 0, 50, 50), width=3),
    "thumbnail": lambda image: image.thumbnail((40, 40)),
    "putdata": lambda image: image.putdata(list(image.crop((0, 0, 3, 3)).getdata())),
    "putalpha": lambda image: image.putalpha(9),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["RGB.jpg", "L.jpg", "RGBA.png"])
def test_whoever_changes_an_image_changes_that_one_only(tmp_path: Path, name: str, change) -> None:
    """Also where several look at the same pixels: the one opened, what it was converted to, and one opened later."""
    path = saved(tmp_path, name)
    for _ in range(2):
        ours, theirs = cached_open(path), Image.open(path)
        for pair in ((ours, theirs), (ours.convert(ours.mode), theirs.convert(theirs.mode)), (ours, theirs)):
            later = cached_open(path)
            for image in pair:
                change(image)
            assert pair[0].tobytes() == pair[1].tobytes() and pair[0].mode == pair[1].mode
            assert later.tobytes() == Image.open(path).tobytes()


def test_an_image_stays_as_it_is_while_others_are_opened(tmp_path: Path) -> None:
    """Memory is used again only once nobody looks at it."""
    paths = [saved(tmp_path, name) for name in ("RGB.jpg", "RGB.png", "RGBA.png")]
    plain = [Image.open(path).convert("RGB") for path in paths]
    for path in paths:
        cached_open(path).load()
    held = [cached_open(paths[number % 3]).convert("RGB") for number in range(30)]
    arrays = [numpy.asarray(cached_open(path)) for path in paths]
    for _ in range(30):
        cached_open(paths[0]).load()
    assert all(image == plain[number % 3] and plain[number % 3] == image for number, image in enumerate(held))
    assert held[0] != held[1] and held[0] != "something else"
    assert all((array == numpy.asarray(Image.open(path))).all() for array, path in zip(arrays, paths, strict=True))
    assert type(pickle.loads(pickle.dumps(held[0]))) is Image.Image and copy.deepcopy(held[0]) == plain[0]


@pytest.mark.parametrize("compressed", [gzip, bz2], ids=["gzip", "bz2"])
def test_a_file_that_is_unpacked_on_the_way_is_left_alone(tmp_path: Path, compressed) -> None:
    """It has the name and number of another file, whose bytes are no image."""
    packed = tmp_path / "a.png.packed"
    content = io.BytesIO()
    picture("RGB").save(content, format="PNG")
    with compressed.open(packed, "wb") as file:
        file.write(content.getvalue())
    for _ in range(3):
        with compressed.open(packed) as file:
            image = cached_open(file)
            assert (
                image.tobytes() == picture("RGB").tobytes() and image.format_description == "Portable network graphics"
            )


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP"])
def test_its_class_is_that_of_its_format(tmp_path, format: str) -> None:
    path = tmp_path / f"image.{format.lower()}"
    Image.new("RGB", (8, 6), (10, 20, 30)).save(path, format)
    plain = Image.open(path)
    for _ in range(2):
        image = cached_open(path)
        assert isinstance(image, type(plain)) and image.__class__ is type(plain)
        assert str(image).partition(" image ")[0] == str(plain).partition(" image ")[0]
        assert type(image.convert("L")) is Image.Image and type(image.copy()) is type(plain.copy())
        assert image.resize((4, 3)).tobytes() == plain.resize((4, 3)).tobytes()
