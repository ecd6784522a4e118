"""Runs a command on a terminal of its own until a file appears or it ends, and leaves nothing of it behind."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

ROWS, COLUMNS = 50, 150
GRACE_SECONDS = 10.0  # to leave of its own accord, once the file is there
_KEPT = 1 << 16  # of the output's end, and as much of its beginning
_MARK = "HOTLAP_TERMINAL_MARK"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Ending:
    code: int | None  # None: it was ended at the limit
    seconds: float
    lines: list[str]  # the first and the last it said


def watched(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], file: Path, limit_seconds: float
) -> Ending:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    mark, began = uuid.uuid4().hex, time.monotonic()
    marked = {**environment, _MARK: mark, "TERM": "dumb", "COLUMNS": str(COLUMNS)}
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=marked, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        try:
            output, was_cut = _read(process, master, file, began + limit_seconds)
        finally:
            _end(process, mark)
            output_end = _rest(master)
    finally:
        os.close(slave)
        os.close(master)
    text = _CONTROL.sub("", (output + output_end).decode(errors="replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    return Ending(None if was_cut else process.returncode, time.monotonic() - began, lines)


def _read(process: subprocess.Popen[bytes], master: int, file: Path, deadline: float) -> tuple[bytes, bool]:
    """What it says until it ends, and whether it had to be stopped waiting for. A terminal nobody reads blocks it."""
    first, last, leaving = b"", b"", 0.0
    while process.poll() is None:
        now = time.monotonic()
        if file.exists() and not leaving:
            leaving = now + GRACE_SECONDS
        if now > deadline or (leaving and now > leaving):
            return first + last, True
        if select.select([master], [], [], 0.1)[0]:
            part = os.read(master, 1 << 16)
            if len(first) < _KEPT:
                first += part
            else:
                last = (last + part)[-_KEPT:]
    return first + last, False


def _rest(master: int) -> bytes:
    text = b""
    while select.select([master], [], [], 0)[0]:
        text += os.read(master, 1 << 16)
    return text[-_KEPT:]


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """All that were started by it, wherever they hid: workers may outlive whoever made them."""
    for _ in range(50):
        left = [one for one in psutil.process_iter() if _carries(one, mark)]
        for one in left:
            with suppress(psutil.Error):
                one.kill()
        if process.poll() is not None and not left:
            return
        process.kill()
        time.sleep(0.1)


def _carries(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark  # one that is dead and not yet reaped has none
    except (psutil.Error, OSError):
        return False
