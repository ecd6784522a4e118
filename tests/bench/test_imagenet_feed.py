"""bench/imagenet_feed.py: loaders take turns within the time, and one that cannot run is listed with the reason."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

pytest.importorskip("PIL")

import feeders
import imagenet_feed as bench
from imagenet_feed import Feeder

GIVEN = argparse.Namespace(turns=3, warmup=0.0, seconds=0.01)


@pytest.fixture
def wanted(tmp_path: Path) -> feeders.Wanted:
    bench.make_photos(tmp_path, 25, 2)
    return feeders.Wanted(tmp_path, 4, "cpu", 2)


def endless(wanted: feeders.Wanted) -> feeders.Batches:
    while True:
        yield torch.zeros(4, 3, 8, 8), torch.zeros(4)


def test_photos_are_links_to_a_few_in_folders_of_classes(wanted: feeders.Wanted) -> None:
    files = sorted(wanted.folder.rglob("*.jpg"))
    assert len(files) == 25 and len({file.stat().st_ino for file in files}) == 2
    photos = feeders.Photos(wanted.folder, feeders.rgb)
    assert len(photos) == 25 and photos[0][0].size == (500, 375)
    assert sorted({photos[index][1] for index in range(25)}) == list(range(bench.CLASSES))


@pytest.mark.parametrize(("cores", "numbers"), [(1, [1]), (2, [1, 2]), (16, [4, 8, 12, 16])])
def test_several_numbers_of_workers_are_tried(cores: int, numbers: list[int]) -> None:
    assert bench.worker_numbers(cores) == numbers


def test_batches_are_normalised_crops(wanted: feeders.Wanted) -> None:
    batches = feeders.plain(wanted, 1)
    images, labels = next(batches)
    batches.close()
    assert images.shape == (4, 3, 224, 224) and images.dtype == torch.float32 and labels.shape == (4,)
    white = feeders.cropped(feeders.Image.new("RGB", (50, 40), (255, 255, 255)))
    for channel, mean, std in zip(white, feeders.MEAN, feeders.STD, strict=True):
        assert torch.allclose(channel, torch.tensor((1 - mean) / std), atol=1e-5)


def test_one_that_cannot_run_is_out_and_the_others_go_on(wanted: feeders.Wanted) -> None:
    asked = []

    def absent(wanted: feeders.Wanted) -> feeders.Batches:
        asked.append(1)
        feeders.needed("a_package_that_nobody_has")
        yield from endless(wanted)

    def broken(wanted: feeders.Wanted) -> feeders.Batches:
        yield from ()
        raise ValueError("no such\nfile")

    three = [Feeder("DataLoader", endless), Feeder("absent", absent), Feeder("broken", broken)]
    bench.take_turns(three, wanted, GIVEN, math.inf)
    assert len(three[0].rates) == 3 and len(asked) == 1
    assert (
        "a_package_that_nobody_has is not installed" in three[1].missing and three[2].missing == "ValueError: no such"
    )
    assert [row["feeder"] for row in bench.rows(three)] == ["DataLoader"]


def test_what_a_turn_started_is_ended(wanted: feeders.Wanted) -> None:
    ended = []

    def tidy(wanted: feeders.Wanted) -> feeders.Batches:
        try:
            yield from endless(wanted)
        finally:
            ended.append(1)

    kept = []

    def held(wanted: feeders.Wanted) -> feeders.Batches:
        kept.append(tidy(wanted))
        return kept[-1]

    bench.take_turns([Feeder("tidy", held)], wanted, GIVEN, math.inf)
    assert len(kept) == len(ended) == 3


def test_no_turn_is_begun_that_would_end_too_late(wanted: feeders.Wanted) -> None:
    def begun(wanted: feeders.Wanted) -> feeders.Batches:
        raise feeders.Missing("it was begun")

    late = Feeder("late", begun)
    bench.take_turns([late], wanted, argparse.Namespace(turns=3, warmup=60.0, seconds=60.0), time.monotonic() + 30)
    assert not late.rates and not late.missing


def test_the_best_plain_loader_is_what_others_are_held_against() -> None:
    found = bench.rows(
        [
            Feeder("DataLoader, 4 workers", endless, [90.0, 110.0, 100.0]),
            Feeder("DataLoader, 8 workers", endless, [190.0, 210.0, 200.0]),
            Feeder("by hand", endless, [800.0]),
            Feeder("gone", endless, missing="not installed"),
        ]
    )
    assert [(row["feeder"], row["beside_plain"]) for row in found] == [
        ("by hand", 4.0),
        ("DataLoader, 8 workers", 1.0),
        ("DataLoader, 4 workers", 0.5),
    ]
    assert found[1]["low"] == 190.0 and found[1]["high"] == 210.0 and found[1]["turns"] == [190.0, 210.0, 200.0]
    assert bench.rows([Feeder("by hand", endless, [800.0])])[0]["beside_plain"] is None
