"""Whose code a file holds: the script's own, a library's, or nobody's one would blame."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
SCRIPT, LIBRARY, NOBODY = range(3)


@functools.cache
def whose(path: str) -> int:
    """NOBODY is torch, hotlap and generated code."""
    if path.startswith(("<", _OURS, *_torch())):
        return NOBODY
    is_library = path.startswith(_library_folders()) or "site-packages" in path or "dist-packages" in path
    return LIBRARY if is_library else SCRIPT


def is_users(path: str) -> bool:
    return whose(path) == SCRIPT


def is_ours(path: str) -> bool:
    return path.startswith(_OURS)


def _torch() -> tuple[str, ...]:
    found = getattr(sys.modules.get("torch"), "__file__", None)
    return (os.path.dirname(found) + os.sep,) if found else ()


@functools.cache
def _library_folders() -> tuple[str, ...]:
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(folder + os.sep for folder in {*found, *map(os.path.realpath, found)})
