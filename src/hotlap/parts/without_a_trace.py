"""Samples that a forked copy of this process reads to learn something of them, and that leave nothing behind: no line
in a log, no count in memory that processes share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from hotlap.parts.forked import NoAnswer, asked
from hotlap.parts.open_files import shared_value

_CHANGING = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir"}
_WRITING = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def asked_of(dataset: Any, question: Callable[[], Any], patience_seconds: float) -> Any:
    """As `forked.asked`, of a question that reads samples. `NoAnswer` also where reading one writes to a file."""
    shared = shared_value(dataset)
    if shared:
        raise NoAnswer(f"its data set shares {shared} with other processes, which would see samples being read")

    def careful() -> Any:
        Writes().is_forbidden = True
        return question()

    return asked(careful, patience_seconds)


class Wrote(BaseException):
    """Nothing of the script's shall catch it."""


class Writes:
    """Files are written, made or removed, and not for the moment only: raises before that happens. What is added to a
    file would stand there twice, so that is never let through."""

    is_forbidden = False

    def __init__(self) -> None:
        self._passing = (tempfile.gettempdir(), "/dev/")
        sys.addaudithook(self._heard)  # for good, in a process that soon ends

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _CHANGING or not isinstance(args[0], (str, bytes, os.PathLike)):
            return
        flags = args[2] if event == "open" else _WRITING
        is_lasting = not os.path.abspath(os.fsdecode(args[0])).startswith(self._passing)
        if flags & os.O_APPEND or (self.is_forbidden and flags & _WRITING and is_lasting):
            raise Wrote
