"""The fork server: torch imported once, trials forked from it in milliseconds.

It never runs a tensor operation and never touches a device: after either, its children would hang. One order a line
on stdin, one answer a line on stdout; trials come one at a time."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time

from hotlap.measure import sandbox
from hotlap.measure.child import run_trial
from hotlap.measure.order import Order
from hotlap.observe.launch import Target
from hotlap.records import from_json

_POLL_SECONDS = 0.01


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
    scratch = tempfile.mkdtemp(prefix="view-", dir=os.path.dirname(order.folder))
    started = time.monotonic()
    supervisor = os.fork()
    if supervisor == 0:
        try:
            _supervise(order, scratch)
        finally:
            os._exit(70)
    status: int | None = None
    while status is None and time.monotonic() - started < order.limit_seconds:
        pid, code = os.waitpid(supervisor, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(code)
        else:
            time.sleep(_POLL_SECONDS)
    if status is None:
        os.kill(supervisor, signal.SIGKILL)
        os.waitpid(supervisor, 0)
    os.rmdir(scratch)
    return {"status": status, "seconds": time.monotonic() - started}


def _supervise(order: Order, scratch: str) -> None:
    os.setsid()
    sandbox.die_with_parent()
    _redirect(order.folder)
    os.chdir(order.cwd)
    if order.protected:
        script = order.name if order.is_module else Target(order.name).path
        shared = [order.folder, *([order.parity_folder] if order.parity_folder else [])]
        sandbox.enter(scratch, shared, sandbox.folders_to_protect(order.cwd, script), order.allow_network)
    first = os.fork()
    if first == 0:  # process 1 of its namespace: when it dies, everything in there dies
        sandbox.die_with_parent()
        if order.protected:
            sandbox.mount_proc()
        trial = os.fork()
        if trial == 0:
            run_trial(order)
        os._exit(_reap_until(trial))
    os._exit(_reap_until(first))


def _reap_until(child: int) -> int:
    """Wait for the child, burying orphans meanwhile. A death by signal is told as 128 + its number."""
    while True:
        pid, code = os.wait()
        if pid == child:
            status = os.waitstatus_to_exitcode(code)
            return status if status >= 0 else 128 - status


def _redirect(folder: str) -> None:
    """The script's output goes to a log, its input is empty; ours would mix with the server's own."""
    log = os.open(os.path.join(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(empty)


def main() -> None:
    sys.path.insert(0, "")  # where each script's own folder will stand
    serve()
