"""The files of one project as they import each other: found where Python would look, parsed once, on demand."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.errors import HotlapError
from hotlap.source.callers import called, last_name
from hotlap.source.names import Definition

if TYPE_CHECKING:
    from hotlap.source.module import Source

_MOST_HOPS = 4  # from one re-export to the next
_MOST_LEVELS = 4  # folders above a file that may hold the top of its package
_MOST_SIBLINGS = 200  # files looked through for callers
_ELSEWHERE = frozenset(sys.stdlib_module_names) | {"torch", "torchvision", "numpy"}  # never a file of the project
_TOPS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")


def top_of(folder: str) -> str:
    """The folder of the project that a folder belongs to; itself where nothing below the home folder marks one."""
    above = folder
    for _ in range(_MOST_LEVELS):
        if above in (os.path.dirname(above), os.path.expanduser("~")):
            break
        if any(os.path.exists(os.path.join(above, name)) for name in _TOPS):
            return above
        above = os.path.dirname(above)
    return folder


@dataclass(frozen=True, eq=False)
class Defined:
    """A class or function, and the file it stands in."""

    source: Source
    node: Definition


class Project:
    """Shared by all files read together. `needs` says what the answers given to a file rest on."""

    def __init__(self) -> None:
        self._sources: dict[str, Source | None] = {}
        self._asked: dict[str, set[str]] = {}
        self._folders: dict[str, list[str]] = {}
        self._exists: dict[str, bool] = {}
        self._texts: dict[str, bytes] = {}

    def source(self, path: str) -> Source | None:
        """A file of the project; None where it cannot be read or parsed."""
        from hotlap.source.module import Source

        if path not in self._sources:
            try:
                self._sources[path] = Source.read(path, self)
            except HotlapError:
                self._sources[path] = None
        return self._sources[path]

    def add(self, source: Source) -> None:
        """A file that was read anyway need not be read again."""
        self._sources.setdefault(os.path.abspath(source.path), source)

    def find(self, asker: Source, qualified: str, hops: int = 0) -> Defined | None:
        """The class or function that a qualified name of a file stands for, where it lies in the same project."""
        level = len(qualified) - len(qualified.lstrip("."))
        module, _, attribute = qualified[level:].rpartition(".")
        top = module.partition(".")[0]
        if hops > _MOST_HOPS or not attribute or (level == 0 and (not module or top in _ELSEWHERE)):
            return None
        for folder in self._folders_for(asker, level):
            path = self._file(asker, folder, module)
            other = self.source(path) if path else None
            if other is not None:
                return self._published(other, attribute, hops)
        return None

    def imported(self, source: Source, from_the_top: bool = False) -> Iterator[str]:
        """The files of the project that a file imports, itself first, through any number of hops. Packages at its top
        are found from a folder deep below only where that is asked for: they may be other, installed ones."""
        seen: dict[str, None] = {}
        waiting = [os.path.abspath(source.path)]
        while waiting:
            path = waiting.pop()
            one = None if path in seen else self.source(path)
            if one is None:
                continue
            seen[path] = None
            yield path
            for node in ast.walk(one.tree):
                waiting += self._imports(one, node, from_the_top)

    def callers(self, source: Source, function: Definition) -> Iterator[tuple[Source, ast.Call]]:
        """Calls of a function or class from the files beside its own and one folder above."""
        name, own = function.name.encode(), os.path.realpath(source.path)
        here = os.path.dirname(os.path.abspath(source.path))
        for folder in dict.fromkeys((here, *list(self._folders_for(source, 0))[1:2])):
            self._note(source, folder + os.sep)
            for path in self._python_files(folder):
                if name not in self._text(path) or os.path.realpath(path) == own:
                    continue
                other = self.source(path)
                for call in other.names.call_nodes if other else ():
                    if last_name(called(call)) == function.name and other is not None:
                        self._note(source, path)  # and, by way of it, on what its own answers rest on
                        found = other.resolve(called(call))
                        if found is not None and _is_same(found, own, function):
                            yield other, call

    def needs(self, path: str) -> set[str]:
        """The files (existing or not) and folders (ending in a separator) that answers to a file rest on."""
        found: set[str] = set()
        waiting = [os.path.abspath(path)]
        while waiting:
            new = self._asked.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    def _published(self, other: Source, attribute: str, hops: int) -> Defined | None:
        bindings = other.names.module.bindings.get(attribute, [])
        if len(bindings) != 1:
            return None
        if bindings[0].definition is not None:
            return Defined(other, bindings[0].definition)
        return self.find(other, bindings[0].qualified, hops + 1) if bindings[0].qualified else None

    def _imports(self, source: Source, node: ast.AST, from_the_top: bool) -> Iterator[str]:
        if isinstance(node, ast.Import):
            wanted = [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            inside = [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
            wanted = [(node.level, name) for name in [module, *inside]]
        else:
            return
        for level, name in wanted:
            if level or name.partition(".")[0] not in _ELSEWHERE:
                folders = list(self._folders_for(source, level))
                if from_the_top and not level:
                    folders.append(top_of(os.path.dirname(os.path.abspath(source.path))))
                paths = (self._file(source, folder, name) for folder in folders)
                yield from filter(None, [next(filter(None, paths), None)])

    def _folders_for(self, asker: Source, level: int) -> Iterator[str]:
        folder = os.path.dirname(os.path.abspath(asker.path))
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            yield folder
            return
        is_last = False
        for _ in range(_MOST_LEVELS):
            yield folder
            if is_last or any(self._is_there(os.path.join(folder, name)) for name in _TOPS):
                return
            # A package ends where no __init__ is; one folder more, since scripts often import `src.model` from above.
            is_last = not self._is_there(os.path.join(folder, "__init__.py"))
            folder = os.path.dirname(folder)

    def _file(self, asker: Source, folder: str, module: str) -> str | None:
        place = os.path.join(folder, *module.split(".")) if module else folder
        for path in (f"{place}.py", os.path.join(place, "__init__.py")):
            self._note(asker, path)
            if self._is_there(path):
                return path
        return None

    def _is_there(self, path: str) -> bool:
        if path not in self._exists:
            self._exists[path] = os.path.exists(path)
        return self._exists[path]

    def _python_files(self, folder: str) -> list[str]:
        if folder not in self._folders:
            try:
                names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".py"))
            except OSError:
                names = []
            self._folders[folder] = [os.path.join(folder, name) for name in names[:_MOST_SIBLINGS]]
        return [path for path in self._folders[folder] if os.path.exists(path)]

    def _text(self, path: str) -> bytes:
        if path not in self._texts:
            try:
                with open(path, "rb") as file:
                    self._texts[path] = file.read()
            except OSError:
                self._texts[path] = b""
        return self._texts[path]

    def _note(self, asker: Source, path: str) -> None:
        self._asked.setdefault(os.path.abspath(asker.path), set()).add(path)


def _is_same(one: Defined, path: str, other: Definition) -> bool:
    """The same definition, though its file may have been parsed twice."""
    is_alike = (one.node.name, one.node.lineno, one.node.col_offset) == (other.name, other.lineno, other.col_offset)
    return one.node is other or (is_alike and os.path.realpath(one.source.path) == path)
