"""The private view itself, entered for real, as whoever runs the tests and, where that is root, as nobody too."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hotlap.measure import sandbox

CODE = """
import ctypes, os, sys, tempfile
from hotlap.measure import sandbox
project, scratch, shared, user = sys.argv[1:]
if user == "nobody":
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a process that changed its user owns its own /proc again
os.environ["HOME"] = project
os.chdir(project)
sandbox.enter(scratch, [shared], sandbox.folders_to_protect(project, project + "/train.py"), False)
child = os.fork()  # the first process of the new pid namespace
if child == 0:
    open("new.txt", "w").write("x")
    open("old.txt", "a").write(" and more")
    os.remove("gone.txt")
    os.rename("old.txt", "renamed.txt")
    open(os.path.join(tempfile.gettempdir(), "stray-" + os.path.basename(project)), "w").write("x")
    open("/dev/shm/stray-" + os.path.basename(project), "w").write("x")
    open(shared + "/record", "w").write(open("renamed.txt").read() + f" as process {os.getpid()}")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture
def open_folder():
    """A folder everybody may enter: pytest's own belong to whoever runs it."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(sandbox.available() is not None, reason="no namespaces here")
@pytest.mark.parametrize("user", ["me", "nobody"])
def test_nothing_comes_through_but_the_shared_folder(open_folder: Path, user: str) -> None:
    if user == "nobody" and os.getuid() != 0:
        pytest.skip("only root can become nobody")
    project, scratch, shared = (open_folder / name for name in ("project", "scratch", "shared"))
    for folder in (project, scratch, shared):
        folder.mkdir()
    (project / "old.txt").write_text("as it was")
    (project / "gone.txt").write_text("still here")
    if user == "nobody":
        for path in (project, scratch, shared, *project.iterdir()):
            os.chown(path, 65534, 65534)
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(project), str(scratch), str(shared), user], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (shared / "record").read_text() == "as it was and more as process 1"
    assert sorted(path.name for path in project.iterdir()) == ["gone.txt", "old.txt"]
    assert (project / "old.txt").read_text() == "as it was"
    assert list(scratch.iterdir()) == []
    for place in ("/tmp", "/dev/shm"):
        assert not Path(place, f"stray-{project.name}").exists()


def test_where_it_cannot_be_had_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(1, "unshare: Operation not permitted")

    monkeypatch.setattr(sandbox, "enter", refused)
    assert "not permitted" in (sandbox.available() or "")


def test_writes_that_come_through_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "enter", lambda *_: None)
    assert "came through" in (sandbox.available() or "")
