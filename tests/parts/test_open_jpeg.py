"""Odd files behave as under Pillow: the same pixels, or the same error in the same place."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

simplejpeg = pytest.importorskip("simplejpeg")

from hotlap.parts import fast_jpeg  # noqa: E402
from hotlap.parts.fast_jpeg import decode_batch, open_jpeg  # noqa: E402


class Judge:
    def __init__(self, limit: float, first: int = 16) -> None:
        self.limit, self.first, self.seen, self.failed = limit, first, [], False

    @property
    def is_open(self) -> bool:
        return len(self.seen) < self.first and not self.failed

    def add(self, difference: float) -> None:
        self.seen.append(difference)
        self.failed = self.failed or difference > self.limit


def picture(width: int = 97, height: int = 71, mode: str = "RGB") -> Image.Image:
    rng, cell = np.random.default_rng(width), 20 if width >= 300 else 4
    small = Image.fromarray(rng.integers(0, 256, (height // cell + 1, width // cell + 1, 3), dtype=np.uint8))
    return small.resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def saved(image: Image.Image, format: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved(picture(), exif=exif)


def spoilt(at: float) -> bytes:
    data = bytearray(saved(picture()))
    data[int(at * len(data)) : int(at * len(data)) + 20] = bytes(range(1, 21))
    return bytes(data)


WHOLE = saved(picture())
FILES = {
    "plain": WHOLE,
    "colours as they are": saved(picture(), subsampling=0),
    "colours halved": saved(picture(), subsampling=1),
    "stored as RGB": saved(picture(), keep_rgb=True),
    "progressive": saved(picture(), progressive=True),
    "with restarts": saved(picture(), restart_marker_blocks=2),
    "grayscale": saved(picture(mode="L")),
    "CMYK": saved(picture(mode="CMYK")),
    "turned by EXIF": rotated(),
    "1 x 1": saved(picture(1, 1)),
    "17 x 3": saved(picture(17, 3)),
    "a tail": WHOLE + b"tail" * 50,
    "two in one": WHOLE + saved(picture(31, 29)),
    "PNG of 16 bits": saved(Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 99), "PNG"),
    "palette": saved(picture().quantize(), "PNG"),
    "nothing": b"",
    "text": b"no image at all",
    "only a start": WHOLE[:3],
    "no pixels": WHOLE[: WHOLE.index(b"\xff\xda")],
    "spoilt head": spoilt(0.02),
    "spoilt tables": spoilt(0.1),
    "spoilt pixels": spoilt(0.8),
    **{f"cut at {at}": WHOLE[: int(at * len(WHOLE))] for at in (0.3, 0.6, 0.9, 0.99)},
    "cut by two": WHOLE[:-2],
    "cut by one": WHOLE[:-1],
}


def outcome(file: Path, opened, use) -> list[object]:
    """What a script sees, step by step, up to the first error."""
    seen: list[object] = []
    try:
        image = opened(file)
        seen.append((image.size, image.mode, image.format, image.filename, image.info, dict(image.getexif())))
        used = use(image)
        seen.append((used.size, used.mode, used.info, used.tobytes(), image.tobytes(), image.fp, image.readonly))
    except Exception as error:
        seen.append((type(error), str(error).replace(str(file), "")))
    return seen


USES = {
    "load": lambda image: (image.load(), image)[1],
    "convert": lambda image: image.convert("RGB"),
    "to gray": lambda image: image.convert("L"),
    "crop": lambda image: image.crop((3, 2, 15, 11)),
    "beyond": lambda image: image.crop((-3, -2, 15, 11)),
    "larger": lambda image: image.resize((120, 100)),
    "nearest": lambda image: image.resize((9, 9), Image.Resampling.NEAREST),
    "thumbnail": lambda image: (image.thumbnail((30, 30)), image)[1],
    "turned": lambda image: image.transpose(Image.Transpose.ROTATE_90),
    "copy": copy.copy,
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_as_under_pillow(name: str, tolerant: bool, scaled: bool, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", tolerant)
    path = tmp_path / "photo.jpg"
    path.write_bytes(FILES[name])
    for use in USES:
        expected = outcome(path, Image.open, USES[use])
        assert outcome(path, lambda file: open_jpeg(file, scaled=scaled), USES[use]) == expected, use


def test_it_is_really_decoded_here(monkeypatch) -> None:
    """Or everything above would hold of Pillow alone."""
    calls = []
    monkeypatch.setattr(fast_jpeg, "decode", lambda *args: calls.append(args) or 1 / 0)
    for name in ("plain", "grayscale", "progressive"):
        open_jpeg(io.BytesIO(FILES[name])).load()
    assert len(calls) == 3
    for name in ("CMYK", "PNG of 16 bits", "palette"):
        open_jpeg(io.BytesIO(FILES[name])).load()
    assert len(calls) == 3


@pytest.mark.parametrize("scaled", [False, True])
def test_nothing_of_ours_is_left_behind(scaled: bool) -> None:
    theirs = Image.open(io.BytesIO(WHOLE))
    ours = [open_jpeg(io.BytesIO(WHOLE), scaled=scaled) for _ in range(3)]
    assert b"hotlap" not in pickle.dumps(ours[0]) and pickle.loads(pickle.dumps(ours[0])) == theirs
    assert ours[1] == theirs and theirs == ours[2] and copy.deepcopy(ours[2]) == theirs
    assert {type(one) for one in ours} == {type(theirs)}
    converted = open_jpeg(io.BytesIO(WHOLE), scaled=scaled).convert("RGB")
    assert b"hotlap" not in pickle.dumps(converted)
    assert converted == theirs.convert("RGB") and type(converted) is Image.Image


def test_a_gray_image_can_be_written_into() -> None:
    image = open_jpeg(io.BytesIO(FILES["grayscale"]))
    image.putpixel((2, 3), 7)
    image.load()[4, 5] = 9
    assert (image.getpixel((2, 3)), image.getpixel((4, 5))) == (7, 9)


def crop_and_resize(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image.convert("RGB").crop((11, 7, 491, 367)).resize(size, Image.Resampling.BILINEAR)


@pytest.mark.parametrize(("size", "scale"), [((300, 200), 1), ((240, 100), 2), ((100, 80), 4), ((50, 40), 8)])
def test_decoded_no_larger_than_needed(size: tuple[int, int], scale: int, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(saved(picture(500, 375), quality=90))
    expected = np.asarray(crop_and_resize(Image.open(path), size)).astype(int)
    sizes, decode = [], fast_jpeg.decode
    monkeypatch.setattr(fast_jpeg, "decode", lambda *args: sizes.append(args[2]) or decode(*args))
    with path.open("rb") as file:
        image = open_jpeg(file, scaled=True).convert("RGB")
    found = crop_and_resize(image, size)
    assert sizes == ([] if scale == 1 else [(-(-500 // scale), -(-375 // scale))])
    assert type(found) is Image.Image and found.size == size
    apart = np.abs(np.asarray(found).astype(int) - expected)
    assert apart.mean() < 3 and (scale > 1 or apart.max() == 0)


def test_many_crops_share_one_decoding(monkeypatch) -> None:
    calls, decode = [], fast_jpeg.decode
    monkeypatch.setattr(fast_jpeg, "decode", lambda *args: calls.append(args) or decode(*args))
    image = open_jpeg(io.BytesIO(saved(picture(300, 200))), scaled=True)
    for left in range(5):
        image.crop((left, 0, left + 200, 180)).resize((50, 45))
    assert len(calls) == 1
    parts = [image.crop((left, 0, left + 200, 180)) for left in range(2)]
    assert parts[0]._file.at(1) is parts[1]._file.at(1)


@pytest.mark.parametrize("scaled", [False, True])
def test_the_first_are_judged_and_a_wrong_one_ends_it(scaled: bool, monkeypatch) -> None:
    data, decode = saved(picture(500, 375)), fast_jpeg.decode
    expected = crop_and_resize(Image.open(io.BytesIO(data)), (100, 80))

    def made(judge: Judge) -> Image.Image:
        return crop_and_resize(open_jpeg(io.BytesIO(data), scaled=scaled, judge=judge), (100, 80))

    judge = Judge(limit=3.0 if scaled else 0.0, first=2)
    for _ in range(3):
        made(judge)
    assert len(judge.seen) == 2 and not judge.failed
    monkeypatch.setattr(fast_jpeg, "decode", lambda *args: 255 - decode(*args))
    judge = Judge(limit=3.0 if scaled else 0.0)
    assert [made(judge) == expected for _ in range(3)] == [True] * 3
    assert judge.failed and len(judge.seen) == 1
    assert made(Judge(limit=3.0, first=0)) != expected, "unjudged, the fault would have gone through"


def test_a_batch_with_odd_files_in_it() -> None:
    names = ("plain", "grayscale", "CMYK", "PNG of 16 bits", "1 x 1")
    found = decode_batch([FILES[name] for name in names])
    for name, tensor in zip(names, found, strict=True):
        expected = np.asarray(Image.open(io.BytesIO(FILES[name])).convert("RGB"))
        assert np.array_equal(tensor.permute(1, 2, 0).numpy(), expected), name
    assert decode_batch([]) == []
    with pytest.raises(Image.UnidentifiedImageError):
        decode_batch([WHOLE, b"text"])
