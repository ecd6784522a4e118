"""Edits as replaced spans of characters, applied to a text all at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from hotlap.source.positions import Lines


@dataclass(frozen=True, order=True)
class Edit:
    """Replaces the characters `start` to `end` of a text; an insertion when they are equal. What is only moved says at
    which line it stood, and what imports says which names."""

    start: int
    end: int
    text: str
    stood_at: int | None = field(default=None, compare=False)
    imports: frozenset[tuple[str, str, str]] = field(default=frozenset(), compare=False)


class OverlappingEdits(ValueError):
    """Two edits want the same characters."""


def in_order(edits: Iterable[Edit]) -> list[Edit]:
    """Edits by position, identical ones once, and no import beside another that has all of it; insertions at one place
    keep the order they were given in."""
    known = dict.fromkeys(edits)
    imported = [edit.imports for edit in known if edit.imports]
    needed = [edit for edit in known if not (edit.imports and any(edit.imports < more for more in imported))]
    ordered = sorted(needed, key=lambda edit: (edit.start, edit.end))
    for before, after in pairwise(ordered):
        if after.start < before.end or (before.start, before.end) == (after.start, after.end) != (after.end, after.end):
            raise OverlappingEdits(f"edits overlap at characters {after.start} to {before.end}")
    return ordered


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits made."""
    pieces: list[str] = []
    done = 0
    for edit in in_order(edits):
        pieces += text[done : edit.start], edit.text
        done = edit.end
    return "".join([*pieces, text[done:]])


def line_map(text: str, edits: Iterable[Edit]) -> dict[int, int]:
    """For every line of the edited text, the line of the old text it came from, or that it was inserted at."""
    ordered = in_order(edits)
    old, new = Lines(text), Lines(apply_edits(text, ordered))
    lines: dict[int, int] = {}
    upcoming = iter(ordered)
    edit = next(upcoming, None)
    shift = 0  # how much further right the kept characters before `edit` stand in the new text
    for line in range(1, len(new) + 1):
        start = new.start(line)
        while edit is not None and start >= edit.start + shift + len(edit.text):
            shift += len(edit.text) - (edit.end - edit.start)
            edit = next(upcoming, None)
        if edit is not None and edit.stood_at is not None and start >= edit.start + shift:
            lines[line] = edit.stood_at + line - new.line_at(edit.start + shift)
        elif edit is not None and start > edit.start + shift:  # the line begins inside inserted text
            lines[line] = old.line_at(edit.start)
        else:
            lines[line] = old.line_at(start - shift)
    return lines
