"""The one kind of error a user sees: a sentence that names the cause and the next step. Ctrl-C ends in one, too."""

from __future__ import annotations

import sys


class HotlapError(Exception):
    """Raised anywhere in hotlap, shown by the command line as one line on stderr with its exit code."""

    code = 2


class Stopped(HotlapError):
    """The user's own wish, before there was anything to keep."""

    code = 130


def say(sentence: str) -> None:
    """Our own words go to stderr: what a script prints is its own."""
    print(f"hotlap: {sentence}", file=sys.stderr)
