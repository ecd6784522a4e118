"""Running a script with redirected writes, and holding the machine against what it was before."""

from __future__ import annotations

import hashlib
import os
import tempfile
import textwrap
from pathlib import Path

import psutil
from waiting import PATIENCE_SECONDS, comes_true

from hotlap.measure.order import Order
from hotlap.measure.trial import Trial, Trials

MARK = f"hotlap-redirect-{os.getpid()}"


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        about = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path)] = (about.st_mode, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, content)
    return found


def run(server: Trials, project: Path, text: str, **wishes: object) -> Trial:
    """Run it, and hold the real tree, /dev/shm and the processes against what they were before."""
    (project / "train.py").write_text(textwrap.dedent(text))
    order = {"limit_seconds": PATIENCE_SECONDS, "watched": False, **wishes}
    before, shm = tree(project.parent), set(os.listdir("/dev/shm"))
    trial = server.run(Order(name=str(project / "train.py"), cwd=str(project), **order))
    assert tree(project.parent) == before, f"a trace was left\n{trial.ending}\n{trial.log}"
    left = set(os.listdir("/dev/shm")) - shm
    assert comes_true(lambda: not left & set(os.listdir("/dev/shm"))), left  # other tests' are there for a moment
    assert not [p for p in psutil.process_iter(["cmdline"]) if MARK in " ".join(p.info["cmdline"] or [])]
    assert not list(Path(tempfile.gettempdir()).glob(f"*{MARK}*")) and not list(Path.home().glob(f"*{MARK}*"))
    return trial
