"""Real loaders over data sets whose work is known: what is said about the making of their batches. Work that takes a
known time is a sleep under another name; shares are compared, never times."""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import defaultdict
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset
from torch.utils.data._utils import fetch as torch_fetch
from torch.utils.data._utils.collate import default_collate
from waiting import PATIENCE_SECONDS, comes_true

from hotlap.observe import feeding as feeding_module
from hotlap.observe.feed_record import feed_facts
from hotlap.observe.feeding import Feeding
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.observe.scrutiny_facts import FeedFacts
from hotlap.observe.stacks import Labels, stack_below
from hotlap.observe.whose import is_users

pytestmark = pytest.mark.alone

HERE = __file__
imread = time.sleep  # a decoder without Python code of its own


@pytest.fixture(autouse=True)
def often(monkeypatch) -> None:
    """As many samples in half a second as a profile takes in some, so that chance stays far below what is allowed."""
    monkeypatch.setattr(feeding_module, "_SAMPLE_SECONDS", 0.001)


@pytest.fixture
def fed(tmp_path: Path):
    """`fed(function, datasets) -> FeedFacts`: attached while the function runs, and gone afterwards."""

    def run(script, *datasets) -> FeedFacts:
        patch = Patch(Joints())
        feeding = Feeding(patch, tempfile.mkdtemp(dir=tmp_path))
        try:
            script()
            return feeding.facts({id(one) for one in datasets} or None)
        finally:
            patch.undo()

    return run


def draw(loader: DataLoader) -> None:
    for _ in loader:
        pass


def shares(facts: FeedFacts) -> dict[str, float]:
    """Also checks that what making consists of adds up to what it took."""
    total = sum(maker.seconds for maker in facts.makers)
    assert sum(making.seconds for making in facts.makings) == pytest.approx(total)
    found: dict[str, float] = defaultdict(float)
    for making in facts.makings:
        found[making.what] += making.seconds / total
    return found


def near(share: float) -> object:
    return pytest.approx(share, abs=0.1)


def lines(facts: FeedFacts, what: str) -> set[str]:
    """The texts of the lines that this belongs to."""
    source = Path(HERE).read_text().splitlines()
    found = [making for making in facts.makings if making.what == what]
    assert all(making.path == HERE for making in found)
    return {source[making.line - 1].strip() for making in found}


class File:
    read = staticmethod(time.sleep)


class Flip:
    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        time.sleep(0.015)
        return sample.flip(0)


class Noise:
    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        self.shake(0.005)
        return sample

    def shake(self, seconds: float) -> None:
        time.sleep(seconds)


class Compose:
    def __init__(self, *transforms) -> None:
        self.transforms = transforms

    def __call__(self, sample: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            sample = transform(sample)
        return sample


class Pictures(Dataset):
    """Of 50 ms a sample: reading 10, decoding 15, Flip 15, Noise 5, its own code 5."""

    def __init__(self, length: int) -> None:
        self.length, self.file = length, File()
        self.transform = Compose(Flip(), Noise())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.file.read(0.01)
        imread(0.015)
        time.sleep(0.005)
        return self.transform(torch.tensor([index, -index]))


class Numbers(IterableDataset):
    def __init__(self, length: int, seconds: float) -> None:
        self.length, self.seconds = length, seconds

    def __iter__(self):
        for index in range(self.length):
            imread(self.seconds)
            yield torch.tensor(index)


def slow_collate(seconds: float, samples: list) -> torch.Tensor:
    time.sleep(seconds)
    return default_collate(samples)


class Collate:
    def __call__(self, samples: list) -> torch.Tensor:
        time.sleep(0.02)
        return default_collate(samples)

    def method(self, samples: list) -> torch.Tensor:
        return self(samples)


class CollateModule(torch.nn.Module):
    def forward(self, samples: list) -> torch.Tensor:
        time.sleep(0.02)
        return default_collate(samples)


# what goes on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_each_part_has_its_share_and_its_line(fed, workers: int) -> None:
    facts = fed(lambda: draw(DataLoader(Pictures(24), batch_size=6, num_workers=workers)))
    found = shares(facts)
    assert [found[what] for what in ("read", "decode", "Flip", "Noise", "own code")] == [
        near(0.2),
        near(0.3),
        near(0.3),
        near(0.1),
        near(0.1),
    ]
    assert "Compose" not in found
    assert lines(facts, "read") == {"self.file.read(0.01)"}
    assert lines(facts, "decode") == {"imread(0.015)"}
    assert "time.sleep(0.015)" in lines(facts, "Flip")
    assert "time.sleep(seconds)" in lines(facts, "Noise")
    assert "time.sleep(0.005)" in lines(facts, "own code")
    assert facts.batch_samples == 6
    assert facts.batch_bytes == 6 * 2 * 8


def test_makers_by_worker(fed) -> None:
    facts = fed(lambda: [draw(DataLoader(Pictures(12), batch_size=3, num_workers=2)) for _ in range(2)])
    assert [(maker.worker, maker.batches, maker.samples) for maker in facts.makers] == [(0, 4, 12), (1, 4, 12)]
    assert all(maker.seconds > 0.1 and maker.resident_bytes > 1 << 20 for maker in facts.makers)
    assert (facts.draws, facts.capacity, facts.unwatched) == (8, 4, "")
    facts = fed(lambda: draw(DataLoader(Pictures(6), batch_size=4)))
    assert (facts.makers[0].worker, facts.makers[0].batches, facts.makers[0].samples) == (-1, 2, 6)
    assert facts.shm_bytes >= facts.shm_free_bytes > 0


@pytest.mark.parametrize(
    "collate",
    [functools.partial(slow_collate, 0.02), Collate(), Collate().method, CollateModule(), time.sleep],
    ids=["partial", "object", "method", "module", "builtin"],
)
def test_collate_in_every_form(fed, collate, monkeypatch) -> None:
    class Items(Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> torch.Tensor:
            imread(0.01)
            return torch.zeros(2)

    if collate is time.sleep:

        def items(self, indices: list) -> float:
            imread(0.02)
            return 0.02

        monkeypatch.setattr(Items, "__getitems__", items, raising=False)
    found = shares(fed(lambda: draw(DataLoader(Items(), batch_size=2, collate_fn=collate))))
    assert (found["collate"], found["decode"]) == (near(0.5), near(0.5))


def test_collate_in_torch_has_no_line(fed) -> None:
    class Wide(Dataset):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> list:
            return ROW

    facts = fed(lambda: draw(DataLoader(Wide(), batch_size=50)))
    assert [(m.path, m.line) for m in facts.makings if m.what == "collate"] == [("", 0)]
    assert shares(facts)["collate"] > 0.9


ROW = [torch.zeros(1) for _ in range(2000)]


def test_iterable_with_a_short_last_batch(fed) -> None:
    facts = fed(lambda: draw(DataLoader(Numbers(10, 0.02), batch_size=4)))
    assert (facts.makers[0].batches, facts.makers[0].samples) == (3, 10)
    assert shares(facts)["decode"] > 0.9
    facts = fed(lambda: draw(DataLoader(Numbers(10, 0.02), batch_size=4, num_workers=2)))
    assert [(maker.worker, maker.batches, maker.samples) for maker in facts.makers] == [(0, 3, 10), (1, 3, 10)]


def test_work_that_holds_the_interpreter_is_weighed_by_its_time(fed) -> None:
    """A regular sampler that counts every sample once puts nearly everything on one of these."""
    spent = {"python": 0.0, "c": 0.0, "sleep": 0.0}

    class Mixed(Dataset):
        def __len__(self) -> int:
            return 150

        def __getitem__(self, index: int) -> int:
            start = time.perf_counter()
            while time.perf_counter() < start + 0.004:
                pass
            spent["python"] += time.perf_counter() - start
            start = time.perf_counter()
            sum(range(400_000))
            spent["c"] += time.perf_counter() - start
            start = time.perf_counter()
            imread(0.001)
            spent["sleep"] += time.perf_counter() - start
            return index

    facts = fed(lambda: draw(DataLoader(Mixed(), batch_size=10)))
    total = sum(maker.seconds for maker in facts.makers)
    source = Path(HERE).read_text().splitlines()
    held = sum(m.seconds for m in facts.makings if m.line and "sum(range" in source[m.line - 1])
    assert held / total == near(spent["c"] / total)
    assert shares(facts)["decode"] == near(spent["sleep"] / total)


def test_the_decoding_that_a_transform_sets_off_is_decoding(fed, tmp_path: Path) -> None:
    from PIL import Image

    noise = numpy.random.default_rng(0).integers(0, 255, (1200, 1200, 3), dtype=numpy.uint8)
    Image.fromarray(noise).save(tmp_path / "a.jpg", quality=95)

    class Shrink:
        def __call__(self, image: Image.Image) -> torch.Tensor:
            small = image.resize((8, 8), Image.Resampling.NEAREST)
            time.sleep(0.02)
            return torch.tensor(numpy.asarray(small))

    class Folder(Dataset):
        def __init__(self) -> None:
            self.transforms = Compose(Shrink())
            self.decoding = 0.0

        def __len__(self) -> int:
            return 24

        def __getitem__(self, index: int) -> torch.Tensor:
            start = time.perf_counter()
            try:
                return self.transforms(Image.open(tmp_path / "a.jpg"))
            finally:
                self.decoding += time.perf_counter() - start - 0.02

    folder = Folder()
    facts = fed(lambda: draw(DataLoader(folder, batch_size=4)))
    found, total = shares(facts), facts.makers[0].seconds
    assert found["decode"] + found["read"] == near(folder.decoding / total)
    assert found["decode"] > 0.2
    assert found["Shrink"] == near(24 * 0.02 / total)
    assert "small = image.resize((8, 8), Image.Resampling.NEAREST)" in lines(facts, "decode")
    size = (tmp_path / "a.jpg").stat().st_size
    assert 24 * size <= facts.makers[0].asked_bytes < 24 * size + (4 << 20)


def test_collating_is_timed_where_samples_would_favour_it(fed) -> None:
    """Many small steps that hold the interpreter's lock, then one that lets go of it for longer. What a neighbour took
    from either of them is none of ours, so that one of three looks has to be right."""
    data, seen = TensorDataset(torch.zeros(64_000, 2)), []

    def look() -> bool:
        spent = [0.0]

        def collate(samples: list) -> torch.Tensor:
            start = time.perf_counter()
            try:
                return default_collate(samples)
            finally:
                spent[0] += time.perf_counter() - start

        facts = fed(lambda: draw(DataLoader(data, batch_size=64, collate_fn=collate)))
        seen.append((shares(facts)["collate"], spent[0] / facts.makers[0].seconds))
        return seen[-1][0] == near(seen[-1][1])

    assert any(look() for _ in range(3)), seen


def test_transforms_are_found_inside_other_data_sets(fed) -> None:
    both = ConcatDataset([Subset(Pictures(20), range(12)), Pictures(12)])
    found = shares(fed(lambda: draw(DataLoader(both, batch_size=6))))
    assert (found["Flip"], found["Noise"]) == (near(0.3), near(0.1))


def test_a_base_class_that_several_transforms_share_is_none_of_them() -> None:
    class Base:
        def __call__(self, value):
            return self.apply(value)

    class First(Base):
        def apply(self, value):
            return stack_below(sys._getframe(), run.__code__)

    class Second(Base):
        def apply(self, value):
            return stack_below(sys._getframe(), run.__code__)

    class Held(Dataset):
        transform = None

        def __init__(self) -> None:
            self.transform = [First(), Second()]

    def run(transform):
        return transform(0)

    held, labels = Held(), Labels()
    labels.learn(held)
    assert [labels.label(run(one))[0] for one in held.transform] == ["First", "Second"]
    assert labels.label(run(lambda _: stack_below(sys._getframe(), run.__code__)))[0] == "own code"


def test_a_transform_inside_a_transform_is_the_outer_ones_affair() -> None:
    class Inner:
        def __call__(self, value):
            return stack_below(sys._getframe(), run.__code__)

    class Sometimes:
        def __init__(self, inner) -> None:
            self.inner = inner

        def __call__(self, value):
            return self.inner(value)

    class Held(Dataset):
        def __init__(self) -> None:
            self.transform = Compose(Sometimes(Inner()), Inner())

    def run(transform):
        return transform(0)

    held, labels = Held(), Labels()
    labels.learn(held)
    assert [labels.label(run(one))[0] for one in held.transform.transforms] == ["Sometimes", "Inner"]


def test_one_line_that_reads_and_decodes_is_told_apart() -> None:
    def here(*_) -> None:
        stacks.append(stack_below(sys._getframe(1), run.__code__))

    class Stand:
        open = read = decode_jpeg = staticmethod(here)

    def run(stand):
        return inner(stand)

    def inner(stand):
        return stand.decode_jpeg(1, [stand.read()], note(len([1])))

    def note(_):
        here()

    stacks: list = []
    run(Stand())
    if sys.version_info < (3, 11):
        pytest.skip("only the line is known")
    assert [Labels().label(stack)[0] for stack in stacks] == ["read", "own code", "decode"]


def test_what_is_the_scripts_own() -> None:
    assert is_users(HERE) and is_users("train.py")
    assert not any(map(is_users, (os.__file__, torch.__file__, numpy.__file__, feeding_module.__file__, "<string>")))


# the queue, the batch, and whose it is -------------------------------------------------------------------------------


def test_depth_of_the_queue(fed) -> None:
    def slow_loop() -> None:
        data = TensorDataset(torch.zeros(20, 2))
        batches = iter(DataLoader(data, batch_size=2, num_workers=1, prefetch_factor=3))
        for left in range(10, 0, -1):
            ready = batches._worker_result_queue.qsize
            assert comes_true(lambda ready=ready, left=left: ready() >= min(3, left))
            next(batches)

    facts = fed(slow_loop)
    assert (facts.draws, facts.capacity) == (10, 3)
    assert facts.draws_from_empty == 0 and facts.mean_depth > 2


def test_a_slow_data_set_leaves_the_queue_empty(fed) -> None:
    facts = fed(lambda: draw(DataLoader(Numbers(10, 0.1), batch_size=1, num_workers=1)))
    assert facts.draws == 10
    assert facts.draws_from_empty >= 8 and facts.mean_depth < 0.5


class Bag:
    """A batch of a class of the script's own."""

    def __init__(self, samples: list) -> None:
        self.image = torch.stack([sample["image"] for sample in samples])
        self.more = {"mask": [self.image[:1].clone(), numpy.zeros(3, dtype=numpy.int16)], "names": ["a", "b"]}


class Dicts(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict:
        return {"image": torch.zeros(3, 5), "label": index, "name": "x"}


@pytest.mark.parametrize("workers", [0, 1])
def test_the_size_of_a_batch_however_it_is_packed(fed, workers: int) -> None:
    facts = fed(lambda: draw(DataLoader(Dicts(), batch_size=4, num_workers=workers)))
    assert (facts.batch_samples, facts.batch_bytes) == (4, 4 * (15 * 4 + 8))
    facts = fed(lambda: draw(DataLoader(Dicts(), batch_size=4, num_workers=workers, collate_fn=Bag)))
    assert (facts.batch_samples, facts.batch_bytes) == (4, 4 * 15 * 4 + 15 * 4 + 6)


def test_whole_batches_from_an_iterable(fed) -> None:
    class Batches(IterableDataset):
        def __iter__(self):
            for _ in range(3):
                yield torch.zeros(16, 2), torch.zeros(16)

    facts = fed(lambda: draw(DataLoader(Batches(), batch_size=None)))
    assert (facts.makers[0].batches, facts.makers[0].samples, facts.batch_samples) == (3, 48, 16)


@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation_does_not_count_as_training(fed, workers: int) -> None:
    training, judged = Subset(Pictures(20), range(8)), Subset(Dicts(), range(6))

    def script() -> None:
        for _ in range(2):
            draw(DataLoader(training, batch_size=4, num_workers=workers))
            draw(DataLoader(judged, batch_size=2, num_workers=workers))

    facts = fed(script, training)
    assert sum(maker.samples for maker in facts.makers) == 16
    assert facts.batch_samples == 4 and facts.batch_bytes == 4 * 16
    assert facts.draws == (4 if workers else 0)
    other = fed(script, judged)
    assert sum(maker.samples for maker in other.makers) == 12 and other.batch_bytes == 2 * (60 + 8)


def test_spawned_workers_are_said_to_be_unwatched(fed) -> None:
    data = TensorDataset(torch.zeros(4, 2))
    facts = fed(lambda: draw(DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context="spawn")))
    assert facts.unwatched == "workers are started by spawn, which cannot be looked into"
    assert facts.makers == [] and facts.draws == 2
    assert (facts.batch_samples, facts.batch_bytes) == (2, 2 * 8)


# what the script must not notice -------------------------------------------------------------------------------------


class Drawing(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict:
        return {"torch": torch.rand(2), "random": random.random(), "numpy": numpy.random.rand(), "index": index}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_and_random_streams_are_the_same(fed, workers: int) -> None:
    def epoch() -> list:
        torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
        batches = list(DataLoader(Drawing(), batch_size=4, shuffle=True, num_workers=workers))
        return [*batches, torch.rand(1), random.random(), numpy.random.rand()]

    plain, watched = epoch(), []
    fed(lambda: watched.extend(epoch()))
    for one, other in zip(plain, watched, strict=True):
        if isinstance(one, dict):
            assert list(one) == list(other) and all(torch.equal(one[key], other[key]) for key in one)
        else:
            assert one == other


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_pass_as_they_are(fed, workers: int) -> None:
    class Broken(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise KeyError("no such picture")
            return index

    loader, drawn = DataLoader(Broken(), batch_size=1, num_workers=workers), []

    def script() -> None:
        with pytest.raises(KeyError, match="no such picture") as caught:
            drawn.extend(batch.item() for batch in loader)
        assert type(caught.value) is KeyError
        if not workers:
            assert caught.value.args == ("no such picture",)

    facts = fed(script)
    assert drawn == [0, 1]
    assert (facts.makers[0].worker, facts.makers[0].samples) == (-1, 2) or workers  # a worker goes on


def test_the_interpreter_is_as_it_was(fed, monkeypatch) -> None:
    asked, switch = [], sys.setswitchinterval
    monkeypatch.setattr(feeding_module, "_SWITCH_SECONDS", 0.0002)
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: (asked.append(seconds), switch(seconds)))
    before = sys.getswitchinterval(), torch_fetch._MapDatasetFetcher.fetch, torch_fetch._IterableDatasetFetcher.fetch

    def script() -> None:
        assert torch_fetch._MapDatasetFetcher.fetch is not before[1]
        assert torch_fetch._IterableDatasetFetcher.fetch is not before[2]
        loader = DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2)
        iterator = iter(loader)
        next(iterator)
        assert iterator._dataset_fetcher.collate_fn is loader.collate_fn
        assert sys.getswitchinterval() == before[0]
        assert asked[0] == 0.0002 != before[0]

    fed(script)
    now = sys.getswitchinterval(), torch_fetch._MapDatasetFetcher.fetch, torch_fetch._IterableDatasetFetcher.fetch
    assert now == before


def wait_for_samplers(count: int) -> None:
    def is_sampler(frame) -> bool:
        return frame is not None and (
            frame.f_code is feeding_module._Process._sample.__code__ or is_sampler(frame.f_back)
        )

    assert comes_true(lambda: sum(map(is_sampler, sys._current_frames().values())) == count)


def test_after_undo_nothing_is_counted_and_nothing_left_running(tmp_path: Path) -> None:
    patch = Patch(Joints())
    feeding = Feeding(patch, str(tmp_path))
    wait_for_samplers(0)  # those of earlier tests
    files = os.listdir("/proc/self/fd")
    draw(DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2))
    wait_for_samplers(1)
    assert len(os.listdir("/proc/self/fd")) > len(files)
    patch.undo()
    wait_for_samplers(0)
    assert os.listdir("/proc/self/fd") == files
    before = feeding.facts()
    draw(DataLoader(TensorDataset(torch.zeros(8, 2)), batch_size=2))
    assert feeding.facts().makers == before.makers and before.makers[0].batches == 4


def test_no_older_record_comes_after_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, own, replace = Patch(Joints()), threading.get_ident(), os.replace
    feeding, is_writing, is_stopped = Feeding(patch, str(tmp_path)), threading.Event(), threading.Event()

    def replaced(*paths: str) -> None:
        if threading.get_ident() != own:
            is_writing.set()
            is_stopped.wait(0.2)  # longer than it takes to write what comes last
        replace(*paths)

    class Met(Dataset):
        """Its last sample is made while the sampler writes of the others."""

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            if index == 7:
                assert is_writing.wait(PATIENCE_SECONDS)
            return index

    monkeypatch.setattr(os, "replace", replaced)
    draw(DataLoader(Met(), batch_size=2))
    patch.undo()
    is_stopped.set()
    wait_for_samplers(0)
    assert [maker.batches for maker in feeding.facts().makers] == [4]


def test_a_loader_inside_a_data_set_belongs_to_it(fed) -> None:
    class Outer(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return next(iter(DataLoader(Pictures(2), batch_size=2)))

    outer = Outer()
    facts = fed(lambda: draw(DataLoader(outer, batch_size=2)))
    assert [(maker.batches, maker.samples) for maker in facts.makers] == [(2, 4)]


def test_what_breaks_the_sampler_is_said(fed, monkeypatch) -> None:
    def broken(*_) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(feeding_module, "stack_below", broken)
    facts = fed(lambda: draw(DataLoader(Pictures(10), batch_size=5)))
    assert facts.unwatched == "stacks could not be sampled: LookupError: planted"
    assert {(making.what, making.line) for making in facts.makings} == {("own code", 0), ("collate", 0)}
    assert shares(facts)["own code"] > 0.9 and facts.makers[0].samples == 10


# from outside --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_the_folder_tells_it_after_a_kill(tmp_path: Path, workers: int) -> None:
    script = textwrap.dedent(
        f"""
        import time, torch
        from torch.utils.data import DataLoader, Dataset
        from hotlap.observe.feeding import Feeding
        from hotlap.observe.joints import Joints
        from hotlap.observe.patch import Patch

        class Slow(Dataset):
            def __len__(self): return 10**6
            def __getitem__(self, index):
                time.sleep(0.01)
                return torch.zeros(3)

        feeding = Feeding(Patch(Joints()), {str(tmp_path)!r})
        data = Slow()
        print(id(data), flush=True)
        for number, _ in enumerate(DataLoader(data, batch_size=2, num_workers={workers})):
            if number == 50:
                print("drawn", flush=True)
                time.sleep(600)
        """
    )
    (tmp_path / "slow.py").write_text(script)

    def has_been_written() -> bool:
        """Now and then, by itself."""
        facts = feed_facts(str(tmp_path), {dataset})
        return bool(facts.makers) and facts.makers[0].batches > 10 and (facts.draws > 10 or not workers)

    with subprocess.Popen([sys.executable, str(tmp_path / "slow.py")], stdout=subprocess.PIPE, text=True) as child:
        dataset = int(child.stdout.readline())
        assert child.stdout.readline() == "drawn\n"
        assert comes_true(has_been_written)
        child.send_signal(signal.SIGKILL)
    facts = feed_facts(str(tmp_path), {dataset})
    assert [maker.worker for maker in facts.makers] == [0 if workers else -1]
    assert 10 < facts.makers[0].batches < 60
    assert facts.batch_samples == 2 and facts.batch_bytes == 2 * 3 * 4
    assert facts.draws > 10 if workers else facts.draws == 0
    assert shares(facts)["own code"] > 0.8
    assert {(m.path, m.line) for m in facts.makings if m.what == "own code"} >= {(str(tmp_path / "slow.py"), 11)}
    assert feed_facts(str(tmp_path), {dataset + 1}).makers == []


def test_an_empty_or_torn_folder_tells_nothing(tmp_path: Path) -> None:
    assert feed_facts(str(tmp_path)).makers == []
    (tmp_path / "feed-1-2.json").write_text(json.dumps({"worker": 0})[:-4])
    assert feed_facts(str(tmp_path)) == feed_facts(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("is_on", [True, False])
def test_nothing_is_collected_while_threads_are_looked_at(is_on: bool, monkeypatch) -> None:
    """Python 3.11 once stood still for ever here."""
    plain, seen, was_on = sys._current_frames, [], gc.isenabled()
    monkeypatch.setattr(sys, "_current_frames", lambda: (seen.append(gc.isenabled()), plain())[1])
    try:
        gc.enable() if is_on else gc.disable()
        assert feeding_module._frame_of(threading.get_ident()) is not None
        assert (seen, gc.isenabled()) == ([False], is_on)
    finally:
        gc.enable() if was_on else gc.disable()
