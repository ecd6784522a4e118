"""Data sets that do what they should not, or what no store can know of: each is drawn as python alone would draw it,
and what it leaves behind is the same."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate, get_worker_info
from waiting import comes_true

from hotlap.catalogue.resident_dataset import ResidentDataset
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts import purity, resident, resident_loader
from hotlap.parts.purity import why_impure
from hotlap.parts.resident import Resident, Room

LENGTH = 64


class Plain(Dataset):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index


@contextlib.contextmanager
def in_force(cores: int) -> Iterator[Joints]:
    patch = Patch(Joints())
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(resident_loader, "free_cores", lambda workers: cores)
        ResidentDataset().apply(patch, {})
        try:
            yield patch.joints
        finally:
            patch.undo()


def drawn(loader: Any) -> list[Any]:
    return [(x.tolist(), torch.as_tensor(y).tolist(), x.requires_grad) for x, y in loader]


def epochs(dataset: Dataset, number: int = 4, **options: Any) -> list[Any]:
    loader = DataLoader(dataset, **({"batch_size": 8} | options))
    return [drawn(loader) for _ in range(number)]


def changed_in_an_epoch(workers: int = 0) -> Any:
    class Leveled(Plain):
        level = 0

        def __getitem__(self, index: int) -> Any:
            return torch.full((3,), float(index + 1000 * self.level)), index

    dataset, found = Leveled(), []
    loader = DataLoader(dataset, 2, num_workers=workers)
    for epoch in range(4):
        for count, (x, _) in enumerate(loader):
            found.append(x.tolist())
            if epoch == 2 and count == 3:
                dataset.level = 1
    return found


def changed_while_workers_load() -> Any:
    return changed_in_an_epoch(workers=1)


def told_by_its_worker() -> Any:
    class Told(Plain):
        def __getitem__(self, index: int) -> Any:
            info = get_worker_info()
            return torch.full((3,), float(index)), 0 if info is None else info.id

    return epochs(Told(), num_workers=2)


def counted_by_its_worker() -> Any:
    class Counted(Plain):
        reads = 0

        def __getitem__(self, index: int) -> Any:
            self.reads += 1
            return torch.full((3,), float(index)), self.reads // 29

    torch.manual_seed(2)
    return epochs(Counted(), num_workers=2, shuffle=True)


def counted_for_all() -> Any:
    class Counted(Plain):
        def __init__(self) -> None:
            self.reads = multiprocessing.Value("i", 0)

        def __getitem__(self, index: int) -> Any:
            self.reads.value += 1
            return super().__getitem__(index)

    dataset = Counted()
    return epochs(dataset), dataset.reads.value


def files_written_anew() -> Any:
    class Files(Plain):
        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(numpy.load(f"{index}.npy")), index

    loader, found = DataLoader(Files(), 8), []
    for epoch in range(4):
        for number in range(LENGTH):
            numpy.save(f"{number}.npy", numpy.full(3, number + 1000 * (epoch // 2)))
        found.append(drawn(loader))
    return found


def one_left_out() -> Any:
    class Filtered(Plain):
        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices if index != 13]

    return epochs(Filtered())


def some_in_a_graph() -> Any:
    class Graphed(Plain):
        def __getitem__(self, index: int) -> Any:
            return torch.full((3,), float(index), requires_grad=index % 8 == 5 and index > 40), index

    return epochs(Graphed())


def without_a_length() -> Any:
    class Endless(Sampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(LENGTH))

        def __len__(self) -> int:
            raise NotImplementedError

    return epochs(Plain(), sampler=Endless())


def a_file_read_on() -> Any:
    numpy.arange(LENGTH * 2048 * 8, dtype=numpy.int32).tofile("data.bin")
    with open("data.bin", "rb") as file:

        class Stream(Plain):
            def __getitem__(self, index: int) -> Any:
                return torch.frombuffer(bytearray(file.read(8192)), dtype=torch.int32), index

        return epochs(Stream())


def images_opened_before() -> Any:
    from PIL import Image

    for number in range(LENGTH):
        pixels = numpy.random.RandomState(number).randint(0, 255, (64, 64, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).save(f"{number}.png")

    class Opened(Plain):
        def __init__(self) -> None:
            self.images = [Image.open(f"{number}.png") for number in range(LENGTH)]

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(numpy.array(self.images[index])), index

    return epochs(Opened())


def a_file_opened_late() -> Any:
    """The second loader collates for itself, so its workers are forked as ever; what they inherit must be as ever."""

    class Late(Plain):
        file: Any = None

        def __getitem__(self, index: int) -> Any:
            self.file = self.file or open("late.bin", "rb")  # noqa: SIM115  # for as long as it lives
            self.file.seek(4 * index)
            return torch.frombuffer(bytearray(self.file.read(4)), dtype=torch.int32), index

    numpy.arange(LENGTH, dtype=numpy.int32).tofile("late.bin")
    dataset = Late()
    kept, own = DataLoader(dataset, 8, num_workers=1), DataLoader(dataset, 8, num_workers=1, collate_fn=collated)
    return [(drawn(kept), drawn(own), dataset.file is None) for _ in range(4)]


def collated(samples: Any) -> Any:
    return default_collate(samples)


def lines_added_to_a_file() -> Any:
    class Logged(Plain):
        def __getitem__(self, index: int) -> Any:
            with open("log.txt", "a") as log:
                log.write(f"{index}\n")
            return super().__getitem__(index)

    return epochs(Logged()), Path("log.txt").read_text()


def words_for_the_error_stream() -> Any:
    class Talking(Plain):
        def __getitem__(self, index: int) -> Any:
            print(index, file=sys.stderr)
            return super().__getitem__(index)

    with contextlib.redirect_stderr(io.StringIO()) as said:
        return epochs(Talking()), said.getvalue()


def a_forked_copy_goes_on() -> Any:
    class Leveled(Plain):
        def __init__(self) -> None:
            self.levels = [0]  # as a whole it stays what it is

        def __getitem__(self, index: int) -> Any:
            return torch.full((3,), float(index + 1000 * self.levels[0])), index

    dataset = Leveled()
    loader = DataLoader(dataset, 8)
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            dataset.levels[0] = 1
            list(iterator)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return drawn(iterator), drawn(loader)


SCRIPTS = [
    *(
        changed_in_an_epoch,
        changed_while_workers_load,
        told_by_its_worker,
        counted_by_its_worker,
        counted_for_all,
        files_written_anew,
        one_left_out,
    ),
    *(some_in_a_graph, without_a_length, a_file_read_on, images_opened_before, a_file_opened_late),
    *(lines_added_to_a_file, words_for_the_error_stream, a_forked_copy_goes_on),
]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_as_python_alone(script: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "_CHECK_SHARE", 1e9)  # samples are looked at again as often as may be
    found = []
    for name, force in (("alone", contextlib.nullcontext()), ("kept", in_force(0)), ("filled", in_force(1))):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with force:
            found.append(script())
    assert found[1] == found[0]
    assert found[2] == found[0]


@pytest.mark.parametrize("odd", ["in a graph", "of another structure", "of another dtype"])
def test_who_fills_the_store_leaves_alone_what_does_not_fit(odd: str) -> None:
    """Whoever comes to it first: the loader, or a process that loads the rest."""

    class Odd(Plain):
        def __getitem__(self, index: int) -> Any:
            if index != 20:
                return {"x": torch.full((3,), float(index))}
            sample = torch.full((3,), 20.0, requires_grad=odd == "in a graph")
            name = "y" if odd == "of another structure" else "x"
            return {name: sample.double() if odd == "of another dtype" else sample}

    dataset = Odd()
    store = Resident(LENGTH, resident.reader(dataset), Room(1 << 20))
    store.batch(list(range(8)))
    store.fill(resident.reader(dataset), 1)
    assert comes_true(lambda: store.share < 1 and not store._filler._children)
    assert store._has[21:].all() and not store._has[8:21].any()
    with pytest.raises(resident.Refused):
        store.batch([20, 21])


def test_memory_that_is_not_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may count otherwise than we do."""
    expected = epochs(Plain())

    def mapped(*args: Any) -> Any:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(resident.mmap, "mmap", mapped)
    with in_force(0) as joints:
        assert epochs(Plain()) == expected
    assert "no memory" in joints.withdrawn[0]


def test_what_is_kept_of_a_view_is_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled tensor brings all the memory it looks at."""

    class Views(Plain):
        def __init__(self) -> None:
            self.data = torch.zeros(1 << 22)

        def __getitem__(self, index: int) -> Any:
            return self.data[index : index + 3], index

    sizes = []
    asked = resident_loader.asked

    def weighed(question: Any, patience: float) -> Any:
        answer = asked(question, patience)
        sizes.append(len(pickle.dumps(answer)))
        return answer

    monkeypatch.setattr(resident_loader, "asked", weighed)
    monkeypatch.setattr(purity, "_left_open", lambda: None)  # so that samples are read in a copy of the process
    with in_force(0):
        epochs(Views(), num_workers=1)
    assert sizes and max(sizes) < 1 << 16


def test_the_reasons() -> None:
    import datetime

    class Dated(Plain):
        def __getitem__(self, index: int) -> Any:
            return datetime.datetime.now().year

    assert why_impure(Dated(), range(4)) == "a sample reads the clock"


@pytest.mark.parametrize(
    ("path", "mode", "reason"),
    [
        ("kept.txt", "w", "a sample writes files"),
        ("kept.txt", "a", "a sample writes files"),
        ("temp/kept.txt", "w", None),
        ("there.txt", "r+", None),  # as arrays on disk are opened
        (os.devnull, "w", None),  # as words are silenced
    ],
)
def test_files_that_a_sample_writes(
    path: str, mode: str, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writing(Plain):
        def __getitem__(self, index: int) -> Any:
            with open(path, mode):
                return super().__getitem__(index)

    (tmp_path / "temp").mkdir()
    (tmp_path / "there.txt").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    assert why_impure(Writing(), range(4)) == reason


def test_an_epoch_looks_at_other_samples_each_time() -> None:
    read: list[int] = []

    def reading(index: list[int]) -> list[Any]:
        read.extend(index)
        return [Plain()[number] for number in index]

    store = Resident(LENGTH, reading, Room(1 << 20))
    store.look_again()  # nothing is kept yet
    assert not read
    store.batch(range(LENGTH))
    looked = []
    for _ in range(3):
        read.clear()
        store.batch([0, 1])
        store.look_again()
        looked.append(tuple(read))
    assert len(set(looked)) == 3 and all(len(set(one)) == 4 for one in looked)
