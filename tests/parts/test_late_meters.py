"""Meters that do their sums when somebody looks: whoever looks, in whatever way, sees what `.item()` would have given.
The CPU stands in for a device."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from hotlap.parts import late_meters, late_reads
from hotlap.parts.late_meters import tell_later
from hotlap.parts.late_reads import read_later


class Meter:
    """Of the kind that scripts have."""

    name = "loss"

    def __init__(self) -> None:
        self.val = self.sum = self.count = 0

    def update(self, val: Any, n: int = 1) -> None:
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count

    def __str__(self) -> str:
        return f"{self.avg:.17g} of {self.count}"

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


class Slotted:
    __slots__ = ("sum",)

    def __init__(self) -> None:
        self.sum = 0

    def update(self, val: Any, n: int = 1) -> None:
        self.sum += val * n


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many numbers were read at once, each time."""
    found: list[int] = []
    fetch = late_reads._fetch
    monkeypatch.setattr(late_reads, "DEVICES", {"cpu"})
    monkeypatch.setattr(late_reads, "_fetch", lambda values: (found.append(len(values)), fetch(values))[1])
    return found


def told(meter: Any, count: int = 5) -> Any:
    torch.manual_seed(0)
    for number in range(count):
        tell_later(meter, "update", read_later(torch.rand(())), n=number + 1)
    return meter


def expected(count: int = 5) -> Meter:
    torch.manual_seed(0)
    meter = Meter()
    for number in range(count):
        meter.update(torch.rand(()).item(), n=number + 1)
    return meter


LOOKS: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda meter: meter.avg,
    "all of them": vars,
    "its dict": lambda meter: dict(meter.__dict__),
    "as text": str,
    "its length": len,
    "whether it is equal": lambda meter: meter == expected(),
    "whether it has one": lambda meter: hasattr(meter, "avg"),
    "names": lambda meter: "avg" in dir(meter),
    "a copy": lambda meter: vars(copy.copy(meter)),
    "a deep copy": lambda meter: (type(copy.deepcopy(meter)), vars(copy.deepcopy(meter))),
    "pickled": lambda meter: (type(pickle.loads(pickle.dumps(meter))), vars(pickle.loads(pickle.dumps(meter)))),
    "its class": lambda meter: (meter.__class__, isinstance(meter, Meter), type(meter)),
    "one more": lambda meter: (meter.update(3.0), meter.sum, meter.val),
    "set": lambda meter: (setattr(meter, "sum", 1), vars(meter)),
    "deleted": lambda meter: (delattr(meter, "val"), vars(meter)),
}


@pytest.mark.parametrize("how", LOOKS)
def test_whoever_looks_sees_all_of_it(how: str, waits: list[int]) -> None:
    meter = told(Meter())
    assert not waits, "nobody has looked"
    assert LOOKS[how](meter) == LOOKS[how](expected())
    assert type(meter) is Meter and waits and waits[0] == 5, "one wait for all"


def test_told_again_after_a_look(waits: list[int]) -> None:
    meter = told(Meter())
    assert meter.count == 15
    assert told(meter).count == 30 and sum(waits) == 10


@pytest.mark.parametrize("meter", [Slotted(), type("Sub", (Meter,), {})()])
def test_unusual_objects_are_told_at_once(meter: Any, waits: list[int]) -> None:
    assert told(meter).sum == expected().sum and len(waits) == 5


@pytest.mark.parametrize("given", [0, -1, True, torch.ones(()), "x"])
def test_unusual_numbers_are_told_at_once(given: Any, waits: list[int]) -> None:
    def trouble(tell: Callable[[Any, Any], None]) -> tuple[str, Any]:
        meter = Meter()
        try:
            tell(meter, given)
        except Exception as error:
            return repr(error), vars(meter)
        return "", vars(meter)

    late = trouble(lambda meter, n: tell_later(meter, "update", read_later(torch.tensor(0.5)), n))
    assert len(waits) == 1, "at once"
    assert late == trouble(lambda meter, n: meter.update(0.5, n))


def test_attributes_that_sums_change_in_place(waits: list[int]) -> None:
    meter = Meter()
    meter.sum = kept = torch.zeros(())
    told(meter)
    assert kept.item() == pytest.approx(expected().sum) and len(waits) == 5


def test_attributes_with_sums_of_their_own(waits: list[int]) -> None:
    class Seen:
        all = ()

        def __iadd__(self, value: float) -> Seen:
            self.all += (value,)
            return self

    class Outer:
        def __init__(self) -> None:
            self.seen = Seen()

        def update(self, val: float, n: int) -> None:
            self.seen += val

    outer = Outer()
    seen = outer.seen
    told(outer)
    assert len(seen.all) == len(waits) == 5


def test_arguments_of_any_name(waits: list[int]) -> None:
    class Named:
        total = 0.0

        def update(self, name: float, meter: int) -> None:
            self.total += name * meter

    named = Named()
    tell_later(named, "update", name=read_later(torch.ones(())), meter=3)
    assert not waits and named.total == 3.0


def test_plain_numbers_wait_for_nobody(waits: list[int]) -> None:
    meter = told(Meter())
    tell_later(meter, "update", 2.0)
    assert waits[0] == 5 and type(meter) is Meter and meter.val == 2.0


def test_neither_host_nor_device_fills_up(waits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_meters, "_MOST", 2)
    assert vars(told(Meter())) == vars(expected()) and [one for one in waits if one] == [2, 2, 1]


def test_a_dict_that_somebody_kept_or_shares(waits: list[int]) -> None:
    meter, twin = Meter(), Meter()
    kept = vars(meter)
    told(meter)
    assert kept == vars(expected()) and len(waits) == 5
    del kept
    twin.__dict__ = meter.__dict__
    told(meter)
    assert twin.count == 30
    del twin
    assert told(meter).count == 45 and waits[-1] == 5, "its own again"


def test_no_class_is_told_of_another(waits: list[int]) -> None:
    kinds: list[str] = []

    class Known(type):
        def __init__(cls, name: str, *_: Any) -> None:
            kinds.append(name)

    class Heard:
        total = 0.0

        def __init_subclass__(cls) -> None:
            kinds.append(cls.__name__)

        def update(self, val: float, n: int) -> None:
            self.total += val * n

    class Listed(metaclass=Known):
        total = 0.0
        update = Heard.update

    assert told(Heard()).total == told(Listed()).total == expected().sum
    assert kinds == ["Listed"] and len(waits) == 10


def test_another_thread_sees_all_of_it_or_waits(waits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    meter, seen, fetch = told(Meter()), [], late_reads._fetch
    other = threading.Thread(target=lambda: seen.append((meter.count, meter.val)))

    def looked_at_meanwhile(values: Any) -> None:
        other.start()
        other.join(0.2)  # the device takes its time
        fetch(values)

    monkeypatch.setattr(late_reads, "_fetch", looked_at_meanwhile)
    assert meter.count == 15
    other.join()
    assert seen == [(15, expected().val)]


def test_an_interrupt_loses_nothing(waits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    meter, fetch = told(Meter()), late_reads._fetch

    def interrupted(values: Any) -> None:
        monkeypatch.setattr(late_reads, "_fetch", fetch)
        raise KeyboardInterrupt

    monkeypatch.setattr(late_reads, "_fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        str(meter)
    assert vars(meter) == vars(expected()) and type(meter) is Meter


def test_an_error_is_raised_once_and_the_rest_is_done(waits: list[int]) -> None:
    meter = told(Meter(), 1)
    tell_later(meter, "update", read_later(torch.ones(())), 1, m=1)
    tell_later(meter, "update", read_later(torch.ones(())), n=2)
    with pytest.raises(TypeError):
        str(meter)
    assert meter.count == 3 and type(meter) is Meter


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_process_need_not_ask_the_device(waits: list[int]) -> None:
    meter = told(Meter())
    child = os.fork()
    if child == 0:
        os._exit(0 if 5 in waits and meter.count == 15 and told(meter, 1).count == 16 else 1)
    assert os.waitpid(child, 0)[1] == 0 and meter.count == 15


AT_THE_END = """
import os, torch
from hotlap.parts import late_reads
from hotlap.parts.late_meters import tell_later
late_reads.DEVICES = {"cpu"}
class Meter:
    sum = 0
    def update(self, val):
        self.sum += val
class Log:
    def __init__(self, meter):
        self.meter = meter
    def __del__(self, write=os.write):
        write(1, b"%d" % self.meter.sum)
meter = Meter()
log = Log(meter)
tell_later(meter, "update", late_reads.read_later(torch.ones(())))
"""


def test_looked_at_when_python_is_half_gone() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=True)
    assert ended.stdout == "1", ended.stderr
