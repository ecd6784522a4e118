"""Tunings that are killed leave no trace: bench/killed.py in small, and that it would see each kind of trace."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS, comes_true

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import killed

pytestmark = [pytest.mark.alone, pytest.mark.skipif(not killed.kinds(), reason="trials cannot be protected here")]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[killed.Place]:
    monkeypatch.setattr(killed, "GRACE_SECONDS", PATIENCE_SECONDS)
    made = killed.Place()
    yield made
    made.close()


def test_no_trace_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is killed after a third of what the first took: long before its end, also where the first was slow."""
    monkeypatch.setattr(killed, "GRACE_SECONDS", PATIENCE_SECONDS)
    lines: list[str] = []
    assert killed.check(3, "1s", 0.5, seed=94, say=lines.append, epochs=4) == [], lines
    assert any(" SIG" in line for line in lines), lines


def test_told_to_end_it_takes_its_folder_along(place: killed.Place) -> None:
    command = [sys.executable, "-m", "hotlap", "tune", "train.py", str(place.root / "elsewhere"), "1000000"]
    with open(place.root / "output.txt", "w") as output:
        tuner = subprocess.Popen(
            command, cwd=place.project, env=place.environment(killed.kinds()[0]), stdout=output, stderr=output
        )
        assert comes_true(lambda: list(place.temp.glob("hotlap-trials-*/trial-*/progress")))
        tuner.terminate()
        assert tuner.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM
    assert place.traces(was_killed=True) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", ""),
        ("open('model.pt', 'ab').write(b'x')", "changed: "),
        ("os.utime('model.pt', (1, 1))", "changed: "),
        ("os.chmod('photos/0.png', 0o600)", "changed: "),
        ("os.unlink('model.pt')", "gone: "),
        ("os.mkdir('checkpoints')", "new: "),
        ("open(os.path.expanduser('~/log.txt'), 'w')", "new: "),
        ("open('../elsewhere/log.txt', 'a').write('x')", "changed: "),
        ("tempfile.mkdtemp()", "temporary: "),
        ("os.mkdir(tempfile.gettempdir() + f'/hotlap-trials-{os.getpid()}-x')", "temporary: hotlap-trials-"),
        ("subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])", "is left: "),
        ("open('/dev/shm/psm_' + os.environ['HOTLAP_KILLED_MARK'], 'w')", "shared memory: psm_"),
        ("open('hotlap.toml', 'w').write('version = ')", "hotlap.toml cannot be read"),
        ("sys.exit('no')", "it ended with 1: no"),
        ("open('hotlap.toml', 'w').write('version = 1'); os.mkdir('hotlap-report')", ""),
    ],
)
def test_each_kind_of_trace_is_seen(place: killed.Place, monkeypatch, code: str, expected: str) -> None:
    if expected.startswith(("is left", "shared memory")):
        monkeypatch.setattr(killed, "GRACE_SECONDS", 0.0)  # nothing will come of waiting
    tuner = [sys.executable, "-c", textwrap.dedent(f"import os, subprocess, sys, tempfile; {code}")]
    try:
        _, traces = killed.Tuning(killed.kinds()[0], None, tuner).run(place, 0.0)
    finally:
        Path("/dev/shm", f"psm_{place.mark}").unlink(missing_ok=True)
    assert len(traces) == bool(expected) and all(expected in trace for trace in traces), traces


def test_only_the_folder_of_one_that_was_killed_outright_may_wait(place: killed.Place) -> None:
    code = 'mkdir "$TMPDIR/hotlap-trials-$$-x"; exec sleep 600'  # a shell starts in no time
    for way, is_left in (("SIGTERM", True), ("SIGKILL", False)):
        place.outright.clear()
        ending, traces = killed.Tuning(killed.kinds()[0], way, ["sh", "-c", code]).run(place, 1.5)
        assert ending.startswith(way)
        for path in place.temp.iterdir():
            path.rmdir()
        # SIGTERM lets a tuner tidy up, so what is left then is a trace
        assert bool(traces) == is_left, traces
