"""Telling a write that the seal refused from an error of the script's own."""

from __future__ import annotations

import os
import posix
import re
import subprocess
import traceback

_REFUSED = re.compile("permission denied|readonly database|unable to open database|cannot be opened", re.IGNORECASE)
_NAMED = re.compile(r"(/[^\s'\"<>:]+|(?<=cannot create )[^\s:]+)(?=[:'\">\s])")


def refused(error: BaseException, log: str) -> str | None:
    """How a sealed trial ended that the seal refused a write; None if the error is the script's own affair."""
    text = f"{error}\n{log[-2000:]}" if isinstance(error, subprocess.CalledProcessError) else str(error)
    if not _REFUSED.search(text):
        return None
    named = [error.filename] if isinstance(error, OSError) and error.filename else _NAMED.findall(text)
    for path in [os.path.abspath(os.fsdecode(name)) for name in named]:
        there = path if os.path.lexists(path) else os.path.dirname(path)
        if os.path.isdir(os.path.dirname(path)) and posix.access(there, os.W_OK):  # which Landlock does not change
            return f"rejected: writes {path}, which cannot be redirected here"
    if named:
        return None
    frames = [one for one in traceback.extract_tb(error.__traceback__) if "site-packages" not in one.filename]
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"rejected: writes a file from outside Python{where}, which cannot be redirected here"
