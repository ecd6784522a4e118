"""`ImageLoader` in a loop of one's own, and the real torchvision, where there is one, through the whole path."""

from __future__ import annotations

import gc
import random
from pathlib import Path

import numpy
import pytest
import torch
from deferred_photos import Cut, Photos, stand_in, write_photos
from PIL import Image
from torch.utils.data import DataLoader
from waiting import comes_true

from hotlap.parts import batched_transforms
from hotlap.parts.image_loader import ImageFolder, ImageLoader


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_transforms, "recognised", None)
    stand_in()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        write_photos(tmp_path / name)
    return tmp_path


def epochs(loader) -> list:
    torch.manual_seed(2)
    random.seed(2)
    numpy.random.seed(2)
    found = [(images.clone(), labels.tolist()) for _ in range(2) for images, labels in loader]
    return [*found, (torch.rand(1), None)]


def assert_same(found: list, expected: list, most: float = 0.0) -> None:
    assert [labels for _, labels in found] == [labels for _, labels in expected]
    for (images, _), (own, _) in zip(found, expected, strict=True):
        assert images.shape == own.shape and float((images - own).abs().mean()) <= most


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_gives_what_a_plain_loader_gives(known: None, folder: Path, workers: int) -> None:
    plain = ImageFolder(folder, Cut())
    assert plain.classes == ["cats", "dogs"] and len(plain) == 2 * 4 * 22
    options = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    expected = epochs(DataLoader(plain, 16, **options))
    loader = ImageLoader(folder, Cut(), 16, "cpu", workers, shuffle=True)
    assert len(loader) == 11
    assert_same(epochs(loader), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_images_come_as_the_model_wants_them(known: None, folder: Path, workers: int) -> None:
    kind = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    expected = epochs(ImageLoader(folder, Cut(), 16, "cpu", workers, shuffle=True))
    found = epochs(ImageLoader(folder, Cut(), 16, "cpu", workers, shuffle=True, **kind))
    for (images, labels), (plain, own) in zip(found[:-1], expected[:-1], strict=True):
        assert labels == own and torch.equal(images, plain.bfloat16())
        assert images.is_contiguous(memory_format=torch.channels_last) and plain.is_contiguous()


class Shaped(Photos):
    """Samples of another shape."""

    def __init__(self, folder, shape) -> None:
        super().__init__(folder)
        self.shape = shape

    def __getitem__(self, index: int):
        return self.shape(*super().__getitem__(index))


SHAPES = {"image alone": lambda image, label: image, "dict": lambda image, label: {"label": label, "image": image}}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_samples_of_any_shape(known: None, folder: Path, shape) -> None:
    dataset = Shaped(folder / "cats", shape)
    found, expected = (
        [one["image"] if isinstance(one, dict) else one for one in loader]
        for loader in (ImageLoader(dataset, None, 4, "cpu"), DataLoader(dataset, 4))
    )
    assert [one.shape for one in found] == [one.shape for one in expected] and len(found) == 6


def test_its_workers_end_with_it(known: None, folder: Path) -> None:
    """At once: what is left to the collector ends in the middle of something else, and makes that wait."""
    loader = ImageLoader(folder, Cut(), 16, "cpu", workers=1)
    assert list(loader)
    (worker,) = loader._loader._iterator._workers
    gc.disable()
    try:
        del loader
        assert comes_true(lambda: not worker.is_alive())
    finally:
        gc.enable()


def test_what_differs_is_said_and_not_used(known: None, folder: Path) -> None:
    expected = epochs(DataLoader(Photos(folder / "cats"), 8, shuffle=True))
    stand_in("flips")
    with pytest.warns(UserWarning, match="differ"):
        assert_same(epochs(ImageLoader(Photos(folder / "cats"), None, 8, "cpu", shuffle=True)), expected)


def test_errors_name_the_cause(known: None, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run in batches"):
        ImageLoader(folder, torch.nn.Identity(), device="cpu")
    with pytest.raises(ValueError, match="its transform already"):
        ImageLoader(Photos(folder / "cats"), Cut(), device="cpu")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no images"):
        ImageLoader(tmp_path / "empty", Cut(), device="cpu")


PIPELINES = {
    "trained": lambda t: [t.RandomResizedCrop(24), t.RandomHorizontalFlip(), t.ToTensor()],
    "evaluated": lambda t: [t.Resize(28), t.CenterCrop(24), t.ToTensor()],
    "with a head": lambda t: [t.Lambda(lambda image: image), t.RandomCrop(24, padding=4), t.ToTensor()],
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_torchvisions_own(folder: Path, pipeline: str, workers: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    steps = [*PIPELINES[pipeline](transforms), transforms.Normalize([0.5] * 3, [0.25] * 3)]
    dataset = ImageFolder(folder, transforms.Compose(steps))
    options = {"shuffle": True, "num_workers": workers, "persistent_workers": workers > 0}
    expected = epochs(DataLoader(dataset, 16, **options))
    assert_same(epochs(ImageLoader(dataset, None, 16, "cpu", workers, shuffle=True)), expected, most=1e-3)


def test_pixels_of_a_grey_image_and_of_one_in_colour() -> None:
    from hotlap.parts.device_jpeg import pixels_of

    array = numpy.arange(24, dtype=numpy.uint8).reshape(2, 4, 3)
    assert torch.equal(pixels_of(Image.fromarray(array)), torch.from_numpy(array).permute(2, 0, 1))
    assert pixels_of(Image.fromarray(array[..., 0])).shape == (1, 2, 4)
