"""Techniques written into the user's own modules as they are imported: the rewriting of `fix`, in memory only.

The files stay as they are, and so do their .pyc files: the loader neither reads nor writes them. Tracebacks, linecache
and inspect show the user's own lines. Spawned processes import the files as they are."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType
from typing import Any

from hotlap.source.files import trains
from hotlap.source.fix import Rewritten, rewritten
from hotlap.source.module import Source
from hotlap.source.parsing import decoded
from hotlap.source.positions import Lines
from hotlap.source.project import Project, top_of
from hotlap.source.store import Store, digest, version_of

_INSTALLED = {"site-packages", "dist-packages"}
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def in_source(choices: Sequence[Any]) -> list[Any]:
    """Those that cannot be applied to a process, only written into its modules."""
    return [one for one in choices if "apply" not in one.technique.verbs]


def rewrite_in_memory(
    choices: Sequence[Any], folder: str, on_undo: Callable[[Callable[[], object]], object], cached: bool = True
) -> InMemory:
    """From now on, modules of the project that `folder` belongs to are imported with the choices (each a `.technique`
    with a `.setting`) written into them. `on_undo` is given the way back, as `Patch.on_undo` takes it."""
    memory = InMemory(choices, folder, cached)
    sys.meta_path.insert(0, memory)
    on_undo(memory.remove)
    return memory


class InMemory:
    """A finder for the user's modules, and the compiler for `__main__`, which is nobody's import."""

    def __init__(self, choices: Sequence[Any], folder: str, cached: bool = True) -> None:
        self.folder = top_of(os.path.realpath(folder))
        self.written: dict[str, None] = {}  # the techniques that found a place, in order
        self.troubles: list[str] = []
        self._choices = [(one.technique, one.setting) for one in choices]
        self._project = Project()
        self._store = Store("rewritten", cached)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader or not self.is_users(spec.loader.path):
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path, self)
        spec.cached = None
        return spec

    def is_users(self, path: str) -> bool:
        """Of the script's project, and neither installed there nor part of Python or of hotlap."""
        real = os.path.realpath(path)
        if not real.startswith(os.path.join(self.folder, "")) or _INSTALLED & set(real.split(os.sep)):
            return False
        others = [os.path.realpath(one) for one in (sys.prefix, sys.base_prefix, _OURS)]
        return not any(_lies_in(real, other) and not _lies_in(self.folder, other) for other in others)

    def code(self, data: bytes, path: str) -> CodeType:
        """A file's code with the techniques in it; as it is where they do not fit."""
        result = self._rewritten(data, path) if self.is_users(path) and trains(data) else None
        if result is None:
            return compile(data, path, "exec", dont_inherit=True)
        self.written.update(dict.fromkeys(result.techniques))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(result.text, path)
        put_lines_back(tree, result, Lines(decoded(data, path)))
        return compile(tree, path, "exec", dont_inherit=True)

    @property
    def missing(self) -> list[str]:
        """The techniques that were wanted and are not there, by now."""
        return [technique.id for technique, _ in self._choices if technique.id not in self.written]

    def unwritten(self) -> list[str]:
        """The same, each in a sentence."""
        return [f"{name} found no place in this script's source" for name in self.missing]

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _rewritten(self, data: bytes, path: str) -> Rewritten | None:
        key = self._key(data, path)
        kept = self._store.get(key)
        if kept is not None:
            lines = dict(enumerate(kept["lines"], 1))
            return Rewritten(kept["text"], lines, tuple(kept["techniques"])) if kept["techniques"] else None
        try:
            source = Source(decoded(data, path), path, self._project)
            result = rewritten(source, self._choices, unsafe=True, doubtful=True)
        except Exception as error:  # what cannot be written is left out; the script runs all the same
            self.troubles.append(f"{os.path.basename(path)} runs as it is written ({type(error).__name__}: {error})")
            return None
        came_from = [result.lines[line] for line in range(1, len(result.lines) + 1)]
        answer = {"text": result.text, "lines": came_from, "techniques": list(result.techniques)}
        self._store.put(key, answer, self._project.needs(path))
        return result if result.techniques else None

    def _key(self, data: bytes, path: str) -> str:
        settings = [f"{technique.id} {sorted(setting.items())!r}" for technique, setting in self._choices]
        return digest(self._version, os.path.abspath(path), data, *settings)

    @functools.cached_property
    def _version(self) -> str:
        return version_of(one for one, _ in self._choices)


class _Loader(SourceFileLoader):
    """`get_code` and not `source_to_code`: the latter would put our code into the user's __pycache__."""

    def __init__(self, name: str, path: str, memory: InMemory) -> None:
        super().__init__(name, path)
        self._memory = memory

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self._memory.code(self.get_data(path), path)


def put_lines_back(tree: ast.AST, result: Rewritten, old: Lines) -> None:
    """Give every node the line it came from. Where the text of a line is new, its columns would point at the wrong
    letters: -1 says that there are none."""
    new = Lines(result.text)
    count = len(new)
    is_new = [new.line(line) != old.line(result.lines[line]) for line in range(1, count + 1)]
    new_until = [0, *itertools.accumulate(is_new)]
    for node in ast.walk(tree):
        first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
        if first is None or last is None:
            continue
        place: Any = node
        place.lineno, place.end_lineno = result.lines[first], result.lines[last]
        if new_until[last] != new_until[first - 1]:
            place.col_offset = place.end_col_offset = -1


def _lies_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))
