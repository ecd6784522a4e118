"""Looks through files and folders for places that lack a technique."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from hotlap.errors import HotlapError
from hotlap.source.module import Site, Source, decoded

_SKIPPED_FOLDERS = {"site-packages", "node_modules", "__pycache__", "venv"}


class Spotter(Protocol):
    """What is asked of a technique here."""

    @property
    def id(self) -> str: ...

    @property
    def verbs(self) -> tuple[str, ...]: ...

    def spot(self, source: Any) -> Iterator[Site]: ...


@dataclass(frozen=True)
class Found:
    technique_id: str
    site: Site


def check(
    paths: Iterable[str | os.PathLike[str]],
    techniques: Iterable[Spotter],
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
) -> tuple[list[Found], list[str]]:
    """Everything found below the paths, and one sentence for each file or folder that could not be read."""
    wanted, unwanted = {_plain(name) for name in only}, {_plain(name) for name in skip}
    spotters = [
        one for one in techniques if "spot" in one.verbs and one.id not in unwanted and (not wanted or one.id in wanted)
    ]
    findings: list[Found] = []
    troubles: list[str] = []
    for path in python_files(paths, troubles):
        try:
            source = _read_if_relevant(path)
        except HotlapError as error:
            troubles.append(str(error))
            continue
        if source is not None:
            findings += _spotted(source, spotters, troubles)
    return findings, troubles


def python_files(paths: Iterable[str | os.PathLike[str]], troubles: list[str]) -> Iterator[str]:
    """The files named, and the Python files below the folders named, each once, in a fixed order."""
    seen: set[str] = set()
    for given in paths:
        path = os.fspath(given)
        if os.path.isdir(path):
            yield from _below(path, seen, troubles)
        elif not os.path.exists(path):
            troubles.append(f"{path} does not exist.")
        elif _is_new(path, seen):
            yield path


def is_silenced(site: Site, technique_id: str) -> bool:
    """Whether a comment silences a site: on its line, or on a later line of the same expression."""
    last = site.node.end_lineno if isinstance(site.node, ast.expr) else None
    return any(site.source.is_ignored(line, technique_id) for line in range(site.line, (last or site.line) + 1))


def _below(folder: str, seen: set[str], troubles: list[str]) -> Iterator[str]:
    if not _is_new(folder, seen):  # a symbolic link may lead back up
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        troubles.append(f"{folder} cannot be read: {error.strerror or error}.")
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS:
            continue
        if entry.is_dir():
            yield from _below(entry.path, seen, troubles)
        elif entry.name.endswith((".py", ".pyw")) and entry.is_file() and _is_new(entry.path, seen):
            yield entry.path


def _is_new(path: str, seen: set[str]) -> bool:
    real = os.path.realpath(path)
    is_new = real not in seen
    seen.add(real)
    return is_new


def _read_if_relevant(path: str) -> Source | None:
    """Most files of a large tree never mention torch: those are not worth parsing."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise HotlapError(f"{path} cannot be read: {error.strerror or error}.") from error
    return Source(decoded(data, path), path) if b"torch" in data else None


def _spotted(source: Source, spotters: list[Spotter], troubles: list[str]) -> list[Found]:
    found: list[Found] = []
    for technique in spotters:
        try:
            sites = list(technique.spot(source))
        except Exception as error:  # one technique that stumbles over one file must not stop the rest
            troubles.append(f"{source.path}: {technique.id} could not be checked ({type(error).__name__}: {error}).")
            continue
        found += [Found(technique.id, site) for site in sites if not is_silenced(site, technique.id)]
    return sorted(found, key=lambda one: (one.site.line, one.site.column))


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-")
