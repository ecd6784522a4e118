"""What a ledger keeps, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from hotlap.observe.device_clock import DeviceClock
from hotlap.observe.events import DRAW, UPDATE, Event
from hotlap.observe.ledger import Ledger, read_events


def test_keeps_the_last_ones_only() -> None:
    ledger = Ledger(capacity=3)
    for number in range(5):
        assert ledger.note(DRAW, 7, number, number + 0.5) == number
    assert ledger.events() == [Event(DRAW, 7, float(n), n + 0.5) for n in (2, 3, 4)]


def test_later_words_reach_only_what_is_still_there() -> None:
    ledger = Ledger(capacity=2)
    for number in range(3):
        ledger.note(UPDATE, -1, number, number)
    ledger.ended(0, 99.0)  # its place belongs to event 2 by now
    ledger.marked(0, 1, 99.0)
    ledger.ended(1, 8.0)
    ledger.marked(2, 0, 0.25)
    assert ledger.events() == [Event(UPDATE, -1, 1.0, 8.0), Event(UPDATE, -1, 2.0, 2.0, 0.25, None)]


def test_the_file_outlives_a_kill_and_has_a_fixed_size(tmp_path: Path) -> None:
    path = tmp_path / "events"
    code = (
        "import os, signal, sys; from hotlap.observe.ledger import Ledger; ledger = Ledger(sys.argv[1], capacity=64)\n"
        "for number in range(200): ledger.note(0, 3, number, number + 1)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    events = read_events(str(path))
    assert [event.start for event in events] == list(range(136, 200))
    assert os.path.getsize(path) < 64 * 64
    assert read_events(str(tmp_path / "nothing")) == []


class FakeEvent:
    """Time on a device that only moves when told to."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.at = cuda, 0.0

    def record(self) -> None:
        self.cuda.recorded += 1
        self.at = self.cuda.queue_end

    def query(self) -> bool:
        return self.at <= self.cuda.now

    def synchronize(self) -> None:
        self.cuda.now = max(self.cuda.now, self.at)

    def elapsed_time(self, other: FakeEvent) -> float:
        if not other.query():
            raise RuntimeError("not ready")
        return (other.at - self.at) * 1e3


class FakeCuda:
    def __init__(self) -> None:
        self.now = self.queue_end = 0.0
        self.recorded = self.made = 0
        self.capturing = False

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def Event(self, enable_timing: bool) -> FakeEvent:
        self.made += 1
        return FakeEvent(self)


def clocked() -> tuple[FakeCuda, Ledger, DeviceClock]:
    cuda, ledger = FakeCuda(), Ledger(capacity=4096)
    clock = DeviceClock(ledger)
    clock._cuda = cuda
    return cuda, ledger, clock


def test_marks_are_read_late_and_without_a_wait() -> None:
    cuda, ledger, clock = clocked()
    for number in range(200):  # the device runs 50 events behind the host
        start = clock.mark()
        cuda.queue_end += 1.0
        clock.put(ledger.note(UPDATE, 1, number, number + 1), start, clock.mark())
        cuda.now = max(0.0, cuda.queue_end - 50)
    before = cuda.now
    clock.settle()
    assert cuda.now == before
    read = [event for event in ledger.events() if event.device_end is not None]
    assert 100 < len(read) <= 150
    clock.settle(wait=True)
    assert [event.device_end - event.device_start for event in ledger.events()] == [1.0] * 200
    assert [event.device_start for event in ledger.events()] == [float(n) for n in range(200)]
    assert cuda.made < 200 < cuda.recorded  # marks that were read serve again


def test_nested_marks_keep_their_own_times() -> None:
    cuda, ledger, clock = clocked()
    outer = clock.mark()
    cuda.queue_end = 2.0
    inner = clock.mark()
    cuda.queue_end = 5.0
    clock.put(ledger.note(DRAW, 0, 0, 1), inner, clock.mark())
    cuda.queue_end = cuda.now = 9.0
    clock.settle(wait=True)  # the outer event is still under way
    clock.put(ledger.note(UPDATE, 0, 0, 2), outer, clock.mark())
    clock.settle(wait=True)
    inside, outside = ledger.events()
    assert (inside.device_start, inside.device_end) == (2.0, 5.0)
    assert (outside.device_start, outside.device_end) == (0.0, 9.0)


def test_no_mark_while_a_graph_is_captured() -> None:
    cuda, _, clock = clocked()
    cuda.capturing = True
    assert clock.mark() is None and cuda.recorded == 0
