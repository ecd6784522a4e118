"""What is forked where torch is loaded leaves as what python starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from warm import Warm


@pytest.mark.parametrize(
    "script",
    [
        "import os, sys; print(sys.argv, __name__, __file__, os.getcwd(), sys.path[0], sys.stdin.read())",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "raise SystemExit",
        "import atexit; atexit.register(print, 'at exit'); print('body')",
        "import os; os._exit(7)",
        "import os; os.kill(os.getpid(), 9)",
        "import os; print(os.environ['A_WORD'])",
    ],
)
def test_it_leaves_as_python_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm: Warm, script: str) -> None:
    monkeypatch.setenv("A_WORD", "said")
    path = tmp_path / "train.py"
    path.write_text(script)
    done = warm.run_script(path, "--rate", "1", cwd=tmp_path)
    command = [sys.executable, str(path), "--rate", "1"]
    plain = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_an_error_is_shown_and_the_next_one_starts_afresh(tmp_path: Path, warm: Warm) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys, torch\nassert not hasattr(torch, 'mine')\ntorch.mine = 1\nraise ValueError('wrong')")
    for _ in range(2):
        done = warm.run_script(path, cwd=tmp_path)
        assert done.returncode == 1 and done.stderr.endswith("ValueError: wrong\n"), done.stderr


def test_it_ends_although_another_process_holds_its_input(tmp_path: Path) -> None:
    """As a loader's worker does that was forked meanwhile and has not been sent home."""
    with Warm() as python:
        (tmp_path / "said.py").write_text("print('here')")
        assert python.run_script(tmp_path / "said.py", cwd=tmp_path).stdout == "here\n"
        holder = os.fork()
        if holder == 0:
            signal.pause()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
