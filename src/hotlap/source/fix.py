"""Writes techniques into source: repeated until nothing more is found, every result parsed before it counts."""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import stat
import tempfile
import tokenize
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hotlap.errors import HotlapError
from hotlap.source.check import is_silenced
from hotlap.source.files import files_below, is_below, plain_name, read_if_it_trains
from hotlap.source.module import Site, Source
from hotlap.source.notebooks import SUFFIX
from hotlap.source.project import Project
from hotlap.source.spans import Edit, OverlappingEdits, apply_edits, in_order, line_map

_MOST_PASSES = 4

Setting = Mapping[str, Any]


class Rewriter(Protocol):
    """What is asked of a technique here."""

    @property
    def id(self) -> str: ...

    @property
    def verbs(self) -> tuple[str, ...]: ...

    @property
    def default(self) -> Setting: ...

    @property
    def written_last(self) -> bool: ...

    def places(self, source: Any, setting: Any) -> Iterator[Site]: ...

    def rewrite(self, site: Any, setting: Any) -> Iterable[Edit]: ...


@dataclass(frozen=True)
class Rewritten:
    """A new text, which old line each of its lines came from, and which techniques wrote into it."""

    text: str
    lines: dict[int, int]
    techniques: tuple[str, ...]


def fix_source(
    source: Source, techniques_with_settings: Iterable[tuple[Rewriter, Setting | None]], unsafe: bool = False
) -> str:
    """The text with the techniques written in; unsafe fixes only when asked for; setting None is the default."""
    return rewritten(source, techniques_with_settings, unsafe).text


def rewritten(
    source: Source,
    techniques_with_settings: Iterable[tuple[Rewriter, Setting | None]],
    unsafe: bool = False,
    doubtful: bool = False,
) -> Rewritten:
    """As `fix_source`, with the line map that an in-memory rewrite needs for its tracebacks. `doubtful`: also where a
    technique only likely helps, which is settled when it was measured or asked for by name."""
    choices = [(one, setting) for one, setting in techniques_with_settings if {"spot", "rewrite"} <= set(one.verbs)]
    choices.sort(key=lambda choice: choice[0].written_last)
    lines = {line: line for line in range(1, len(source.lines) + 1)}
    used: dict[str, None] = {}
    for _ in range(_MOST_PASSES):
        before = source
        for technique, setting in choices:
            edits = _edits(source, technique, technique.default if setting is None else setting, unsafe, doubtful)
            if edits:
                back = line_map(source.text, edits)
                lines = {line: lines[old] for line, old in back.items()}
                source = Source(apply_edits(source.text, edits), source.path, source.project)
                used[technique.id] = None
        if source is before:
            break
    return Rewritten(source.text, lines, tuple(used))


def _edits(source: Source, technique: Rewriter, setting: Setting, unsafe: bool, doubtful: bool) -> list[Edit]:
    """The edits of all sites that go together and leave a text that Python takes; the others wait for the next pass."""
    accepted: list[Edit] = []
    takes = _compiles if _compiles(source.text) else _parses  # the user's own text may hold a stray `return`
    for site in technique.places(source, setting):
        is_wanted = site.fix == "safe" or (unsafe and site.fix == "unsafe")
        if is_wanted and (doubtful or not site.doubtful) and not is_silenced(site, technique.id):
            edits = list(technique.rewrite(site, setting))
            candidate = [*accepted, *edits]
            try:
                is_sound = not _loses_a_comment(source, edits) and takes(apply_edits(source.text, candidate))
            except OverlappingEdits:
                continue
            accepted = candidate if is_sound else accepted
    return in_order(accepted)


def _loses_a_comment(source: Source, edits: list[Edit]) -> bool:
    """What somebody wrote into an expression is worth more than the fix that would put another in its place."""
    for edit in edits:
        if "#" in source.text[edit.start : edit.end]:
            lost = [text for start, text in source.comments if edit.start <= start < edit.end]
            if not all(any(text in one.text for one in edits) for text in lost):
                return True
    return False


def _compiles(text: str) -> bool:
    """More than parsing: an import above `from __future__` parses as well."""
    return _taken(text, 0)


def _parses(text: str) -> bool:
    return _taken(text, ast.PyCF_ONLY_AST)


def _taken(text: str, flags: int) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "text", "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def fix_files(
    paths: Iterable[str],
    choices_for: Callable[[str], Sequence[Any]],
    unsafe: bool,
    troubles: list[str],
    resolve: Callable[[str], str] = plain_name,
    doubtful: bool = False,
) -> Iterator[tuple[Source, Rewritten]]:
    """Each Python file below the paths with its new text. `choices_for` maps a file's path to what is to be written
    there, each with `.technique` and `.setting`; one bad file is a trouble and never stops the rest. A link that leads
    out of the given paths is not followed."""
    project = Project()
    for file in files_below(paths, troubles, resolve=resolve):
        choices = [one for one in choices_for(file.path) if file.configuration.wants(one.technique.id, file.path)]
        if not choices:
            continue
        try:
            if not is_below(file.path, file.given):
                raise HotlapError(f"{file.path} is a link that leads out of {file.given}: left as it is.")
            if file.path.endswith(SUFFIX):
                raise HotlapError(f"{file.path} is a notebook: it can be checked, but not written.")
            if read_if_it_trains(file.path) is None:
                continue
            source = Source.read(file.path, project)
            result = rewritten(source, [(one.technique, one.setting) for one in choices], unsafe, doubtful)
        except HotlapError as error:
            troubles.append(str(error))
        except Exception as error:  # a technique that stumbles over one file must not stop the rest
            troubles.append(f"{file.path} was left as it is ({type(error).__name__}: {error}).")
        else:
            yield source, result


def reached_from(script: str, from_the_top: bool = False) -> list[str]:
    """The files a script is made of: itself, and what it imports from its own project."""
    project = Project()
    source = project.source(os.path.abspath(script))
    return list(project.imported(source, from_the_top)) if source is not None else []


def finds_a_place(technique: Rewriter, script: str) -> bool:
    """Whether it would be written anywhere in what a script is made of."""
    project = Project()
    sources = filter(None, map(project.source, reached_from(script, from_the_top=True)))
    return any(rewritten(source, [(technique, None)], unsafe=True, doubtful=True).techniques for source in sources)


def unified_diff(old: str, new: str, path: str) -> str:
    """A diff that `patch -p1` and `git apply` take; empty when nothing changed."""
    name = path.replace(os.sep, "/").removeprefix("./").lstrip("/")
    pieces = difflib.unified_diff(_kept_lines(old), _kept_lines(new), f"a/{name}", f"b/{name}")
    return "".join(piece if piece.endswith("\n") else f"{piece}\n\\ No newline at end of file\n" for piece in pieces)


def _kept_lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def replace_file(path: str | os.PathLike[str], text: str) -> None:
    """Puts a new text in the place of a file at once, in its own encoding and with its own permissions."""
    target = os.path.realpath(path)  # a symbolic link stays one
    temporary = None
    try:
        with open(target, "rb") as file:
            old = file.read()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(old).readline)  # "utf-8-sig" where there is a BOM
        data = text.encode(encoding)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".hotlap-")
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(temporary, target)
    except (OSError, SyntaxError, UnicodeEncodeError) as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise HotlapError(f"{os.fspath(path)} was left as it is, since it cannot be written: {reason}.") from error
