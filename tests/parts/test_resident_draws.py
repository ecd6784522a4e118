"""What drawing a kept batch does besides: generators move as for python alone, and those who listen hear of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_resident_sharing import Cubes, in_force
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from hotlap.observe.joints import Joints
from hotlap.parts import resident_loader
from hotlap.parts.resident_iterators import Serving
from hotlap.parts.resident_loader import serves

LOADERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "drop_last": {"shuffle": True, "drop_last": True},
    "no rest": {"shuffle": True, "batch_size": 61},
    "random, own generator": {"shuffle": True, "generator": True},
    "workers": {"shuffle": True, "num_workers": 2, "generator": True},
    "lasting": {"shuffle": True, "num_workers": 1, "persistent_workers": True, "generator": True},
    "lasting, drop_last": {"shuffle": True, "num_workers": 1, "persistent_workers": True, "drop_last": True},
}


class Odd(RandomSampler):
    """Another order each time it is told to, and numbers that are drawn along the way."""

    epoch = 0

    def __iter__(self) -> Iterator[int]:
        for number in super().__iter__():
            torch.rand(1)
            yield (number + self.epoch) % len(self.data_source)


def epochs(options: dict[str, Any], stops: tuple[int, ...], custom: bool = False) -> list[Any]:
    """The batches of some epochs, and where generators are after each. At a stop an epoch is left."""
    torch.manual_seed(2)
    own, data = torch.Generator().manual_seed(3), Cubes()
    options = {"batch_size": 8} | options | ({"generator": own} if "generator" in options else {})
    sampler = Odd(data, generator=own) if custom else None
    loader, other = DataLoader(data, **options, sampler=sampler), DataLoader(data, 8, shuffle=True)
    found: list[Any] = []
    for stop in stops:
        if sampler is not None:
            sampler.epoch = stop
        for number, ((x, y), (_, others)) in enumerate(zip(loader, other, strict=False), 1):
            found.append((x.tolist(), y.tolist(), others.tolist(), torch.get_rng_state().tolist()))
            found.append(own.get_state().tolist())
            if number == stop:
                break
        found.append((torch.rand(1).item(), own.get_state().tolist()))
    return [*found, serves(loader)]


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_generators_are_where_they_would_be_after_each_batch(options: dict[str, Any]) -> None:
    stops = (0, 0, 3, 0, 1, 0)
    *expected, _ = epochs(options, stops)
    with in_force(0) as joints:
        *found, is_served = epochs(options, stops)
    assert found == expected and is_served and joints.withdrawn == []


def test_a_sampler_of_the_scripts_own_is_walked_through() -> None:
    *expected, _ = epochs({}, (0, 2, 0), custom=True)
    with in_force(0):
        *found, is_served = epochs({}, (0, 2, 0), custom=True)
    assert found == expected and is_served


@pytest.mark.parametrize("workers", [0, 2])
def test_every_draw_is_heard_once_profiled_or_not(workers: int) -> None:
    heard: list[Any] = []

    def listen(proceed: Any, iterator: Any) -> Any:
        heard.append(iterator)
        return proceed(iterator)

    watching = Joints()
    with in_force(0):
        watching.batch_drawn.subscribe(listen)
        loader = DataLoader(Cubes(), 8, num_workers=workers)
        assert [len(list(loader)) for _ in range(3)] == [8] * 3
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            assert len(list(loader)) == 8
        watching.batch_drawn.unsubscribe(listen)
        list(loader)
    assert len(heard) == 4 * 9 and isinstance(heard[-1], Serving) and heard[-1]._num_yielded == 8
    told = [one.count for one in profiler.key_averages() if "enumerate(DataLoader)" in one.key]
    assert told == [9]


@pytest.mark.parametrize("workers", [0, 1])
def test_how_often_a_data_set_is_glanced_at(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workers before each batch, since the script may change it at any time; else when a sample is checked."""
    glances: list[Any] = []
    glance = resident_loader.glance
    monkeypatch.setattr(resident_loader, "glance", lambda *args: [*glance(*args), glances.append(args)])
    loader = DataLoader(Cubes(), 1, num_workers=workers, persistent_workers=workers > 0)
    with in_force(0):
        list(loader)
        glances.clear()
        assert len(list(loader)) == 61 and serves(loader)
    assert len(glances) >= 61 if not workers else 1 <= len(glances) <= 1 + 61 // 16


def test_a_sampler_over_more_than_the_data_set_has() -> None:
    """What lies outside is the data set's own to refuse."""
    loader = DataLoader(Cubes(), 8, sampler=SequentialSampler(range(63)))
    expected = [y.tolist() for _, y in loader]
    with in_force(0) as joints:
        assert [[y.tolist() for _, y in loader] for _ in range(2)] == [expected] * 2
    assert "outside the data set" in joints.withdrawn[0]


def test_what_is_given_up_in_the_middle_of_an_epoch_goes_on_in_the_same_order() -> None:
    def given() -> list[Any]:
        torch.manual_seed(6)
        data, found = Cubes(), []
        loader = DataLoader(data, 8, shuffle=True)
        for _ in range(3):
            for number, (_, y) in enumerate(loader):
                found.append(y.tolist())
                data.seconds = 1e-9 * (number // 3)
        return found

    expected = given()
    with in_force(0) as joints:
        assert given() == expected
    assert "in the middle of an epoch" in joints.withdrawn[0]
