"""The cache under a real loader: every sample, fresh augmentation, one copy for all workers, no stale file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from hotlap.catalogue import find
from hotlap.parts import image_cache
from hotlap.source.module import Source


class Photos(Dataset):
    def __init__(self, folder: Path, augment: bool = False, by_keyword: bool = False) -> None:
        self.paths = sorted(folder.glob("*.png"))
        self.augment, self.by_keyword = augment, by_keyword

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        image = Image.open(fp=self.paths[index]) if self.by_keyword else Image.open(self.paths[index])
        image = image.convert("RGB")
        if self.augment:
            image.putpixel((0, 0), (random.randrange(256), random.randrange(256), random.randrange(256)))
        return index, torch.tensor(list(image.tobytes()), dtype=torch.int64)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index in range(12):
        Image.new("RGB", (6, 5), (index, 2 * index, 3 * index)).save(tmp_path / f"{index:02d}.png")
    return tmp_path


def epoch(loader: DataLoader) -> dict[int, tuple[int, ...]]:
    batches = list(loader)
    indices = [int(i) for batch in batches for i in batch[0]]
    assert sorted(indices) == list(range(12)), "every index exactly once"
    rows = [tuple(row.tolist()) for batch in batches for row in batch[1]]
    return dict(zip(indices, rows, strict=True))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_keyword", [False, True])
def test_the_same_samples(apply, folder: Path, workers: int, by_keyword: bool) -> None:
    expected = epoch(DataLoader(Photos(folder), 4))
    patch = apply("sample-cache")
    loader = DataLoader(Photos(folder, by_keyword=by_keyword), 4, shuffle=True, num_workers=workers)
    assert [epoch(loader) for _ in range(3)] == [expected] * 3
    if not by_keyword:
        assert image_cache.hits() == 24, "decoded once, by whichever worker came first, and then shared by all"
        assert image_cache.used_bytes() > 12 * 6 * 5 * 3
    patch.undo()
    assert (image_cache.hits(), image_cache.used_bytes()) == (0, 0)
    assert epoch(DataLoader(Photos(folder), 4)) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_augmentation_goes_on_drawing(apply, folder: Path, workers: int) -> None:
    apply("sample-cache")
    loader = DataLoader(Photos(folder, augment=True), 4, num_workers=workers)
    first, second = epoch(loader), epoch(loader)
    assert image_cache.hits() == 12
    assert all(first[index][:3] != second[index][:3] for index in first)
    assert all(first[index][3:] == second[index][3:] for index in first)


def test_a_changed_file_is_seen(apply, folder: Path) -> None:
    apply("sample-cache")
    loader = DataLoader(Photos(folder), 4)
    first = epoch(loader)
    path = folder / "03.png"
    Image.new("RGB", (6, 5), (99, 98, 97)).save(path)
    os.utime(path, ns=(1, os.stat(path).st_mtime_ns + 10**6))
    second = epoch(loader)
    assert second[3][:3] == (99, 98, 97)
    assert {index for index in first if first[index] != second[index]} == {3}


def test_a_limit_in_bytes(apply, folder: Path) -> None:
    apply("sample-cache", {"bytes": 700})
    loader = DataLoader(Photos(folder), 4)
    first, second = epoch(loader), epoch(loader)
    assert first == second
    assert image_cache.used_bytes() <= 700 and 0 < image_cache.hits() < 12


def test_together_with_workers(apply, folder: Path) -> None:
    apply("sample-cache")
    apply("loader-workers", {"num_workers": 2})
    expected = epoch(DataLoader(Photos(folder), 2))
    loader = DataLoader(Photos(folder), 2)
    assert loader.num_workers == 2
    assert [epoch(loader) for _ in range(2)] == [expected] * 2
    assert image_cache.hits() == 24


def test_images_from_elsewhere_are_pils_own(apply, folder: Path) -> None:
    apply("sample-cache")
    with pytest.raises(FileNotFoundError):
        Image.open(folder / "missing.png")
    (folder / "text.png").write_text("no image")
    with pytest.raises(Image.UnidentifiedImageError):
        Image.open(folder / "text.png")
    assert image_cache.hits() == 0


HELPED = """
from PIL import Image
from torch.utils.data import Dataset

def load(path):
    return Image.open(path)

class Photos(Dataset):
    def __init__(self, paths):
        self.paths = paths
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return CALL
"""


@pytest.mark.parametrize(("call", "lines"), [("load(self.paths[index])", [6]), ("self.paths[index]", [])])
def test_a_function_that_the_data_set_calls_is_looked_into(call: str, lines: list[int]) -> None:
    sites = find("sample-cache").spot(Source(HELPED.replace("CALL", call)))
    assert [site.line for site in sites] == lines
