"""Two iterators of one loader at once, and every other moment at which a script may begin one: with whatever touches
the data path, each of them gives what it would have given, and the script's own draws between them stay."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import open_loops
from open_loops import (
    LOOPS,
    in_buckets,
    in_memory,
    left_with_the_last_batch,
    shuffled,
    shuffled_by_its_own,
    two_at_once,
    weighted,
    without_the_last,
)

from hotlap.observe.facts import loader_facts
from hotlap.parts import recycled_batches

SCRIPT = Path(open_loops.__file__)
LOADERS = (shuffled, shuffled_by_its_own, without_the_last, in_buckets)
GIVEN = ("loader-workers", {"num_workers": 2})
LASTING = ("loader-workers", {"num_workers": 2, "persistent_workers": True})
MORE = ("loader-workers", {"num_workers": 2, "persistent_workers": True, "replacing": 1})
NONE = ("loader-workers", {"num_workers": 0, "replacing": 2})

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


@pytest.fixture(autouse=True)
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches as small as these go through shared memory too."""
    monkeypatch.setattr(recycled_batches, "INLINE", 0)


def named(choice) -> tuple:
    return (choice,) if isinstance(choice, str) else choice


@functools.cache
def plainly(loop, build, data=None, **given) -> list:
    return open_loops.seen(loop, build, data, **given)


def all_seen(loops, builds, data, **given) -> None:
    for build in builds:
        for loop in loops:
            assert open_loops.seen(loop, build, data, **given) == plainly(loop, build, **given), (loop, build)


def test_a_script_with_all_of_them(warm) -> None:
    plain = warm.run_script(SCRIPT, "0", cwd=SCRIPT.parent)
    names = "loader-workers:num_workers=2,persistent-workers,recycled-batches"
    found = warm.run("run", "--with", names, str(SCRIPT), "0", cwd=SCRIPT.parent)
    assert found.stdout.splitlines() == plain.stdout.splitlines(), found.stderr
    assert found.returncode == 0 and len(plain.stdout.splitlines()) == 2 * len(LOOPS)


@pytest.mark.parametrize(
    ("workers", "choices"),
    [
        (0, [GIVEN]),
        (0, [LASTING, "pinned-batches", "sample-cache", "device-prefetch"]),
        (0, [GIVEN, "persistent-workers", "recycled-batches"]),
        (0, [LASTING, "resident-dataset"]),
        (0, [GIVEN, "resident-dataset", "device-prefetch"]),
        (0, ["resident-dataset", "device-prefetch"]),
        (1, [MORE]),
        (1, ["persistent-workers", "pinned-batches", "device-prefetch"]),
        (1, ["persistent-workers", "resident-dataset"]),
    ],
    ids=lambda one: "+".join(named(choice)[0] for choice in one) if isinstance(one, list) else None,
)
def test_whatever_feeds_the_loop(apply, clones, workers: int, choices: list) -> None:
    is_asked_otherwise = choices in ([GIVEN], [MORE]) or "resident-dataset" in choices
    builds = LOADERS if is_asked_otherwise else (shuffled, in_buckets)
    for loop in LOOPS:
        for build in builds:
            plainly(loop, build, num_workers=workers)
    for choice in choices:
        patch = apply(*named(choice))
    all_seen([left_with_the_last_batch], builds, None, num_workers=workers)  # while nothing is known of the data
    data = open_loops.Squares()  # one for all, so that it is kept, and known how it is moved, when the first loops end
    for _ in range(3):
        loader = shuffled(data, num_workers=workers)
        assert len([open_loops.numbers(batch) for batch in loader]) == len(loader)
    assert loader.num_workers == (2 if isinstance(choices[0], tuple) else workers)
    all_seen(LOOPS, builds, data, num_workers=workers)
    assert patch.joints.withdrawn == []
    assert loader_facts(loader).kept == ("resident-dataset" in choices)
    assert ("device-prefetch" in choices) == (clones.handed > 0)


def test_workers_that_know_a_whole_epoch_at_once(apply) -> None:
    given = {"num_workers": 1, "prefetch_factor": 8}
    loops = [two_at_once, left_with_the_last_batch]
    for loop in loops:
        plainly(loop, shuffled_by_its_own, **given)
    apply(*MORE)
    all_seen(loops, [shuffled_by_its_own], None, **given)


@pytest.mark.parametrize("build", [shuffled, shuffled_by_its_own, weighted, in_buckets])
def test_workers_that_were_taken_away(apply, build) -> None:
    for loop in LOOPS:
        plainly(loop, build, num_workers=2)
    apply(*NONE)
    assert build(in_memory(), num_workers=2).num_workers == 0
    all_seen(LOOPS, [build], in_memory(), num_workers=2)


def test_a_script_s_own_lasting_workers_have_one_iterator_as_ever(apply, clones) -> None:
    given = {"num_workers": 1, "persistent_workers": True}
    expected = plainly(two_at_once_or_less, shuffled, **given)
    for choice in [MORE, "persistent-workers", "recycled-batches", "device-prefetch"]:
        apply(*named(choice))
    assert open_loops.seen(two_at_once_or_less, shuffled, **given) == expected


def two_at_once_or_less(loader):
    for one, other in zip(loader, loader, strict=False):
        yield open_loops.numbers(one), open_loops.numbers(other)
    yield [open_loops.numbers(batch) for batch in loader]


def test_an_iterator_that_was_begun_before_the_end_of_it_all_goes_on(apply) -> None:
    patch = apply(*LASTING)
    loader = shuffled(open_loops.Squares())
    iterator = iter(loader)
    patch.undo()
    assert sorted(index for _, indices in iterator for index in indices.tolist()) == list(range(open_loops.COUNT))
