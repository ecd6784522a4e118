"""Whole epochs through every combination of what touches the data path, every sample accounted for: never a stale,
repeated, missing or reordered one. A technique that touches it belongs into TECHNIQUES."""

from __future__ import annotations

import functools
import itertools
import random
from collections import namedtuple
from contextlib import contextmanager

import numpy
import pytest
import torch
import torch._dynamo  # torch's first operation under a dispatch mode does it, in every forked probe anew
from PIL import Image
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler, WeightedRandomSampler

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts import recycled_batches
from hotlap.parts.purity import same
from hotlap.technique import Choice

# Whoever changes a loader that another has already changed stands before it.
TECHNIQUES = ("persistent-workers", "loader-workers", "pinned-batches", "sample-cache", "resident-dataset")
SETTINGS = {"loader-workers": {"num_workers": 2}}
SUBSETS = [names for count in range(len(TECHNIQUES) + 1) for names in itertools.combinations(TECHNIQUES, count)]
COUNT, BATCH, EPOCHS = 22, 4, 3  # the last batch is a short one

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


class Photos(Dataset):
    """Each image is one colour, from which its number can be read off."""

    def __init__(self, folder) -> None:
        self.paths = [str(folder / f"{number}.png") for number in range(COUNT)]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        pixels = numpy.array(Image.open(self.paths[index]).convert("RGB"), dtype=numpy.int64)
        return torch.from_numpy(pixels[0, 0].copy()), index


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Photos:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        Image.new("RGB", (2, 2), (number, 2 * number, 255 - number)).save(folder / f"{number}.png")
    return Photos(folder)


@contextmanager
def applied(names):
    patch = Patch(Joints())
    try:
        for name in names:
            technique = find(name)
            technique.apply(patch, SETTINGS.get(name, technique.default))
        yield patch
        assert patch.joints.withdrawn == []
    finally:
        patch.undo()


def drawn(loader: DataLoader) -> list:
    """The numbers of an epoch, batch by batch. All batches are held until its end, when a buffer used twice shows, and
    written over after that, as scripts do in place, so that what is kept for later epochs must be a copy."""
    batches = list(loader)
    numbers = [indices.tolist() for _, indices in batches]
    for pixels, indices in batches:
        expected = torch.stack([indices, 2 * indices, 255 - indices], dim=1)
        assert torch.equal(pixels, expected), "a sample under another's number"
        pixels.fill_(-1)
        indices.fill_(-1)
    return numbers


def trained(data: Dataset, **options) -> tuple[list, bytes]:
    """What three epochs draw, and the state of torch's generator after them."""
    torch.manual_seed(7)
    loader = DataLoader(data, BATCH, **options)
    epochs = [drawn(loader) for _ in range(EPOCHS)]
    return epochs, torch.get_rng_state().numpy().tobytes()


_plain = functools.cache(lambda data, options: trained(data, **dict(options)))


def account(data: Dataset, **options) -> None:
    """Against the plain loader, and against what an epoch is."""
    epochs, state = trained(data, **options)
    for numbers in epochs:
        flat = [number for batch in numbers for number in batch]
        assert len(set(flat)) == len(flat) == (COUNT // BATCH * BATCH if options["drop_last"] else COUNT)
    expected, expected_state = _plain(data, tuple(options.items()))
    assert epochs == expected
    assert state == expected_state, "what the script draws next is another"
    assert (epochs[0] != epochs[1]) is options["shuffle"]


ORDERS = [{"shuffle": shuffle, "drop_last": drop_last} for shuffle in (True, False) for drop_last in (True, False)]


@pytest.mark.parametrize("names", SUBSETS, ids="+".join)
def test_every_sample_of_every_epoch(photos, names) -> None:
    for options in ORDERS:
        _plain(photos, tuple(options.items()))
    with applied(names):
        for options in ORDERS:
            account(photos, **options)


@pytest.mark.parametrize("names", [names for names in SUBSETS if "loader-workers" not in names], ids="+".join)
def test_every_sample_where_the_script_has_workers(photos, names) -> None:
    options = {"shuffle": True, "drop_last": False, "num_workers": 1}
    _plain(photos, tuple(options.items()))
    with applied(names):
        account(photos, **options)


@pytest.mark.parametrize("names", [(), ("persistent-workers",), TECHNIQUES], ids="+".join)
def test_every_sample_in_used_memory(photos, names, monkeypatch) -> None:
    monkeypatch.setattr(recycled_batches, "INLINE", 0)  # so that batches as small as these go through blocks
    options = {"shuffle": True, "drop_last": False, "num_workers": 2}
    _plain(photos, tuple(options.items()))
    with applied((*names, "recycled-batches")):
        account(photos, **options)


FAULTS = {
    "missing": lambda proceed, iterator: (proceed(iterator) if iterator._num_yielded == 2 else None, proceed(iterator))[
        1
    ],
    "stale": lambda proceed, iterator, kept={}: kept.setdefault(id(iterator), proceed(iterator)),
    "reordered": lambda proceed, iterator: [part.flip(0) for part in proceed(iterator)],
    "mixed up": lambda proceed, iterator: [(batch := proceed(iterator))[0], batch[1].flip(0)],
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_account_notices(photos, fault) -> None:
    options = {"shuffle": True, "drop_last": False}
    _plain(photos, tuple(options.items()))
    with applied(()) as patch:
        patch.at(patch.joints.batch_drawn, fault)
        with pytest.raises(AssertionError):
            account(photos, **options)


KILLED = """
import multiprocessing, os, signal
import torch
from torch.utils.data import DataLoader, Dataset
class Many(Dataset):
    def __len__(self): return 400
    def __getitem__(self, index): return index
seen, model = [], torch.nn.Linear(1, 1)
try:
    for batch in DataLoader(Many(), 2, num_workers=WORKERS, collate_fn=list):
        seen += batch
        if len(seen) == 6:
            children = multiprocessing.active_children()
            os.kill(children[0].pid, signal.SIGKILL)
except RuntimeError as error:
    print("workers:", len(children), "prefix:", seen == list(range(len(seen))), "short:", len(seen) < 400)
    print("error:", error)
"""


@pytest.mark.parametrize(("names", "workers"), [((), 2), (("loader-workers",), 0), (TECHNIQUES, 0)])
def test_a_worker_that_is_killed_is_the_error_it_is_in_torch(run_script, tmp_path, names, workers) -> None:
    """In a process of its own: the signal comes through as long as the loader lives. Batches are plain numbers: what
    torch says when it cannot fetch a tensor of the dead differs from time to time."""
    script = tmp_path / "train.py"
    script.write_text(KILLED.replace("WORKERS", str(workers)))
    choices = [Choice(find(name), SETTINGS.get(name, find(name).default)) for name in names]
    trial = run_script(script, choices)
    assert "workers: 2 prefix: True short: True" in trial.log, (trial.ending, trial.seconds, trial.log)
    assert "error: DataLoader worker (pid" in trial.log


class Drawing(Dataset):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int):
        return random.random(), float(numpy.random.rand()), torch.rand(())


@pytest.mark.parametrize("names", [("loader-workers",), TECHNIQUES[:3]], ids="+".join)
def test_random_draws_differ_between_workers_and_epochs_and_come_again_with_the_seed(names) -> None:
    def draws(seed: int) -> list[float]:
        random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
        loader = DataLoader(Drawing(), 2)
        assert loader.num_workers == 2
        return [float(one) for _ in range(2) for batch in loader for kind in batch for one in kind]

    with applied(names):
        first, again, other = draws(1), draws(1), draws(2)
    assert first == again
    assert len({*first, *other}) == len(first) + len(other) == 2 * 2 * 24 * 3


@pytest.mark.parametrize("names", [(), ("loader-workers",), TECHNIQUES], ids="+".join)
def test_set_epoch(photos, names) -> None:
    def orders() -> list:
        sampler = DistributedSampler(photos, num_replicas=1, rank=0)
        loader, found = DataLoader(photos, BATCH, sampler=sampler), []
        for number in range(EPOCHS):
            sampler.set_epoch(number)
            found.append(drawn(loader))
        return found

    expected = orders()
    assert len({str(one) for one in expected}) == EPOCHS
    with applied(names):
        assert orders() == expected


@pytest.mark.parametrize("names", [("loader-workers",), ("resident-dataset",), TECHNIQUES], ids="+".join)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_been_stopped(photos, names, workers) -> None:
    options = {"shuffle": True, "num_workers": workers}
    expected, _ = _plain(photos, tuple(options.items()))
    with applied(names):
        torch.manual_seed(7)
        first = drawn(DataLoader(photos, BATCH, **options))
        saved = torch.get_rng_state()
    torch.manual_seed(99)
    with applied(names):
        loader = DataLoader(photos, BATCH, **options)
        torch.set_rng_state(saved)
        assert [first, drawn(loader), drawn(loader)] == expected


class Backwards(Sampler):
    """Also gives a number twice, and in batches that differ in length."""

    def __iter__(self):
        yield from ([5, 4, 3], [2], [1, 0, 0, 21], list(range(20, 5, -1)))

    def __len__(self) -> int:
        return 4


Pair = namedtuple("Pair", "pixels words")


def in_words(samples) -> Pair:
    return Pair([pixels for pixels, _ in samples], {"names": [f"photo {index}" for _, index in samples], "none": None})


LOADERS = {
    "collate": lambda data: DataLoader(data, 5, collate_fn=in_words, shuffle=True),
    "no batches": lambda data: DataLoader(data, None),
    "batch sampler": lambda data: DataLoader(data, batch_sampler=Backwards()),
    "torch's batch sampler": lambda data: DataLoader(data, batch_sampler=BatchSampler(range(COUNT), 3, True)),
    "sampler": lambda data: DataLoader(data, 5, sampler=WeightedRandomSampler([1.0] * COUNT, 31)),
    "generator": lambda data: DataLoader(data, 5, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "worker_init_fn": lambda data: DataLoader(data, 5, shuffle=True, worker_init_fn=random.seed),
}


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("build", LOADERS.values(), ids=LOADERS)
def test_pure_data_of_any_shape_is_the_same_with_workers(photos, build, lasting) -> None:
    def epochs() -> list:
        torch.manual_seed(11)
        loader = build(photos)
        return [loader.num_workers, *(list(loader) for _ in range(2))]

    workers, *expected = epochs()
    patch = Patch(Joints())
    find("loader-workers").apply(patch, {"num_workers": 2, "persistent_workers": lasting})
    try:
        given, *found = epochs()
    finally:
        patch.undo()
    assert (workers, given) == (0, 2)
    assert same(found, expected)
