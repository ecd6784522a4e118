"""What was worked out before, in the user's cache folder: one small file an answer, found by what it was made from.

Written by rename, so that nobody reads half of one; whatever cannot be read counts as not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from typing import Any

_KEPT_SECONDS = 30 * 86400.0
_SWEEP_SECONDS = 86400.0


class Store:
    """Answers by key. Switched off, or where the folder cannot be written, it holds nothing and never complains."""

    def __init__(self, kind: str, is_on: bool = True) -> None:
        self.folder = os.path.join(cache_folder(), kind) if is_on else ""
        self._states: dict[str, str] = {}

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer under a key, if all the files it rests on are as they were."""
        if not self.folder:
            return None
        try:
            with open(self._path(key), encoding="utf-8") as file:
                entry = json.load(file)
            is_true = entry["key"] == key and all(self._state(path) == was for path, was in entry["rests_on"].items())
            return dict(entry["answer"]) if is_true else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def put(self, key: str, answer: dict[str, Any], rests_on: Iterable[str] = ()) -> None:
        if not self.folder:
            return
        entry = {"key": key, "rests_on": {path: self._state(path) for path in sorted(rests_on)}, "answer": answer}
        path = self._path(key)
        temporary = ""
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".new-")
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(entry, file)
            os.replace(temporary, path)
        except (OSError, UnicodeError):  # full, read-only, or no home at all: work goes on without
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def sweep(self) -> None:
        """Once a day, throw away what was written more than a month ago."""
        mark, now = os.path.join(self.folder, ".swept"), time.time()
        if not self.folder or not os.path.isdir(self.folder):
            return
        with contextlib.suppress(OSError):
            if os.path.exists(mark) and now - os.stat(mark).st_mtime < _SWEEP_SECONDS:
                return
            with open(mark, "w"):
                pass
            for folder, _, names in os.walk(self.folder):
                for path in (os.path.join(folder, name) for name in names if name != ".swept"):
                    with contextlib.suppress(OSError):
                        if now - os.stat(path).st_mtime > _KEPT_SECONDS:
                            os.unlink(path)

    def _state(self, path: str) -> str:
        if path not in self._states:
            self._states[path] = state_of(path)
        return self._states[path]

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key[:2], key[2:] + ".json")


def cache_folder() -> str:
    """`$XDG_CACHE_HOME/hotlap`, else `~/.cache/hotlap`; never a folder of the project."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return os.path.join(given if os.path.isabs(given) else os.path.expanduser("~/.cache"), "hotlap")


def digest(*parts: bytes | str) -> str:
    """One key of several parts, each with its length, so that no two lists of parts look alike."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()


def state_of(path: str) -> str:
    """What a file holds, or which Python files a folder (named with a separator at its end) does; "" for neither."""
    try:
        if path.endswith(os.sep):
            entries = [entry for entry in os.scandir(path) if entry.name.endswith(".py")]
            facts = sorted((entry.name, entry.stat().st_size, entry.stat().st_mtime_ns) for entry in entries)
            return digest(repr(facts))
        with open(path, "rb") as file:
            return digest(file.read())
    except OSError:
        return ""


def version_of(techniques: Iterable[Any]) -> str:
    """Changes whenever the code behind the answers does: this room's files, and those beside each technique's."""
    folders = {os.path.dirname(os.path.abspath(__file__))}
    stated = []
    for one in techniques:
        file = getattr(sys.modules.get(type(one).__module__), "__file__", None)
        folders |= {os.path.dirname(os.path.abspath(file))} if file else set()
        stated.append(f"{type(one).__module__}.{type(one).__qualname__} {one.id} {vars(one)!r}")
    files = [entry.path for folder in sorted(folders) for entry in os.scandir(folder) if entry.name.endswith(".py")]
    return digest(sys.version, *sorted(stated), *map(state_of, sorted(files)))
