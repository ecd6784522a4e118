"""A data set whose samples are kept: the same samples, made once for all workers, or a reason why not."""

from __future__ import annotations

import copy
import pickle
import random
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from hotlap.parts import cached_dataset
from hotlap.parts.cached_dataset import CachedDataset, bytes_in, packed, unpacked
from hotlap.parts.purity import same


class Squares(Dataset):
    """Leaves a mark in a folder for each sample it makes: a link, since samples that write files are not kept."""

    def __init__(self, folder: Path | None = None, scale: int = 1) -> None:
        self.folder, self.scale, self.classes = folder, scale, ["even", "odd"]

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int):
        if self.folder is not None:
            (self.folder / f"{index} {time.perf_counter_ns()}").symlink_to("nowhere")
        return torch.full((3, 2), self.scale * index**2, dtype=torch.int16), f"number {index}"

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def made(folder: Path) -> int:
    count = len(list(folder.iterdir()))
    for one in folder.iterdir():
        one.unlink()
    return count


def epoch(loader: DataLoader) -> dict[str, int]:
    return {name: int(row[0, 0]) for rows, names in loader for row, name in zip(rows, names, strict=True)}


@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_each_sample_is_made_once_for_all_workers(tmp_path: Path, method: str | None) -> None:
    dataset = CachedDataset(Squares(tmp_path), bytes="1 MiB")
    made(tmp_path)  # by the test for purity
    workers = {"num_workers": 2, "multiprocessing_context": method} if method else {}
    loader = DataLoader(dataset, batch_size=5, shuffle=True, **workers)
    expected = {f"number {number}": number**2 for number in range(40)}
    assert epoch(loader) == expected and made(tmp_path) == 40
    assert epoch(loader) == expected
    assert made(tmp_path) <= 6, "a few are made again, to be compared"


SAMPLES = {
    "scalar": torch.tensor(3),
    "transposed": torch.rand(3, 4).t(),
    "empty": torch.zeros(0, 3),
    "half": torch.rand(2, 2).bfloat16(),
    "complex": torch.tensor([1 + 2j]),
    "bool": torch.tensor([True]),
    "holes": torch.rand(4)[::2],
    "array": numpy.arange(6).reshape(2, 3).T,
    "number": numpy.float32(3),
    "nested": {"a": [1, None, torch.arange(3)], "b": (2.5, "text", b"bytes")},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_come_back_as_they_were(name: str) -> None:
    sample = SAMPLES[name]
    again = unpacked(memoryview(bytearray(b"".join(packed(sample)))))
    assert same(again, sample)
    if isinstance(sample, torch.Tensor) and name != "holes":
        assert again.stride() == sample.stride()


def test_samples_are_the_callers_own() -> None:
    dataset = CachedDataset(Squares(), bytes=1 << 20)
    for _ in range(4):
        tensor = dataset[3][0]
        assert (tensor == 9).all()
        tensor.zero_()


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("not to be pickled")


def test_what_cannot_be_kept_is_made_each_time() -> None:
    class Odd(Squares):
        def __getitem__(self, index: int) -> Any:
            return Stubborn() if index == 3 else super().__getitem__(index)

    dataset = CachedDataset(Odd(), bytes=1 << 20)
    assert isinstance(dataset[3], Stubborn) and isinstance(dataset[3], Stubborn)


class Sample(Dataset):
    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int):
        return self.make()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.rand(1), "draws random numbers"),
        (random.random, "draws random numbers"),
        (time.time, "the clock"),
        (object, "two reads of one sample differ"),
    ],
)
def test_what_is_not_always_the_same_is_refused(make, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CachedDataset(Sample(make))


def test_what_has_no_number_is_refused() -> None:
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(ValueError, match="iterable"):
        CachedDataset(Stream())


def test_attributes_are_those_of_the_data_set() -> None:
    dataset = CachedDataset(Squares(), bytes="1 MiB")
    assert (dataset.classes, len(dataset), dataset.scale) == (["even", "odd"], 40, 1)
    assert not hasattr(dataset, "no_such_thing") and not hasattr(dataset, "__getitems__")
    assert int(dataset[4][0][0, 0]) == 16
    dataset.dataset.scale = 2  # as an epoch would be set, by a method
    assert int(dataset[4][0][0, 0]) == 32
    dataset.scale = 3
    assert dataset.dataset.scale == 3 and int(dataset[4][0][0, 0]) == 48


def test_setting_an_object_starts_over() -> None:
    dataset = CachedDataset(Sample(lambda: 1))
    assert [dataset[0], dataset[0]] == [1, 1]
    dataset.make = lambda: 2
    assert dataset[0] == 2


def test_a_sample_that_changes_later_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_dataset, "_CHECKED_EVERY", 4)
    values = [1]
    dataset = CachedDataset(Sample(lambda: values[0]))
    assert [dataset[0] for _ in range(3)] == [1, 1, 1]
    values[0] = 2
    with pytest.warns(UserWarning, match="sample 0 is no longer what it was"):
        seen = [dataset[0] for _ in range(3)]
    assert seen[-1] == 2 and seen == sorted(seen)
    assert dataset[5] == 2


def test_a_copy_for_elsewhere_starts_empty(tmp_path: Path) -> None:
    dataset = CachedDataset(Squares(tmp_path), bytes="1 MiB")
    _ = dataset[3]
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        made(tmp_path)
        assert same(other[3], dataset[3]) and same(other[3], dataset[3])
        assert made(tmp_path) == 1 and other.limit_bytes == 1 << 20


def test_other_indices_go_through() -> None:
    dataset = CachedDataset(TensorDataset(torch.arange(8)), bytes=1 << 20)
    assert dataset[2:4][0].tolist() == [2, 3]
    for _ in range(2):
        assert [int(dataset[index][0]) for index in (-1, torch.tensor(2), numpy.int64(3), 1)] == [7, 2, 3, 1]
        assert dataset[True][0].shape == (1, 8), "to a tensor, True is not 1"
    assert dataset._pool.hits == 5
    assert len(CachedDataset(TensorDataset(torch.zeros(0)))) == 0


def test_the_limit_holds() -> None:
    dataset = CachedDataset(Squares(), bytes=2000)
    for _ in range(3):
        assert [int(dataset[index][0][0, 0]) for index in range(40)] == [index**2 for index in range(40)]
        assert 0 < dataset._pool.used_bytes <= 2000


@pytest.mark.parametrize(
    ("text", "size"),
    [("4 GiB", 4 << 30), ("500MB", 500 * 10**6), ("1.5 kib", 1536), ("12", 12), (7, 7), ("2 g", 2 * 10**9)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert bytes_in(text) == size


@pytest.mark.parametrize("text", ["", "much", "-3", "4 iB", "4 GiBs"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="4 GiB"):
        bytes_in(text)


def test_the_loop_in_the_docstring_runs() -> None:
    model = torch.nn.Linear(4, 2)
    names = {
        "Photos": lambda folder: TensorDataset(torch.rand(70, 4), torch.randint(0, 2, (70,))),
        "criterion": torch.nn.functional.cross_entropy,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
    }
    before = model.weight.detach().clone()
    code = textwrap.dedent(cached_dataset.__doc__.partition("\n\n")[2].rpartition("\n\n")[0])
    exec(code.replace("range(90)", "range(2)").replace("num_workers=8", "num_workers=2"), names)
    assert not torch.equal(model.weight, before) and names["dataset"]._pool.hits == 70
