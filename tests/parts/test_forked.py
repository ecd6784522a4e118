"""Forked copies of the training: whatever they do, and however scarce files and processes are, the script goes on."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from hotlap.parts import forked
from hotlap.parts.forked import NoAnswer, asked, why_no_fork
from hotlap.parts.worker_room import sample_bytes


@pytest.fixture
def many_files() -> Iterator[None]:
    """More open than `select` can tell apart."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    yield
    for file in files:
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_answer(many_files) -> None:
    assert asked(lambda: os.getppid(), 20) == os.getpid()


def test_nothing_leaves_the_copy(capfd: pytest.CaptureFixture[str]) -> None:
    """Neither an error of its own, nor a word, nor what the script had not written yet."""
    print("pending", end="")

    def fails() -> None:
        print("again", flush=True)
        raise KeyboardInterrupt

    with pytest.raises(NoAnswer):
        asked(fails, 20)
    print(flush=True)
    assert capfd.readouterr().out == "pending\n"


def test_what_the_script_left_behind_is_the_scripts_to_end(tmp_path) -> None:
    """A loader's iterator that is found by the collector would tell the script's workers to go."""

    class Left:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            os.symlink("nowhere", tmp_path / str(os.getpid()))

    gc.disable()
    try:
        Left()
        gc.enable()
        assert asked(lambda: len([[] for _ in range(100_000)]), 20) == 100_000
    finally:
        gc.enable()
    gc.collect()
    assert [one.name for one in tmp_path.iterdir()] == [str(os.getpid())]


def test_a_long_answer() -> None:
    assert asked(lambda: bytes(range(256)) * 20_000, 20) == bytes(range(256)) * 20_000


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="files cannot be listed")
def test_files_that_are_open_stay_where_they_are(tmp_path) -> None:
    """What the copy reads is not missing in the script, and what it writes does not stand there."""
    (tmp_path / "data").write_bytes(bytes(range(100)))
    with open(tmp_path / "data", "rb", 0) as reading, open(tmp_path / "log", "ab", 0) as writing:
        reading.read(10)
        writing.write(b"script")
        assert asked(lambda: (reading.read(20), writing.write(b"copy")), 20)[0] == bytes(range(10, 30))
        assert reading.read(1) == bytes([10])
        assert (tmp_path / "log").read_bytes() == b"script"


def test_signals_for_the_group_are_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: os._exit(9))
    try:
        assert asked(lambda: os.kill(os.getpid(), signal.SIGUSR1) or "alive", 20) == "alive"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("missing", ["pipe", "fork"])
def test_without_files_or_processes_there_is_no_answer(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "Too many")

    monkeypatch.setattr(os, missing, refused)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NoAnswer, match="Too many"):
        asked(lambda: 1, 20)
    assert sample_bytes([1], lambda sample: 8) == 0
    assert len(os.listdir("/proc/self/fd")) == files


def test_where_python_is_going_down_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise RuntimeError("can't fork at interpreter shutdown")

    monkeypatch.setattr(os, "fork", refused)
    with pytest.raises(NoAnswer, match="at interpreter shutdown"):
        asked(lambda: 1, 20)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_a_script_that_minds_its_children_gets_none_of_ours(handler) -> None:
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        with pytest.raises(NoAnswer, match="minds its child processes"):
            asked(lambda: 1, 20)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_loaders_own_handler_is_none_of_the_scripts() -> None:
    from torch.utils.data._utils import signal_handling

    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    was_set, signal_handling._SIGCHLD_handler_set = signal_handling._SIGCHLD_handler_set, False
    try:
        signal_handling._set_SIGCHLD_handler()
        assert why_no_fork() is None
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal_handling._SIGCHLD_handler_set = False
        signal_handling._set_SIGCHLD_handler()
        assert why_no_fork() is not None
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal_handling._SIGCHLD_handler_set = was_set


def test_a_child_that_was_waited_for_by_others_is_no_error() -> None:
    child = forked.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    forked.end(child)


def test_nobody_waits_for_the_copy_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large process takes a while for that; it is seen to all the same."""
    may_end, ended = threading.Event(), threading.Event()
    end = forked.end

    def slowly(child: int) -> None:
        may_end.wait()
        end(child)
        ended.set()

    monkeypatch.setattr(forked, "end", slowly)
    child = asked(os.getpid, 20)
    may_end.set()
    assert ended.wait(20)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_where_no_thread_can_be_started_the_copy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    child = asked(os.getpid, 20)
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_warning_that_was_shown_is_not_shown_again() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        warnings.simplefilter("ignore", DeprecationWarning)  # as Python has it
        for _ in range(3):
            warnings.warn("once is enough", UserWarning, stacklevel=1)
            assert asked(lambda: 1, 20) == 1
    assert len(shown) == 1


def test_the_filters_that_python_starts_with() -> None:
    """They name modules by strings, where those of `warnings` are patterns; and newer Pythons warn of forks."""
    script = (
        "import sys; sys.version_info = (3, 12, 0); from hotlap.parts.forked import asked; print(asked(lambda: 7, 20))"
    )
    told = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert told.stdout == "7\n", told.stderr
