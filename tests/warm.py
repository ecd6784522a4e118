"""`hotlap`, or a script, started where torch is loaded already: loading it, and what its first optimizer wants, takes
longer than most scripts here train. A process of its own all the same, forked from one that never computes. What comes
before torch is there is not seen this way: for that, start python."""

from __future__ import annotations

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

_leave = os._exit  # hotlap puts its own in its place


class Warm:
    """Use as a context manager."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            with self._server:
                self._server.kill()  # a loader worker of some test may hold its input open: it would wait for ever

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """`hotlap` with these arguments."""
        return self._run("", arguments, cwd)

    def run_script(self, script: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """As `python` would, with nothing of hotlap's in it."""
        return self._run(str(script), arguments, cwd)

    def _run(self, script: str, arguments: Sequence[str], cwd: Path) -> subprocess.CompletedProcess[str]:
        if self._server is None:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            self._server = subprocess.Popen([sys.executable, __file__], **pipes)
        assert self._server.stdin is not None and self._server.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            said = [Path(folder, "out"), Path(folder, "err")]
            asked = [script, arguments, str(cwd), [str(path) for path in said], dict(os.environ)]
            print(json.dumps(asked), file=self._server.stdin, flush=True)
            code = int(self._server.stdout.readline())
            return subprocess.CompletedProcess(arguments, code, *(path.read_text() for path in said))


def _serve() -> NoReturn:
    import torch._dynamo

    from hotlap import catalogue, cli, drive  # noqa: F401  commands load these when they need them
    from hotlap.measure import profile
    from hotlap.report import terminal  # noqa: F401

    assert not torch.cuda.is_initialized(), "what is forked from here would hang"
    profile.subprocess = SimpleNamespace(Popen=_Forked)  # type: ignore[assignment]
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            script, *rest = json.loads(line)
            _become(script, *rest)
            _run_to_its_end(partial(runpy.run_path, script, run_name="__main__") if script else cli.main)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    _leave(0)


def _become(script: str, arguments: list[str], folder: str, said: list[str], environment: dict[str, str]) -> None:
    os.setsid()
    for number, path in enumerate((os.devnull, *said)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0], sys.argv = os.path.dirname(script) or folder, [script or "hotlap", *arguments]


class _Forked:
    """Of a process that runs `python -c`, what a profile asks; forked from this one, which has not computed either."""

    returncode: int | None = None

    def __init__(self, command: list[str], preexec_fn: Callable[[], object] | None) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _, dash_c, code, *arguments = command
            assert dash_c == "-c", command
            if preexec_fn is not None:
                preexec_fn()
            sys.argv = [dash_c, *arguments]
            _run_to_its_end(lambda: exec(code, {"__name__": "__main__"}))

    def poll(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def _run_to_its_end(program: Callable[[], object]) -> NoReturn:
    """As python leaves, but that nothing is taken apart: with torch loaded that takes a second."""
    status: object = 0
    try:
        program()
    except SystemExit as left:
        status = left.code
        if not isinstance(status, int | None):
            print(status, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    _leave(status if isinstance(status, int) else 0 if status is None else 1)


if __name__ == "__main__":
    _serve()
