"""The fork server: torch imported once, trials forked from it in milliseconds.

It never runs a tensor operation and never touches a device: after either, its children would hang. One order a line
on stdin, one answer a line on stdout; trials come one at a time."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Sequence

from hotlap.measure import ending, sandbox
from hotlap.measure.child import run_trial
from hotlap.measure.order import Order
from hotlap.measure.redirect import Redirect, references
from hotlap.observe.launch import Target
from hotlap.records import from_json

_POLL_SECONDS = 0.01
_ENDS = 64  # how often a script may come to the end of its input
_ENDING_SECONDS = 8.0  # for a supervisor to end its trial


def serve() -> None:
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo  # the first optimizer would import it in every trial: more than a second each

    assert not torch.cuda.is_initialized(), "an import touched the device; trials forked from here would hang"
    sandbox.die_with_parent()
    _answer({"ready": True})
    for line in sys.stdin:
        _answer(_supervised(from_json(Order, json.loads(line))))


def _answer(data: object) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def _supervised(order: Order) -> dict[str, object]:
    """Fork a supervisor, which builds the private view and forks the trial in it; wait within the limit."""
    order = dataclasses.replace(order, sandbox=_kind(order))
    if order.sandbox == "redirect":
        references()
    scratch = tempfile.mkdtemp(prefix="view-", dir=os.path.dirname(order.folder))
    started = time.monotonic()
    supervisor = os.fork()
    if supervisor == 0:
        try:
            _supervise(order, scratch)
        finally:
            os._exit(70)
    status = _waited(supervisor, order.limit_seconds)
    if status is None:
        is_asked = order.sandbox != "namespace"  # it has no init whose death ends everything: it does so itself
        if is_asked:
            os.kill(supervisor, signal.SIGTERM)
        if not is_asked or _waited(supervisor, _ENDING_SECONDS) is None:
            os.kill(supervisor, signal.SIGKILL)
            os.waitpid(supervisor, 0)
    shutil.rmtree(scratch, ignore_errors=True)
    return {"status": status, "seconds": time.monotonic() - started}


def _kind(order: Order) -> str:
    return (order.sandbox or sandbox.forced() or "namespace") if order.protected else "none"


def _waited(child: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(code)
        time.sleep(_POLL_SECONDS)
    return None


def _supervise(order: Order, scratch: str) -> None:
    os.setsid()
    if order.sandbox != "namespace":
        _supervise_family(order, scratch)
    sandbox.die_with_parent()
    _log_to(order.folder, order.terminal)
    os.chdir(order.cwd)
    script = order.name if order.is_module else Target(order.name).path
    sandbox.enter(scratch, _shared(order), sandbox.folders_to_protect(order.cwd, script), order.allow_network)
    first = os.fork()
    if first == 0:  # process 1 of its namespace: when it dies, everything in there dies
        sandbox.die_with_parent()
        sandbox.mount_proc()
        trial = os.fork()
        if trial == 0:
            run_trial(order)
        os._exit(_reap_until(trial))
    os._exit(_reap_until(first))


def _supervise_family(order: Order, scratch: str) -> None:
    """Where there are no namespaces."""
    family = ending.Family(order.folder)
    _log_to(order.folder, order.terminal)
    os.chdir(order.cwd)
    trial = os.fork()
    if trial == 0:
        sandbox.die_with_parent()
        ending.note_shared_memory(order.folder)
        if order.sandbox == "redirect" and not Redirect(scratch, _shared(order)).enter():
            print("the file system could not be sealed", flush=True)
            os._exit(70)
        run_trial(order)
    status = family.wait_for(trial)
    os._exit(status if status >= 0 else 128 - status)


def _shared(order: Order) -> list[str]:
    """Folders that stay the real ones."""
    return [folder for folder in (order.folder, order.parity_folder, order.kept_folder) if folder]


def _reap_until(child: int) -> int:
    """Wait for the child, burying orphans meanwhile. A death by signal is told as 128 + its number."""
    while True:
        pid, code = os.wait()
        if pid == child:
            status = os.waitstatus_to_exitcode(code)
            return status if status >= 0 else 128 - status


def _terminal(rows: int, columns: int) -> int:
    """One that has nothing to say, for scripts that ask theirs how wide it is: whoever reads from it finds the end."""
    ours, theirs = os.openpty()  # ours stays open for as long as this process lives
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.write(ours, b"\x04" * _ENDS)
    return theirs


def _log_to(folder: str, terminal: Sequence[int] = ()) -> None:
    """The script's output goes to a log, its input is empty; ours would mix with the server's own."""
    log = os.open(os.path.join(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    empty = _terminal(*terminal) if terminal else os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(empty)


def main() -> None:
    sys.path.insert(0, "")  # where each script's own folder will stand
    serve()
