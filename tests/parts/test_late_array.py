"""`Image.fromarray` that waits: whatever is done with such an image, it is the one Pillow would have made."""

from __future__ import annotations

import copy
import pickle

import numpy
import pytest
import torch

Image = pytest.importorskip("PIL.Image")

from hotlap.parts.drawn_transforms import is_drawn  # noqa: E402
from hotlap.parts.late_array import OfArray, from_array_late  # noqa: E402
from hotlap.parts.undone_images import Undone, UndoneBatch, _kept, left_undone  # noqa: E402

ARRAY = numpy.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=numpy.uint8)


def late(array: numpy.ndarray = ARRAY):
    made = from_array_late(Image.fromarray, array)
    assert type(made) is OfArray
    return made


@pytest.mark.parametrize(
    "use",
    [
        numpy.asarray,
        lambda image: image.tobytes(),
        lambda image: image.getpixel((3, 2)),
        lambda image: image.resize((3, 4)).tobytes(),
        lambda image: image.convert("L").tobytes(),
        lambda image: image.crop((1, 1, 4, 4)).tobytes(),
        lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).tobytes(),
        lambda image: image.copy().tobytes(),
        lambda image: copy.deepcopy(image).tobytes(),
        lambda image: pickle.loads(pickle.dumps(image)).tobytes(),
        lambda image: (image.size, image.mode, image.width, image.height, image.info, image.getbands()),
        lambda image: image == Image.fromarray(ARRAY),
        lambda image: (image.putpixel((0, 0), (1, 2, 3)), image.tobytes())[1],
        lambda image: image.getbbox(),
        lambda image: [band.tobytes() for band in image.split()],
        lambda image: image.point(lambda level: 255 - level).tobytes(),
    ],
)
def test_whatever_is_done_with_it(use) -> None:
    theirs, ours = use(Image.fromarray(ARRAY)), use(late())
    assert numpy.array_equal(theirs, ours) if isinstance(theirs, numpy.ndarray) else theirs == ours


def test_what_was_pickled_needs_nothing_of_ours() -> None:
    assert b"hotlap" not in pickle.dumps(late())


def test_what_is_written_into_the_array_afterwards_is_not_in_it() -> None:
    array = ARRAY.copy()
    image = late(array)
    array[:] = 0
    assert image.tobytes() == ARRAY.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        ARRAY[..., 0],
        ARRAY.astype(numpy.float32)[..., 0],
        numpy.zeros((4, 4, 4), numpy.uint8),
        numpy.zeros((0, 4, 3), numpy.uint8),
        numpy.ma.masked_array(ARRAY),
    ],
    ids=["grey", "floats", "with alpha", "empty", "masked"],
)
def test_anything_else_is_pillows(array) -> None:
    try:
        theirs = Image.fromarray(array)
    except Exception as error:
        with pytest.raises(type(error)):
            from_array_late(Image.fromarray, array)
    else:
        ours = from_array_late(Image.fromarray, array)
        assert type(ours) is Image.Image and ours == theirs


def test_a_mode_of_the_scripts_own_is_pillows() -> None:
    assert type(from_array_late(Image.fromarray, ARRAY, "RGB")) is Image.Image


def test_views_and_other_orders_in_memory() -> None:
    for array in (ARRAY[::-1, ::2], numpy.asfortranarray(ARRAY), ARRAY[..., ::-1]):
        kept, width, height = _kept(late(array))
        assert numpy.array_equal(kept, array) and (height, width) == array.shape[:2]
        assert late(array).tobytes() == Image.fromarray(numpy.ascontiguousarray(array)).tobytes()


def test_batches_of_arrays_lie_as_batches_of_images_do() -> None:
    """Of one shape, of several, and together with tensors."""

    def packed(images: list) -> UndoneBatch:
        return UndoneBatch([Undone(0, _kept(image)[0], ((1.0,),)) for image in images])

    for images in ([ARRAY, ARRAY[::-1]], [ARRAY, ARRAY[:4]]):
        ours, theirs = packed([late(one) for one in images]), packed([Image.fromarray(one) for one in images])
        mixed = packed([late(images[0]), Image.fromarray(images[1])])
        for other in (theirs, mixed):
            assert torch.equal(ours.pixels, other.pixels) and (ours.shapes == other.shapes).all()


def test_it_stands_there_only_as_long_as_samples_are_left_undone() -> None:
    before = Image.fromarray
    with left_undone([]):
        assert type(Image.fromarray(ARRAY)) is OfArray
    assert Image.fromarray is before


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1 / 3])
def test_chances_are_compared_as_torch_compares_them(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the number drawn lies right beside the chance."""
    near = numpy.float32(chance)
    below, above = numpy.nextafter(near, numpy.float32(-1)), numpy.nextafter(near, numpy.float32(2))
    for dtype in (torch.float32, torch.float64):
        for number in (0.0, float(below), float(near), float(above), chance, 0.99):
            drawn = torch.tensor([number], dtype=dtype)
            monkeypatch.setattr(torch, "rand", lambda size, drawn=drawn: drawn)
            assert is_drawn(chance) is bool(drawn < chance)
