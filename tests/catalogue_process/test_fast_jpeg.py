"""Under a real loader: the same samples, the figure in the record, and a decoder that errs is withdrawn everywhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("simplejpeg")

from hotlap.catalogue import find
from hotlap.observe.run import Run
from hotlap.observe.scrutiny_facts import FeedFacts, Making
from hotlap.parts import fast_jpeg, image_cache
from hotlap.technique import Choice

BEFORE = Path(__file__).resolve().parents[1] / "catalogue" / "fast_jpeg" / "before.py"


class Photos(Dataset):
    def __init__(self, folder: Path, size: int = 0, by_keyword: bool = False) -> None:
        self.paths, self.size, self.by_keyword = sorted(folder.glob("*.jpg")), size, by_keyword

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        image = Image.open(fp=self.paths[index]) if self.by_keyword else Image.open(self.paths[index])
        image = image.convert("RGB")
        if self.size:
            image = image.crop((0, 0, 80, 60)).resize((self.size, self.size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(image)).int()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for index in range(24):
        small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
        small.resize((90, 70), Image.Resampling.BICUBIC).save(tmp_path / f"{index:02d}.jpg", quality=90)
    return tmp_path


def epoch(folder: Path, workers: int = 0, **options) -> torch.Tensor:
    return torch.cat(list(DataLoader(Photos(folder, **options), 4, num_workers=workers)))


def compared(patch) -> tuple[int, float, bool]:
    (one,) = patch.joints.comparisons
    return one.facts.count, one.facts.difference, one.failed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("by_keyword", [False, True])
def test_the_same_samples(apply, folder: Path, workers: int, by_keyword: bool) -> None:
    expected = epoch(folder)
    patch = apply("fast-jpeg")
    assert torch.equal(epoch(folder, workers, by_keyword=by_keyword), expected)
    count, difference, failed = compared(patch)
    assert (difference, failed) == (0.0, False)
    assert count == 0 if by_keyword else 16 <= count <= 18  # workers may each begin one more


@pytest.mark.parametrize("workers", [0, 2])
def test_scaled_is_near(apply, folder: Path, workers: int) -> None:
    expected = epoch(folder, size=16)
    patch = apply("fast-jpeg", {"scaled": True})
    epoch(folder, workers, size=16)
    count, difference, failed = compared(patch)
    assert count >= 16 and 0 < difference < 3 and not failed
    found = epoch(folder, workers, size=16)  # judged no more
    assert 0 < (found - expected).abs().float().mean() < 3


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_decoder_that_errs_is_withdrawn(apply, folder: Path, workers: int, scaled: bool, monkeypatch) -> None:
    decode = fast_jpeg.decode
    monkeypatch.setattr(fast_jpeg, "decode", lambda *args: 255 - decode(*args))
    expected = epoch(folder, size=16)
    patch = apply("fast-jpeg", {"scaled": scaled})
    for _ in range(2):
        assert torch.equal(epoch(folder, workers, size=16), expected)
    assert compared(patch)[2]


@pytest.mark.parametrize("scaled", [False, True])
def test_a_fault_that_another_process_finds_meanwhile(apply, folder: Path, scaled: bool, monkeypatch) -> None:
    """Between the decoding of an image and the question whether it has to be compared."""
    expected, decode = epoch(folder, size=16), fast_jpeg.decode

    def errs(*args):
        (one,) = patch.joints.comparisons
        one.add(np.inf)
        return 255 - decode(*args)

    monkeypatch.setattr(fast_jpeg, "decode", errs)
    patch = apply("fast-jpeg", {"scaled": scaled})
    assert torch.equal(epoch(folder, size=16), expected)


def test_a_cache_keeps_what_was_decoded(apply, folder: Path) -> None:
    expected = epoch(folder)
    for name in ("sample-cache", "fast-jpeg"):
        patch = apply(name)
    assert all(torch.equal(epoch(folder), expected) for _ in range(2))
    assert image_cache.hits() == 24 and compared(patch) == (16, 0.0, False)


def test_the_figure_is_in_the_record(run_script) -> None:
    trial = run_script(BEFORE, [Choice(find("fast-jpeg"), {"scaled": False})])
    (one,) = trial.run.compared
    assert one.what == "fast-jpeg (scaled False): largest difference of decoded images, in levels"
    assert (one.count, one.difference, one.limit) == (16, 0.0, 0.0)


def test_no_more_than_decoding_takes() -> None:
    technique = find("fast-jpeg")
    waiting = {"images_opened": 9, "step_parts": [[1.0] + [0.0] * 6] * 20}
    run = Run(torch="2.11", device="cpu", **waiting)
    whole = technique.settings(run)[0].most
    feed = FeedFacts(makings=[Making("decode", 1.0, "", 0), Making("Normalize", 3.0, "", 0)])
    assert technique.settings(Run(torch="2.11", device="cpu", feed=feed, **waiting))[0].most == pytest.approx(whole / 4)
    assert technique.settings(Run(torch="2.11", device="cpu")).reason.startswith("no image")


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch) -> None:
    from hotlap.catalogue import fast_jpeg as module
    from hotlap.measure import candidates
    from hotlap.observe.attach import Attached

    monkeypatch.setattr(module, "find_spec", lambda name: None)
    attached = Attached([Choice(find("fast-jpeg"), {})])
    attached.detach()
    assert len(attached.withdrawn) == 1 and "pip install hotlap[jpeg]" in attached.withdrawn[0]
    monkeypatch.setattr(candidates.importlib.util, "find_spec", lambda name: None)
    skipped = candidates.consider(find("fast-jpeg"), Run(torch="2.11", device="cpu"))
    assert skipped.reason == "needs the package simplejpeg: pip install hotlap[jpeg]"
