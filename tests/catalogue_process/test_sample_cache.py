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
from hotlap.parts import file_pool, image_cache
from hotlap.source.fix import fix_source
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
    assert image_cache.hits() >= 24  # a forked copy reads some more, to learn whether workers may live on


def test_images_from_elsewhere_are_pils_own(apply, folder: Path) -> None:
    apply("sample-cache")
    with pytest.raises(FileNotFoundError):
        Image.open(folder / "missing.png")
    (folder / "text.png").write_text("no image")
    with pytest.raises(Image.UnidentifiedImageError):
        Image.open(folder / "text.png")
    assert image_cache.hits() == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_images_read_by_opencv(apply, folder: Path, workers: int) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs opencv-python-headless")
    own = cv2.imread

    class Arrays(Photos):
        def __getitem__(self, index: int):
            name = str(self.paths[index])
            image = cv2.imread(name) if index % 2 else cv2.imread(name, cv2.IMREAD_GRAYSCALE)[:, :, None].repeat(3, 2)
            return index, torch.from_numpy(image).flatten()

    expected = epoch(DataLoader(Arrays(folder), 4))
    patch = apply("sample-cache")
    loader = DataLoader(Arrays(folder), 4, shuffle=True, num_workers=workers)
    assert [epoch(loader) for _ in range(3)] == [expected] * 3
    assert image_cache.hits() == 24 and cv2.imread is not own
    assert cv2.imread(filename=str(folder / "03.png")).shape == (5, 6, 3)
    patch.undo()
    assert cv2.imread is own and epoch(DataLoader(Arrays(folder), 4)) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("setting", "is_encoded"), [({"bytes": 40_000}, True), ({"hold": "decoded"}, False), ({}, False)]
)
def test_files_are_held_where_pixels_would_not_fit(
    apply, tmp_path: Path, workers: int, setting: dict, is_encoded: bool
) -> None:
    for index in range(12):
        Image.new("RGB", (60, 50), (index, 2 * index, 3 * index)).save(tmp_path / f"{index:02d}.png")  # 9,000 bytes
    expected = epoch(DataLoader(Photos(tmp_path), 4))
    apply("sample-cache", setting)
    loader = DataLoader(Photos(tmp_path), 4, shuffle=True, num_workers=workers)
    assert [epoch(loader) for _ in range(3)] == [expected] * 3
    assert image_cache.hits() == 24
    assert (image_cache.used_bytes() < 9000) is is_encoded


READ = """
import cv2
from torch.utils.data import Dataset

class Photos(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return cv2.imread(self.paths[index]ARGS)
"""


@pytest.mark.parametrize(("args", "can_fix"), [("", True), (", 0", True), (", flags=0", False), (", *more", False)])
def test_opencv_in_source(args: str, can_fix: bool) -> None:
    source = Source(READ.replace("ARGS", args))
    technique = find("sample-cache")
    (site,) = technique.spot(source)
    assert site.fix == ("unsafe" if can_fix else None)
    if can_fix:
        new = fix_source(source, [(technique, {"hold": "encoded"})], unsafe=True)
        assert "import cached_imread, set_limit\nset_limit(None, 'encoded')\n" in new
        assert f"return cached_imread(self.paths[index]{args})" in new
        assert not list(technique.spot(Source(new)))


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


def test_a_container_may_have_less_memory_than_its_machine(apply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.observe.memory.free_memory", lambda: 40 << 20)
    apply("sample-cache", {})
    assert file_pool._pool.limit_bytes == 10 << 20
