"""Which files are meant: those named, and the Python files and notebooks below the folders named."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hotlap.errors import HotlapError
from hotlap.source.configuration import Configuration, configuration_for

PYTHON = (".py", ".pyw")
_SKIPPED_FOLDERS = {"site-packages", "node_modules", "__pycache__", "venv"}
_MOST_BYTES = 1_000_000  # nobody writes that much by hand
# A helper that only takes backward steps may never import the library itself.
_TRAINS = re.compile(rb"torch|\.backward\(|DataLoader")


@dataclass(frozen=True)
class File:
    path: str
    given: str  # the path on the command line it was found through
    configuration: Configuration


def plain_name(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def files_below(
    paths: Iterable[str | os.PathLike[str]],
    troubles: list[str],
    suffixes: tuple[str, ...] = PYTHON,
    resolve: Callable[[str], str] = plain_name,
) -> Iterator[File]:
    """Each file once, in a fixed order, without what pyproject.toml excludes; what is not there is a trouble."""
    seen: set[str] = set()
    configurations: dict[str, Configuration] = {}
    for given in [os.fspath(path) for path in paths]:
        folder = given if os.path.isdir(given) else os.path.dirname(os.path.abspath(given))
        if folder not in configurations:
            configurations[folder] = configuration_for(folder, resolve)
        configuration = configurations[folder]
        if os.path.isdir(given):
            is_empty = True
            for path in _below(given, suffixes, seen, troubles, configuration):
                is_empty = False
                yield File(path, given, configuration)
            if is_empty and not _holds_any(given, suffixes):
                troubles.append(f"{given} holds no Python files: name the folder of the training code.")
        elif not os.path.lexists(given):
            troubles.append(f"{given} does not exist: check the path.")
        elif not os.path.isfile(given):
            troubles.append(f"{given} is no file that can be read.")
        elif _is_new(given, seen) and not configuration.excludes(given):
            yield File(given, given, configuration)


def read_if_it_trains(path: str) -> bytes | None:
    """A file's bytes; None where it has nothing to do with training, as most files of a large tree."""
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise HotlapError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not trains(data):
        return None
    if len(data) > _MOST_BYTES:
        raise HotlapError(f"{path} was not checked: {size / 1e6:.1f} MB look generated; exclude it.")
    return data


def trains(data: bytes) -> bool:
    """Whether a file may have to do with training at all."""
    return _TRAINS.search(data) is not None


def is_below(path: str, given: str) -> bool:
    """Whether a file really lies in what was given, also after following links."""
    real, top = os.path.realpath(path), os.path.realpath(given)
    return real == top or real.startswith(os.path.join(top, ""))


def _below(
    folder: str, suffixes: tuple[str, ...], seen: set[str], troubles: list[str], configuration: Configuration
) -> Iterator[str]:
    if not _is_new(folder, seen):  # a symbolic link may lead back up
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        troubles.append(f"{folder} cannot be read: {error.strerror or error}.")
        return
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS or configuration.excludes(entry.path):
            continue
        if _is_dir(entry):
            yield from _below(entry.path, suffixes, seen, troubles, configuration)
        elif entry.name.endswith(suffixes) and _is_file(entry) and _is_new(entry.path, seen):
            yield entry.path


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_new(path: str, seen: set[str]) -> bool:
    real = os.path.realpath(path)
    is_new = real not in seen
    seen.add(real)
    return is_new


def _holds_any(folder: str, suffixes: tuple[str, ...]) -> bool:
    return any(name.endswith(suffixes) for _, _, names in os.walk(folder) for name in names)
