"""Running trials from the tuner's side: one order in, one recorded ending out. Nothing a trial does can raise here."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hotlap.errors import HotlapError
from hotlap.measure import network, scratch
from hotlap.measure.order import Order, own_process
from hotlap.observe.ledger import read_events
from hotlap.observe.record import Snapshot, complete
from hotlap.observe.run import Run
from hotlap.records import from_json, to_json

_GRACE_SECONDS = 15.0  # beyond a trial's own limit, before the server itself counts as hung


@dataclass(frozen=True)
class Trial:
    """How one process ended, and what it recorded."""

    ending: str  # "enough", "finished", "raised: ...", "out of memory", "hang", "died of signal 11 (...)", ...
    run: Run | None
    parity: dict[str, Any] | None
    seconds: float
    log: str  # the end of the script's own output
    hosts: list[str] = field(default_factory=list)  # beyond this machine, that the script tried to reach
    sources: dict[str, str] = field(default_factory=dict)  # the user's modules it imported, each with its content

    @property
    def good(self) -> bool:
        return self.ending in ("enough", "finished") and self.run is not None


class Trials:
    """A fork server and the folder where it exchanges orders and records. Use as a context manager."""

    def __init__(self) -> None:
        scratch.sweep()
        self.folder = scratch.make()
        self._server: subprocess.Popen[str] | None = None
        self._count = 0

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, order: Order, on_progress: Callable[[int], None] | None = None) -> Trial:
        """Run one trial to its end. `on_progress` hears the number of steps done, from time to time."""
        folder = os.path.join(self.folder, f"trial-{self._count:03d}")
        self._count += 1
        os.mkdir(folder)
        order = dataclasses.replace(order, folder=folder)
        server = self._serving()
        assert server.stdin is not None
        started = time.monotonic()
        server.stdin.write(json.dumps(to_json(order)) + "\n")
        server.stdin.flush()
        answer = self._await_answer(order, folder, on_progress)
        trial = read_trial(folder, answer, time.monotonic() - started)
        shutil.rmtree(folder, ignore_errors=True)
        return trial

    def exchange(self, name: str) -> str:
        """A folder several trials share, for parity tensors."""
        path = os.path.join(self.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def close(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGKILL)  # its supervisors die with it, and everything in them
            self._server.wait()
            self._server = None
        for _ in range(20):  # a supervisor without namespaces may still be ending its trial
            shutil.rmtree(self.folder, ignore_errors=True)
            if not os.path.exists(self.folder):
                break
            time.sleep(0.05)

    def _serving(self) -> subprocess.Popen[str]:
        if self._server is None:
            self._server = subprocess.Popen(
                own_process("hotlap.measure.server"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to handle, not the trials'
            )
            assert self._server.stdout is not None
            if not self._server.stdout.readline():
                assert self._server.stderr is not None
                lines = self._server.stderr.read().strip().split("\n")
                raise HotlapError(f"the trial server did not start ({lines[-1]}): check that `import torch` works")
        return self._server

    def _await_answer(self, order: Order, folder: str, on_progress: Callable[[int], None] | None) -> dict[str, Any]:
        server = self._serving()
        assert server.stdout is not None
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.append(server.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        deadline = time.monotonic() + order.limit_seconds + _GRACE_SECONDS
        while reader.is_alive() and time.monotonic() < deadline:
            reader.join(0.1)
            if on_progress is not None and (steps := _text(folder, "progress")):
                on_progress(int(steps))
        if reader.is_alive() or not lines or not lines[0]:
            server.kill()
            server.wait()
            self._server = None
            return {"status": None, "seconds": order.limit_seconds}
        answer: dict[str, Any] = json.loads(lines[0])
        return answer


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _signal_name(number: int) -> str:
    return (signal.strsignal(number) or "unknown").lower()


def read_trial(folder: str, answer: dict[str, Any], seconds: float) -> Trial:
    """What a trial left in its folder, or what its death says."""
    log = _text(folder, "log.txt")[-4000:]
    text = _text(folder, "record.json")
    if text:
        data = json.loads(text)
        run = from_json(Run, data["run"]) if data["run"] else None
        return Trial(data["ending"], run, data["parity"], seconds, log, data["hosts"], data["sources"])
    status = answer["status"]
    if status is None:
        ending = "hang: no end within its limit"
    elif status >= 128:
        ending = "out of memory" if status == 137 else f"died of signal {status - 128} ({_signal_name(status - 128)})"
    elif status == 70:
        ending = f"could not be set up: {log.strip().split(chr(10))[-1][:200]}"
    else:
        ending = f"left with exit code {status} before it was done"
    return Trial(ending, _so_far(folder), None, seconds, log, network.hosts(folder))


def _so_far(folder: str) -> Run | None:
    """What a process that was killed had seen by then."""
    text = _text(folder, "so-far.json")
    events = read_events(os.path.join(folder, "events"))
    return complete(from_json(Snapshot, json.loads(text)), events) if text and events else None
