"""Without namespaces still: no process and no shared memory stays, no network but loopback, and how it is chosen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest
from redirected import MARK, run
from waiting import PATIENCE_SECONDS, comes_true

from hotlap.errors import HotlapError
from hotlap.measure import landlock, sandbox
from hotlap.measure.order import Order
from hotlap.measure.trial import Trials

pytestmark = pytest.mark.skipif(landlock.available() is not None, reason="no Landlock here")

DAEMON = f"""
import os, subprocess, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)', {MARK!r}])
    os._exit(0)
stubborn = 'import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)'
subprocess.Popen([sys.executable, '-c', stubborn, {MARK!r}])
time.sleep(0.5)
"""


@pytest.mark.parametrize("then", ["", "os._exit(3)", "os.kill(os.getpid(), 9)", "time.sleep(600)"])
def test_no_process_stays(server: Trials, project: Path, then: str) -> None:
    serving = server._serving()
    trial = run(server, project, DAEMON + then, limit_seconds=3.0 if "600" in then else PATIENCE_SECONDS)
    assert trial.ending == "finished" if not then else not trial.good
    assert server._serving() is serving, "it was ended by the server, not together with it"


def test_the_tuner_dies_and_nothing_stays(project: Path) -> None:
    (project / "train.py").write_text(DAEMON + "print('up', flush=True); time.sleep(600)")
    code = f"""
from hotlap.measure.order import Order
from hotlap.measure.trial import Trials
Trials().run(Order(name={str(project / "train.py")!r}, cwd={str(project)!r}, watched=False, sandbox="redirect"))
"""
    tuner = subprocess.Popen([sys.executable, "-c", code])

    def marked() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if MARK in (p.info["cmdline"] or [])]

    assert comes_true(lambda: len(marked()) == 2)
    tuner.kill()
    tuner.wait()
    assert comes_true(lambda: not marked())
    for left in Path(tempfile.gettempdir()).glob(f"hotlap-trials-{tuner.pid}-*"):
        shutil.rmtree(left, ignore_errors=True)  # another test's server may sweep it too


def test_shared_memory_goes_and_that_of_others_stays(server: Trials, project: Path) -> None:
    """Named segments, semaphores and torch's own, left behind by force; a stranger makes one of each meanwhile."""
    theirs = [Path("/dev/shm", name) for name in (f"torch_1_{os.getpid()}_0", f"psm_{MARK}", f"sem.mp-{MARK}")]
    code = f"""
    import multiprocessing, os, subprocess, torch
    from multiprocessing import resource_tracker
    from multiprocessing.shared_memory import SharedMemory
    kept = SharedMemory(create=True, size=64), multiprocessing.get_context("spawn").Lock()
    torch.multiprocessing.set_sharing_strategy("file_system")
    tensor = torch.ones(9999).share_memory_()
    print(len([n for n in os.listdir("/dev/shm") if n.startswith(("psm_", "sem.mp-", "torch_"))]), flush=True)
    os.kill(resource_tracker._resource_tracker._pid, 9)  # it would tidy up
    subprocess.run(["touch", *{[str(path) for path in theirs]!r}])  # not Python's: as a stranger's would be
    os._exit(0)
    """

    def named() -> set[Path]:  # a browser or another program may put its own there at any moment
        return {path for kind in ("psm_*", "sem.mp-*", "torch_*") for path in Path("/dev/shm").glob(kind)}

    before = named()
    (project / "train.py").write_text(textwrap.dedent(code))
    order = Order(name=str(project / "train.py"), cwd=str(project), watched=False, limit_seconds=PATIENCE_SECONDS)
    try:
        trial = server.run(order)
        assert int(trial.log.split()[0]) >= 3, trial.log
        left = named() - before
        assert left >= set(theirs)
        assert comes_true(lambda: not (left - set(theirs)) & named()), left  # other tests' are there for a moment
    finally:
        for path in theirs:
            path.unlink(missing_ok=True)


NETWORK = """
import socket
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(("localhost", server.getsockname()[1]), timeout=60)
one, other = socket.socketpair()
print("loopback works")
for host in ("192.0.2.1", "data.example.org", "data.example.org"):
    try:
        socket.create_connection((host, 80), timeout=60)
    except OSError as error:
        print("outside:", error)
print(socket.socket().connect_ex(("192.0.2.2", 80)))
"""


def test_no_network_but_loopback(server: Trials, project: Path) -> None:
    trial = run(server, project, NETWORK)
    assert trial.log == "loopback works\n" + 3 * "outside: [Errno 101] Network is unreachable\n" + "101\n"
    assert trial.hosts == ["192.0.2.1", "data.example.org", "192.0.2.2"]


@pytest.mark.skipif(sandbox.available() is not None, reason="no namespaces here")
def test_hosts_are_noted_in_a_namespace_too(server: Trials, project: Path) -> None:
    trial = run(server, project, NETWORK, sandbox="namespace")
    assert "loopback works" in trial.log
    assert trial.hosts == ["192.0.2.1", "data.example.org", "192.0.2.2"]


def test_a_watched_trial_trains(server: Trials, project: Path) -> None:
    from test_trials import LOOP

    trial = run(server, project, LOOP.format(epochs=9, body="torch.save(model, 'm.pt')"), watched=True, steps=20)
    assert (trial.ending, trial.run.steps) == ("enough", 20)


def test_choosing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTLAP_SANDBOX", raising=False)
    monkeypatch.setattr(sandbox, "available", lambda *_: None)
    assert sandbox.choose() == ("namespace", "")
    monkeypatch.setattr(sandbox, "available", lambda *_: "unshare: not permitted")
    assert sandbox.choose() == ("redirect", "unshare: not permitted")
    monkeypatch.setattr(landlock, "abi", lambda: 0)
    assert sandbox.choose() == ("none", "unshare: not permitted; the kernel has no Landlock")
    for wanted in ("redirect", "namespace", "both"):
        monkeypatch.setenv("HOTLAP_SANDBOX", wanted)
        with pytest.raises(HotlapError, match=f"HOTLAP_SANDBOX={wanted}"):
            sandbox.choose()
    monkeypatch.setenv("HOTLAP_SANDBOX", "none")
    assert sandbox.choose() == ("none", "HOTLAP_SANDBOX=none")


def test_unprotected_is_said_and_asked(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    from hotlap.measure.tune import Wishes, tune
    from hotlap.observe.launch import Target

    (project / "train.py").write_text("pass")
    monkeypatch.setenv("HOTLAP_SANDBOX", "none")
    with pytest.raises(HotlapError, match=r"writes, changes or deletes would really be.*--accept-writes"):
        tune(Target(str(project / "train.py")), [], [], Wishes(), None)  # type: ignore[arg-type]
