"""A report on one screen: as much of each list as there is room for, the rest is in the saved report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hotlap.report import figures, screen, wording
from hotlap.report.findings import TuneReport, VerifyReport
from hotlap.report.screen import BAD, GOOD, QUIET, STRONG, to_text
from hotlap.report.terminal_profile import profile

__all__ = ["profile", "readiness", "to_text", "tune", "verify"]


def tune(report: TuneReport) -> Any:
    """What tuning found."""
    return screen.Screen(lambda options, rows, tight: _tune(report, rows, tight))


def readiness(hardware: str, rows: Sequence[Any]) -> Any:
    """A machine's findings, each with `ok`, `name`, `finding` and `remedy`."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    marks = {True: Text("ok", GOOD), False: Text("mend", BAD), None: Text("-", QUIET)}
    for row in rows:
        said = Text(row.finding)
        if row.remedy:
            said.append(f"\n{row.remedy}", STRONG)
        table.add_row(marks[row.ok], row.name, said)
    return Group(Text(hardware, STRONG), table)


def verify(report: VerifyReport) -> Any:
    """Every figure of a parity test beside the one on record."""
    failed = [check.what for check in report.checks if not check.passed]
    verdict = Text("still the same training" if report.passed else f"no longer the same training: {failed[0]}")
    verdict.stylize(f"{STRONG} {GOOD if report.passed else BAD}")
    table = screen.table("figure", "then", "now", "limit", "", right=("then", "now"))
    for check in report.checks:
        mark = Text("ok", GOOD) if check.passed else Text("FAILED", BAD)
        then = "-" if check.then is None else figures.plain(check.then)
        table.add_row(check.what, then, figures.plain(check.now), check.limit, mark)
    notes = Table.grid(padding=(0, 2))
    notes.add_column(style=QUIET, no_wrap=True)
    notes.add_column(overflow="fold")
    notes.add_row("plan", Text(", ".join(report.plan)))
    for number, change in enumerate(report.changed or ["nothing"]):
        notes.add_row("changed since" if number == 0 else "", Text(change))
    speed = f"{figures.interval(report.speedup_then)} on {report.date_then}"
    if report.speedup is not None:
        speed += f"; now {figures.interval(report.speedup)} by a few pairs"
    notes.add_row("speed-up", speed)
    for caveat in report.caveats:
        notes.add_row("note", Text(caveat))
    return Group(verdict, Text(), table, Text(), notes)


def _tune(report: TuneReport, rows: int, tight: bool) -> Any:
    title = Text(wording.headline(report), style=f"{STRONG} {GOOD}" if wording.is_proven(report) else STRONG)
    parts: list[list[Any]] = [[title, Text(_second_line(report), style=QUIET)]]
    if report.kept:
        most = max(rows, 5)  # the plan itself gives way last
        table = screen.table(screen.head("kept", report.kept, most), "set to", "gain", "parity", right=("gain",))
        for kept in report.kept[:most]:
            table.add_row(kept.technique, figures.setting(kept.setting), wording.taken_in(kept), kept.parity)
        parts.append([table])
    if report.rejected:
        table = screen.table(screen.head("rejected", report.rejected, rows), "why")
        for rejected in report.rejected[:rows]:
            table.add_row(_with_setting(rejected.technique, rejected.setting), figures.line(rejected.reason))
        parts.append([table])
    parts.append([_tune_figures(report, rows, tight)])
    parts.append(screen.commands(wording.commands(report)))
    return screen.spaced(parts, tight)


def _second_line(report: TuneReport) -> str:
    if not wording.is_proven(report):
        return wording.why(report)
    said = []
    rates = wording.samples_a_second(report)
    if rates is not None:
        said.append(f"{figures.count(rates[0])} -> {figures.count(rates[1])} samples a second")
    if report.peak_bytes_before and report.peak_bytes_after:
        said.append(f"{figures.bytes_before_after(report.peak_bytes_before, report.peak_bytes_after)} at the peak")
    return ", ".join(said) or wording.why(report)


def _tune_figures(report: TuneReport, rows: int, tight: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column(overflow="fold")
    if report.not_tried:
        names = [one.technique for one in report.not_tried]
        table.add_row("not tried", f"{len(names)}: {figures.some(names, 3 if tight else rows + 2)}")
    if report.kept or report.parity:
        failed = [check for check in report.parity if not check.passed]
        table.add_row("parity", Text(wording.parity(report), style=BAD if failed else ""))
        # what failed is always named; what passed only where there is room
        for check in failed[:rows] or (report.parity if rows >= 9 else []):
            table.add_row("", f"{check.what}: {figures.plain(check.figure)} ({check.limit})")
    gain = f"smallest gain this machine can show {figures.ratio(report.smallest_gain)}"
    table.add_row("A against A", f"{wording.a_against_a(report)}; {gain}")
    if report.epoch is not None:
        table.add_row("epochs", wording.epoch(report))
    table.add_row("cost", wording.cost(report))
    if report.compiled:
        table.add_row("compiler", figures.line(report.compiled))
    said = 1 if not report.kept and report.cut_short else 0  # under the headline already
    for caveat in report.caveats[said : said + (1 if tight else 4)]:
        table.add_row("note", figures.line(caveat))
    if report.hosts:
        table.add_row("network", figures.line(wording.hosts(report, 3 if tight else rows + 2)))
    return table


def _with_setting(technique: str, values: dict[str, Any]) -> str:
    return f"{technique} ({figures.setting(values)})" if values else technique
