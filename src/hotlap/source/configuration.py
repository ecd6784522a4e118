"""`[tool.hotlap]` of the nearest pyproject.toml: which techniques are wanted, and where."""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hotlap.errors import HotlapError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "pyproject.toml"
_KEYS = ("select", "ignore", "exclude", "per-path-ignores")


@dataclass(frozen=True)
class Configuration:
    """Names are techniques' ids, patterns are relative to `folder`. Empty `select` means all."""

    folder: str = ""
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    per_path: dict[str, frozenset[str]] = field(default_factory=dict)

    def wants(self, technique_id: str, path: str) -> bool:
        """Whether a technique is to be looked for in a file."""
        if technique_id in self.ignore or (self.select and technique_id not in self.select):
            return False
        return not any(technique_id in names and self._matches(path, one) for one, names in self.per_path.items())

    def excludes(self, path: str) -> bool:
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def _matches(self, path: str, pattern: str) -> bool:
        """As .gitignore does it: a name anywhere, or a path from the folder; what lies below a match matches too."""
        inside = os.path.relpath(os.path.abspath(path), self.folder).replace(os.sep, "/")
        if inside.startswith("../"):
            return False
        parts, pattern = inside.split("/"), pattern.strip("/")
        wholes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        names = [] if "/" in pattern else parts
        return any(fnmatch.fnmatchcase(one, pattern) for one in [*wholes, *names])


def configuration_for(path: str | os.PathLike[str], resolve: Callable[[str], str]) -> Configuration:
    """The table found from a folder upwards. `resolve` makes a technique's id of any name it goes by."""
    folder = os.path.abspath(path)
    while True:
        table = _table(os.path.join(folder, FILE))
        if table is not None:
            return _configured(folder, table, resolve)
        if os.path.dirname(folder) == folder:
            return Configuration()
        folder = os.path.dirname(folder)


def _table(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file).get("tool", {}).get("hotlap")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HotlapError(f"{path} cannot be read ({error}): mend it first") from None
    if found is not None and not isinstance(found, dict):
        raise HotlapError(f"{path}: [tool.hotlap] is a table: give it {', '.join(_KEYS)}")
    return found


def _configured(folder: str, table: dict[str, Any], resolve: Callable[[str], str]) -> Configuration:
    path = os.path.join(folder, FILE)
    for key in table:
        if key not in _KEYS:
            raise HotlapError(f"{path}: [tool.hotlap] has no {key!r}: it knows {', '.join(_KEYS)}")
    per_path = table.get("per-path-ignores", {})
    if not isinstance(per_path, dict):
        raise HotlapError(f"{path}: per-path-ignores is a table of patterns, each with a list of techniques")

    def ids(key: str, given: Any) -> frozenset[str]:
        try:
            return frozenset(map(resolve, _strings(given)))
        except HotlapError as error:
            raise HotlapError(f"{path}, {key}: {error}") from None

    try:
        return Configuration(
            folder,
            ids("select", table.get("select", [])),
            ids("ignore", table.get("ignore", [])),
            tuple(_strings(table.get("exclude", []))),
            {pattern: ids(pattern, names) for pattern, names in per_path.items()},
        )
    except TypeError:
        raise HotlapError(f"{path}: what [tool.hotlap] takes are lists of strings") from None


def _strings(given: Any) -> Iterable[str]:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise TypeError("not a list of strings")
    return given
