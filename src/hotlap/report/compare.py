"""Two profiles beside each other: what a change to the script did, as far as two single runs can tell."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hotlap.report import anatomy, figures, wording
from hotlap.report.profile_findings import ProfileReport, Sync
from hotlap.report.screen import BAD, GOOD, QUIET, STRONG

NOISE = 0.10  # of a step: less between two single runs means nothing
CAVEAT = "Two single runs, not alternated: differences below about 10 % mean nothing. `hotlap tune` alternates."


def compare(before: ProfileReport, after: ProfileReport) -> Any:
    """The step, its shares, memory, host waits and bound, before and after."""
    parts: list[Any] = [_headline(before, after), *(Text(text, BAD) for text in differences(before, after))]
    shares = _shares(before, after)
    parts += [Text(), *shares] if shares else []
    rest = _rest(before, after)
    parts += [Text(), rest] if rest.row_count else []
    return Group(*parts, Text(), Text(CAVEAT, QUIET))


def differences(before: ProfileReport, after: ProfileReport) -> list[str]:
    """What else differs, and so may be the reason."""
    pairs = (
        ("hardware", before.facts.hardware or before.device, after.facts.hardware or after.device),
        ("torch", before.torch, after.torch),
        ("script", before.script, after.script),
        ("arguments", shlex.join(before.arguments), shlex.join(after.arguments)),
    )
    return [
        f"not the same {name}, which may be the reason: {figures.line(old) or 'none'} -> {figures.line(new) or 'none'}"
        for name, old, new in pairs
        if old != new
    ]


def _headline(before: ProfileReport, after: ProfileReport) -> Text:
    old, new = before.step_seconds, after.step_seconds
    said = f"{figures.before_after(old, new)} a step"
    if not (figures.known(old) and figures.known(new) and old > 0 and new > 0):
        return Text(said, STRONG)
    if abs(new - old) < NOISE * max(old, new):
        return Text(f"{said} ({figures.ratio(old / new)}): too little for two runs to tell", STRONG)
    verdict = "faster" if new < old else "slower"
    return Text(f"{said} ({figures.ratio(max(old, new) / min(old, new))} {verdict})", f"{STRONG} {_colour(new - old)}")


def _shares(before: ProfileReport, after: ProfileReport) -> list[Any]:
    clocks = [("host", before.shares, after.shares)]
    if before.device_shares is not None and after.device_shares is not None:
        clocks.append(("device", before.device_shares, after.device_shares))
    drawn: list[Any] = []
    for clock, old, new in clocks:
        names = wording.shares(old, new)
        if not names:
            continue
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=f"{QUIET} not bold")
        table.add_column(clock, min_width=8)
        for column in ("before", "after", "difference"):
            table.add_column(column, justify="right", no_wrap=True)
        for name in names:
            table.add_row(name, *_cells(old.get(name, 0.0), new.get(name, 0.0), before, after))
        drawn += [Text(), table] if drawn else [table]
    return drawn


def _cells(old_share: float, new_share: float, before: ProfileReport, after: ProfileReport) -> tuple[str, str, Text]:
    old, new = before.step_seconds * old_share, after.step_seconds * new_share
    whole = max(before.step_seconds, after.step_seconds)
    counts = figures.known(new - old) and abs(new - old) >= NOISE * whole
    said = figures.like(new - old, whole, "+")
    said = "same" if figures.known(new - old) and not set(said) & set("123456789") else said
    difference = Text(said, _colour(new - old) if counts else QUIET)
    return figures.like(old, whole), figures.like(new, whole), difference


def _rest(before: ProfileReport, after: ProfileReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    words = [anatomy.bound_by(one) or figures.UNKNOWN for one in (before, after)]
    if before.bound.by != after.bound.by:
        table.add_row("bound by", " -> ".join(words))
    elif before.bound.by in anatomy.BOUND:
        table.add_row("bound by", f"{words[0]}, as before")
    old, new = before.memory.get("peak", 0.0), after.memory.get("peak", 0.0)
    if old or new:
        table.add_row("memory", f"{figures.bytes_before_after(old, new)} at the peak")
    for label, text, style in (*_waits(before, after), *_growth(before, after)):
        table.add_row(label, Text(text, style))
    return table


def _waits(before: ProfileReport, after: ProfileReport) -> Iterator[tuple[str, str, str]]:
    for label, these, others, style in (("gone", before, after, GOOD), ("new", after, before, BAD)):
        yield from ((f"{label} wait", text, style) for text in _surplus(these, others))


def _surplus(these: ProfileReport, others: ProfileReport) -> Iterator[str]:
    """Waits that the others do not have. Editing moves lines, so it is their number in a file that counts."""
    there = {(sync.path, sync.kind, sync.line) for sync in anatomy.waits(others)}
    groups: dict[tuple[str, str], list[Sync]] = {}
    for sync in anatomy.waits(these):
        groups.setdefault((sync.path, sync.kind), []).append(sync)
    for (path, kind), found in groups.items():
        more = len(found) - sum(one[:2] == (path, kind) for one in there)
        missing = [sync for sync in found if (path, kind, sync.line) not in there]
        what = f" ({figures.line(kind)})" if kind else ""
        if 0 < more < len(missing):
            yield f"{more} of {len(found)} in {path}{what}; lines have moved, so which is not known"
        elif more > 0:
            for sync in missing:
                cost = f"{anatomy.how_often(sync, these.steps)}, {anatomy.cost(sync, these.steps)} a step"
                yield f"{anatomy.place(path, sync.line)}{what}: {cost}"


def _growth(before: ProfileReport, after: ProfileReport) -> Iterator[tuple[str, str, str]]:
    if before.growth and not after.growth:
        yield "memory", "no longer grows", GOOD
    if not before.growth:
        yield from (("growing", anatomy.growth(one), BAD) for one in after.growth)


def _colour(change: float) -> str:
    return GOOD if change < 0 else BAD
