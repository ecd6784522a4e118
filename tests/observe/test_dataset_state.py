"""What a script changes in its data set between two epochs is seen; what it leaves alone is not."""

from __future__ import annotations

import functools
import multiprocessing
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from hotlap.observe.dataset_state import dataset_state

scale = 1.0
depth, options = 1, types.SimpleNamespace(crop=1)
labels: Any = None  # as a script may call what a data set calls its own


class Config:
    level = 0


def deep(x: float) -> float:
    return x * depth


class Slotted:
    __slots__ = ("factor",)

    def __init__(self) -> None:
        self.factor = 1.0

    def times(self, x: float) -> float:
        return x * self.factor


class Samples:
    size = 32

    def __init__(self) -> None:
        self.transform: Any = scaled(1.0)
        self.labels = numpy.zeros(100_000, numpy.int64)
        self.samples = [(f"{number}.jpg", 0) for number in range(1000)]
        self.table = torch.zeros(8)
        self.shared = multiprocessing.Value("d", 1.0)
        self.slotted = Slotted()
        self.names = dict.fromkeys(range(1000), 0)
        self.boxes = [[number, 0] for number in range(1000)]
        self.array = multiprocessing.Array("i", 8)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.table[index]) * scale, self.labels[index], self.cropped(index)

    def cropped(self, index: int) -> Any:
        return options.crop + Config.level + deep(index) + int(os.environ.get("HOTLAP_TEST_LEVEL", "0"))


class Around:
    def __init__(self) -> None:
        self.dataset = Samples()


def scaled(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * factor


def larger(samples: Samples) -> None:
    global scale
    scale += 1


def deeper(samples: Samples) -> None:
    global depth
    depth += 1


CHANGES: dict[str, Callable[[Samples], Any]] = {
    "another function": lambda samples: setattr(samples, "transform", lambda x: x + 1),
    "the same function round something else": lambda samples: setattr(samples, "transform", scaled(2.0)),
    "partial": lambda samples: setattr(samples, "transform", functools.partial(pow, exp=2)),
    "a method of another object": lambda samples: setattr(samples, "transform", Slotted().times),
    "one label of many": lambda samples: samples.labels.__setitem__(77_777, 1),
    "one item of many": lambda samples: samples.samples.__setitem__(500, ("500.jpg", 1)),
    "a tensor": lambda samples: samples.table.add_(1),
    "a value shared with workers": lambda samples: setattr(samples.shared, "value", 2.0),
    "an object without a dict": lambda samples: setattr(samples.slotted, "factor", 2.0),
    "an attribute of its class": lambda samples: setattr(Samples, "size", Samples.size + 1),
    "a global": larger,
    "a global of a function that is called": deeper,
    "an attribute of a global": lambda samples: setattr(options, "crop", options.crop + 1),
    "an attribute of another class": lambda samples: setattr(Config, "level", Config.level + 1),
    "the environment": lambda samples: os.environ.__setitem__("HOTLAP_TEST_LEVEL", str(options.crop + depth)),
    "one entry of many": lambda samples: samples.names.__setitem__(500, 1),
    "an item of one item": lambda samples: samples.boxes[500].__setitem__(1, 7),
    "an array shared with workers": lambda samples: samples.array.__setitem__(5, 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_seen(change: Callable[[Samples], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLAP_TEST_LEVEL", "")
    around = Around()
    before = dataset_state(around), dataset_state(around.dataset)
    assert (dataset_state(around), dataset_state(around.dataset)) == before
    change(around.dataset)
    assert dataset_state(around) != before[0]
    assert dataset_state(around.dataset) != before[1]


def test_tensors_that_count_no_changes() -> None:
    samples = Samples()
    with torch.inference_mode():
        samples.table = torch.zeros(8)
    assert dataset_state(samples) == dataset_state(samples)


def test_an_array_on_disk_is_hardly_read(tmp_path: Path) -> None:
    """Every page that is looked at would be fetched, at the start of every epoch."""
    numpy.zeros(1 << 22, numpy.uint8).tofile(tmp_path / "data.bin")
    samples = Samples()
    samples.labels = numpy.asarray(numpy.memmap(tmp_path / "data.bin", numpy.uint8, "r+"))
    before = dataset_state(samples)
    samples.labels[8 : 1 << 14] = 1  # between two that are looked at
    assert dataset_state(samples) == before
    samples.labels[:] = 1
    assert dataset_state(samples) != before


def test_what_torch_makes_of_numbers_is_part_of_it() -> None:
    samples = Samples()
    before, own = dataset_state(samples), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert dataset_state(samples) != before
    finally:
        torch.set_default_dtype(own)
    assert dataset_state(samples) == before


def test_what_it_does_not_read_is_no_change() -> None:
    global labels
    samples = Samples()
    before = dataset_state(samples)
    labels, samples.transform = 3, scaled(1.0)  # a name of the script's own; the same function, made again
    samples[0]
    assert dataset_state(samples) == before


def test_paths_are_what_they_name() -> None:
    """They fill in attributes of their own when they are asked for a part of themselves."""
    samples = Samples()
    samples.files = [Path("photos") / "beach" / f"{number}.jpg" for number in range(100)]
    before = dataset_state(samples)
    assert {(path.parent.name, path.suffix, hash(path), str(path)) for path in samples.files}
    assert dataset_state(samples) == before
    samples.files[3] = Path("photos") / "city" / "3.jpg"
    assert dataset_state(samples) != before
