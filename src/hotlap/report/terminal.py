"""A report on one screen: as much of each list as there is room for, the rest is in the saved report."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hotlap.report import figures, wording
from hotlap.report.findings import ProfileReport, TuneReport

TALL = 40  # lines, where there is no screen to ask
GOOD, BAD, QUIET, STRONG = "green", "red", "dim", "bold"
# rows a list, and whether blank lines and side remarks must go: tried in turn until the screen holds it
FITS = (
    (12, False),
    (9, False),
    (7, False),
    (5, False),
    (4, False),
    (5, True),
    (4, True),
    (3, True),
    (2, True),
    (1, True),
)
BLOCKS = " ▏▎▍▌▋▊▉█"


def tune(report: TuneReport) -> Any:
    """What tuning found."""
    return _Screen(lambda options, rows, tight: _tune(report, rows, tight))


def profile(report: ProfileReport) -> Any:
    """Where the steps went, and what could help."""
    return _Screen(lambda options, rows, tight: _profile(report, options, rows, tight))


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


def to_text(renderable: Any, width: int = 100, color: bool = False) -> str:
    """What a terminal of this width would show."""
    target = io.StringIO()
    system: Any = "truecolor" if color else None
    console = Console(
        file=target,
        width=width,
        height=TALL,
        force_terminal=color,
        color_system=system,
        legacy_windows=False,
        no_color=not color,
    )
    console.print(renderable)
    return "".join(f"{line.rstrip()}\n" for line in target.getvalue().splitlines()) if not color else target.getvalue()


class _Screen:
    """Draws with ever fewer rows a list until the whole thing fits the height."""

    def __init__(self, draw: Callable[[ConsoleOptions, int, bool], Any]) -> None:
        self.draw = draw

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = console.height - 1 if console.is_terminal else TALL  # a prompt comes after
        lines: list[list[Segment]] = []
        for rows, tight in FITS:
            lines = console.render_lines(self.draw(options, rows, tight), options, pad=False)
            if len(lines) <= room:
                break
        for line in lines:
            yield from line
            yield Segment.line()


def _tune(report: TuneReport, rows: int, tight: bool) -> Any:
    title = Text(wording.headline(report), style=f"{STRONG} {GOOD}" if wording.is_proven(report) else STRONG)
    parts: list[list[Any]] = [[title, Text(_second_line(report), style=QUIET)]]
    if report.kept:
        most = max(rows, 5)  # the plan itself gives way last
        table = _table(_head("kept", report.kept, most), "set to", "gain", "parity", right=("gain",))
        for kept in report.kept[:most]:
            table.add_row(kept.technique, figures.setting(kept.setting), figures.ratio(kept.ratio), kept.parity)
        parts.append([table])
    if report.rejected:
        table = _table(_head("rejected", report.rejected, rows), "why")
        for rejected in report.rejected[:rows]:
            table.add_row(_with_setting(rejected.technique, rejected.setting), figures.line(rejected.reason))
        parts.append([table])
    parts.append([_tune_figures(report, rows, tight)])
    parts.append(_commands(wording.commands(report)))
    return _spaced(parts, tight)


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
        table.add_row("not tried", f"{len(names)}: {_some(names, 3 if tight else rows + 2)}")
    if report.kept or report.parity:
        failed = [check for check in report.parity if not check.passed]
        table.add_row("parity", Text(wording.parity(report), style=BAD if failed else ""))
        # what failed is always named; what passed only where there is room
        for check in failed[:rows] or (report.parity if rows >= 9 else []):
            table.add_row("", f"{check.what}: {figures.plain(check.figure)} ({check.limit})")
    gain = f"smallest gain this machine can show {figures.ratio(report.smallest_gain)}"
    table.add_row("A against A", f"{wording.a_against_a(report)}; {gain}")
    table.add_row("cost", wording.cost(report))
    for caveat in report.caveats[: 1 if tight else 4]:
        table.add_row("note", figures.line(caveat))
    return table


def _profile(report: ProfileReport, options: ConsoleOptions, rows: int, tight: bool) -> Any:
    title = Text(f"{figures.seconds(report.step_seconds)} a step", style=STRONG)
    title.append(f"   median of {figures.plural(report.steps, 'step')}, {report.ending}", style=QUIET)
    parts: list[list[Any]] = [[title, Text(_busy(report), style=QUIET)]]
    names = wording.shares(report.shares)
    if names:
        parts.append([_share_bars(report, names, options)])
    if report.syncs:
        most = min(rows, 2 if tight else 5)
        table = _table(
            _head("host waits at", report.syncs, most), "times", "a step", "in all", right=("times", "a step", "in all")
        )
        for sync in report.syncs[:most]:
            a_step = figures.seconds(sync.seconds / report.steps) if report.steps else figures.UNKNOWN
            table.add_row(f"{sync.path}:{sync.line}", figures.count(sync.count), a_step, figures.seconds(sync.seconds))
        parts.append([table])
    if report.memory:
        said = ", ".join(f"{name} {figures.bytes_(value)}" for name, value in report.memory.items())
        parts.append([Text.assemble(("memory  ", QUIET), said, no_wrap=tight, overflow="ellipsis")])
    parts.append(_verdicts(report, rows, tight))
    parts.append([Text.assemble(("note  ", QUIET), figures.line(one)) for one in report.caveats[: 1 if tight else 4]])
    parts.append(_commands(wording.next_commands(report)))
    return _spaced(parts, tight)


def _busy(report: ProfileReport) -> str:
    said = [report.device, f"{report.cpu_busy:.1f} cores busy"]
    if report.device_busy is not None:
        said.append(f"device busy {figures.percent(report.device_busy)} of the time")
    if report.evaluation_seconds:
        said.append(f"evaluation {figures.seconds(report.evaluation_seconds)}")
    return ", ".join(said)


def _share_bars(report: ProfileReport, names: Sequence[str], options: ConsoleOptions) -> Table:
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    largest = max(report.shares[name] for name in names)
    width = 28 if options.max_width >= 96 else 18
    for name in names:
        share = report.shares[name]
        style = "yellow" if share == largest else "cyan"
        table.add_row(
            name,
            Text(_bar(share / largest, width, options.ascii_only).ljust(width), style=style),
            figures.like(report.step_seconds * share, report.step_seconds),
            figures.percent(share),
            Text(wording.SHARE_MEANINGS.get(name, ""), style=QUIET),
        )
    return table


def _bar(part: float, width: int, plain: bool) -> str:
    if plain:
        return "#" * max(1, round(part * width))
    whole, rest = divmod(max(1, round(part * width * 8)), 8)
    return BLOCKS[8] * whole + (BLOCKS[rest] if rest else "")


def _verdicts(report: ProfileReport, rows: int, tight: bool) -> list[Any]:
    could = sorted((v for v in report.verdicts if v.state == "could help"), key=lambda one: -one.most)
    parts: list[Any] = []
    if could:
        table = _table(_head("could help", could, rows), "at most", "why", right=("at most",))
        for verdict in could[:rows]:
            table.add_row(Text(verdict.technique, style=GOOD), figures.gain(verdict.most), figures.line(verdict.why))
        parts.append(table)
    elif report.verdicts:
        parts.append(Text("nothing in the catalogue could help here", style=STRONG))
    used = [verdict.technique for verdict in report.verdicts if verdict.state == "in use"]
    cannot = [verdict for verdict in report.verdicts if verdict.state == "cannot help"]
    if used:
        parts.append(Text.assemble(("in use  ", QUIET), ", ".join(used)))
    if cannot and tight:
        parts.append(Text.assemble(("cannot help  ", QUIET), _some([one.technique for one in cannot], rows)))
    elif cannot:
        table = _table(_head("cannot help", cannot, rows), "why")
        for verdict in cannot[:rows]:
            table.add_row(Text(verdict.technique, style=QUIET), Text(figures.line(verdict.why), style=QUIET))
        parts.append(table)
    return parts


def _spaced(parts: Sequence[Sequence[Any]], tight: bool) -> Group:
    """Parts with a blank line between; tight ones have none but that before the commands."""
    filled = [part for part in parts if part]
    between = [Text()] * (not tight)
    lines = [piece for part in filled[:-1] for piece in (*part, *between)]
    return Group(*lines, *([Text()] if tight else []), *filled[-1])


def _some(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=f"{QUIET} not bold")
    for column in columns:
        # the name may be as long as it likes, the explanation gives way
        table.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in right
        )
    return table


def _with_setting(technique: str, values: dict[str, Any]) -> str:
    return f"{technique} ({figures.setting(values)})" if values else technique


def _head(what: str, items: Sequence[Any], shown: int) -> str:
    return f"{what}, {shown} of {len(items)}" if len(items) > shown else what


def _commands(found: Sequence[str]) -> list[Any]:
    return [Padding(Text(command, style="cyan", overflow="fold"), (0, 0, 0, 2)) for command in found]
