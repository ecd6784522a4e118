"""A profile on one screen: so many rows on every subject as there is room for, the worst of each first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import ConsoleOptions, Group
from rich.table import Table
from rich.text import Text

from hotlap.report import anatomy, figures, screen, wording
from hotlap.report.profile_findings import ProfileReport
from hotlap.report.screen import BAD, GOOD, QUIET, STRONG, one_line, tail

# rows a subject, and whether blank lines must go; below one row, subjects are left out in the order that follows
FITS = tuple((rows, False) for rows in (12, 9, 7, 5, 4, 3)) + tuple((rows, True) for rows in range(6, -12, -1))
FIRST_TO_GO = ("in use", "cannot help", "model", "unused", "note", "layers", "inputs", "a batch", "memory")
FEWEST_SHARES = 3
LABELS = 13  # columns, with the gap behind

Subject = tuple[str, Any]  # a label, and what stands beside it


def profile(report: ProfileReport) -> Any:
    """Where the steps went, why, and what could help."""
    return screen.Screen(lambda options, rows, tight: _Drawing(report, options, rows, tight).drawn(), FITS)


class _Drawing:
    """One attempt, with so many rows a subject."""

    def __init__(self, report: ProfileReport, options: ConsoleOptions, rows: int, tight: bool) -> None:
        self.report, self.options, self.tight = report, options, tight
        self.rows, self.left_out = max(rows, 1), max(0, -rows)
        self.width = options.max_width

    def drawn(self) -> Group:
        gone = FIRST_TO_GO[: self.left_out]
        groups = [
            [*self.waits(), *self.batch()],
            self.memory(),
            [*self.layers(), *self.remarks()],
            [*self.verdicts(), *self.notes()],
        ]
        groups = [[one for one in group if one[0] not in gone] for group in groups]
        parts = [self.opening(), self.shares(), *(_beside(group) for group in groups)]
        return screen.spaced([*parts, screen.commands(wording.next_commands(self.report))], self.tight)

    def opening(self) -> list[Any]:
        report = self.report
        title, timed = self.line(anatomy.headline(report), STRONG), anatomy.timed(report)
        is_short = title.cell_len + 3 + len(timed) <= self.width
        gap = "   " if is_short else "\n"
        title.append(f"{gap}{timed}", style=f"not bold {QUIET}")
        evidence = report.bound.evidence[: 3 if self.rows > 3 else 2 if self.rows > 1 else 1]
        about = f"{anatomy.busy(report)}; {figures.line(report.facts.hardware or report.device)}"
        ending = [self.cut(anatomy.failure(report), 2, BAD)] if anatomy.failure(report) else []
        return [title, *ending, *(self.cut(text, 2) for text in evidence), self.fitting(about, QUIET)]

    def shares(self) -> list[Any]:
        """Host and device beside each other, in the order of a step."""
        report, device = self.report, self.report.device_shares
        weight = {
            name: max(report.shares.get(name, 0.0), (device or {}).get(name, 0.0))
            for name in wording.shares(report.shares, device or {})
        }
        most = max(FEWEST_SHARES, len(weight) - self.left_out // 2)
        shown = set(sorted(weight, key=lambda name: -weight[name])[:most])
        is_roomy = self.width >= (118 if device else 96)
        is_explained = is_roomy or (not device and self.width >= 78)
        bar = 24 if is_roomy else max(4, min(14, (self.width - 46) // 2) if device else min(18, self.width - 28))
        table = Table.grid(padding=(0, 1))
        for k in range(8 if device else 5):
            table.add_column(justify="right" if k % 3 != 1 and 0 < k < 7 else "left", no_wrap=True)
        if device:
            table.add_row("", Text("host", QUIET), "", "", Text("device", QUIET))
        for name in weight:
            if name in shown:
                cells = self.share(report.shares.get(name, 0.0), max(weight.values()), bar)
                cells += self.share(device.get(name, 0.0), max(weight.values()), bar) if device else []
                meaning = wording.SHARE_MEANINGS.get(name, "") if is_explained else ""
                table.add_row(name, *cells, Text(meaning, QUIET))
        return [table] if weight else []

    def share(self, share: float, largest: float, width: int) -> list[Any]:
        if not share > 0:
            return [" " * width, "", ""]
        drawn = screen.bar(share / largest, width, self.options.ascii_only).ljust(width)
        time = figures.like(self.report.step_seconds * share, self.report.step_seconds)
        return [Text(drawn, "yellow" if share == largest else "cyan"), time, figures.percent(share)]

    def waits(self) -> list[Subject]:
        steps, most = self.report.steps, min(self.rows, 5)
        found, spared = anatomy.waits(self.report), len(anatomy.not_blamed(self.report))
        cells = []
        for one in found[:most]:
            where, often = self.place(one.path, one.line), anatomy.how_often(one, steps)
            cells.append((where, self.name(one.kind), often, f"{anatomy.cost(one, steps)} a step"))
        more = f"; {figures.plural(spared, 'line')} in evaluation only" if spared else ""
        return [("host waits", [self.columns(cells), *self.more(len(found) - most, more)])] if found else []

    def batch(self) -> list[Subject]:
        feeding = self.report.feeding
        if feeding is None:
            return []
        found, supply = anatomy.makings(feeding), anatomy.supply(feeding)
        said: list[Any] = []
        if self.tight:
            short = [f"{one.what} {figures.percent(share)} {anatomy.place(one.path, one.line)}" for one, share in found]
            said.append(self.line(f"{figures.seconds(feeding.batch_seconds)}: {', '.join(map(str.strip, short))}"))
        else:
            cells = []
            for one, share in found[: min(self.rows, 5)]:
                takes, where = figures.seconds(one.seconds), self.place(one.path, one.line)
                cells.append((self.name(one.what), takes, figures.percent(share), where))
            said += [self.columns(cells, right=(1, 2)), self.line(anatomy.batch(feeding), QUIET)]
        advice = ["; ".join(feeding.advice[:2])] if self.tight and feeding.advice else feeding.advice[: self.rows]
        if supply and (self.rows > 1 or not advice):
            said.append(self.fitting(supply, QUIET))
        return [("a batch", [*said, *(self.cut(text, 2) for text in advice)])]

    def memory(self) -> list[Subject]:
        report = self.report
        parts = [f"{anatomy.said(name)} {figures.bytes_(size)}" for name, size in anatomy.composition(report.memory)]
        found: list[Subject] = []
        if report.memory and self.rows > 1:
            whole = [anatomy.peak(report), *anatomy.room(report)]
            found.append(("memory", [self.fitting(", ".join(text)) for text in (whole, parts) if text]))
        elif report.memory:
            found.append(("memory", [self.line(", ".join([anatomy.peak(report), *anatomy.room(report)[-1:], *parts]))]))
        grown = [self.cut(anatomy.growth(one), 2, BAD) for one in report.growth[: self.rows]]
        return [*found, *([("growing", grown)] if grown else [])]

    def layers(self) -> list[Subject]:
        found = anatomy.layers(self.report)
        if not found:
            return [("layers", [self.cut(self.report.look, 2, QUIET)])] if self.report.look else []
        cells = []
        for one in found[: self.rows]:
            name = tail(figures.line(anatomy.layer_name(one, self.report)), max(16, self.width // 4), self.options)
            takes = figures.seconds(anatomy.layer_seconds(one)), figures.percent(one.share)
            is_wide, per_byte, part = self.width >= 118, anatomy.intensity(one), anatomy.of_roof(one)
            figures_ = [anatomy.flop(one), f"{per_byte} flop/B" if per_byte and is_wide else ""]
            figures_ += [f"{part} of roof" if part else "", one.bound if is_wide else ""]
            cells.append((name, self.name(one.kind), *takes, *figures_, "; ".join(one.notes)))
        more = self.more(len(found) - self.rows)
        return [("layers", [self.columns(cells, right=(2, 3, 4, 5, 6)), *more])]

    def remarks(self) -> list[Subject]:
        """What is odd about model and inputs."""
        most = max(1, self.rows // 2)
        odd = [self.line(f"{one.name}: {remark}", BAD) for one, remark in anatomy.odd_inputs(self.report)]
        unused = [self.line(anatomy.unused(self.report, 2 + 2 * most))] if self.report.unused else []
        shape = [self.line(text) for text in self.report.remarks]
        return [one for one in (("inputs", odd[:most]), ("unused", unused), ("model", shape[:most])) if one[1]]

    def verdicts(self) -> list[Subject]:
        found = anatomy.could_help(self.report)
        subjects: list[Subject] = []
        if found and self.rows < 3:
            short = [f"{one.technique} {figures.gain(one.most)}" for one in found]
            subjects.append(("could help", [self.line(f"at most: {', '.join(short)}", GOOD)]))
        elif found:
            cells = [(self.name(one.technique, 3), figures.gain(one.most), one.why) for one in found[: self.rows]]
            hopes = self.columns(cells, right=(1,), style=GOOD)
            subjects.append(("could help\n(at most)", [hopes, *self.more(len(found) - self.rows)]))
        elif self.report.verdicts:
            subjects.append(("could help", [Text("nothing in the catalogue", STRONG)]))
        for state in ("in use", "cannot help"):
            rest = [verdict for verdict in self.report.verdicts if verdict.state == state]
            drawn: Any = self.fitting(", ".join(one.technique for one in rest), QUIET)
            if state == "cannot help" and not self.tight and 0 < len(rest) <= self.rows:
                drawn = self.columns([(self.name(one.technique, 3), one.why) for one in rest], style=QUIET)
            subjects += [(state, [drawn])] if rest else []
        return subjects

    def notes(self) -> list[Subject]:
        said = [self.fitting(text) for text in self.report.caveats[: self.rows]]
        return [("note", said)] if said else []

    def line(self, text: str, style: str = "") -> Text:
        return one_line(figures.line(text), self.options, style)

    def fitting(self, text: str, style: str = "") -> Text:
        """Broken once where there is room for that, else cut."""
        return self.line(text, style) if self.tight else self.cut(text, 2, style)

    def cut(self, text: str, lines: int, style: str = "") -> Text:
        """Broken, but not into more than so many lines."""
        found = Text(figures.line(text), style)
        found.truncate((self.width - LABELS) * lines, overflow="crop" if self.options.ascii_only else "ellipsis")
        return found

    def place(self, path: str, line: int) -> str:
        return tail(figures.line(anatomy.place(path, line)), self.width // 3, self.options)

    def name(self, text: str, parts: int = 6) -> str:
        return tail(figures.line(text), max(14, self.width // parts), self.options)

    def more(self, left: int, besides: str = "") -> list[Text]:
        """That there is more; not worth a line where lines are short."""
        said = (f"{left} more" if left > 0 else "") + besides
        return [self.line(said.removeprefix("; "), QUIET)] if said and not self.tight else []

    def columns(self, rows: Sequence[Sequence[str]], right: tuple[int, ...] = (), style: str = "") -> Table:
        """Rows of one line each, the first column in a style. Figures keep their width: the last column gives way."""
        table = Table.grid(padding=(0, 2, 0, 0))
        drawn = [[self.line(cell) for cell in row] for row in rows]
        widths = [max(cell.cell_len for cell in column) for column in zip(*drawn, strict=True)]
        used = [k for k, width in enumerate(widths) if width]
        room = self.width - LABELS
        while len(used) > 1 and sum(widths[k] + 2 for k in used[:-1]) + min(widths[used[-1]], 12) > room:
            used.pop()
        for k in used:
            last = {} if k == used[-1] else {"width": widths[k]}
            table.add_column(justify="right" if k in right else "left", style=style if k == 0 else "", **last)
        for row in drawn:
            table.add_row(*(row[k] for k in used))
        return table


def _beside(subjects: Sequence[Subject]) -> list[Any]:
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, no_wrap=True, width=LABELS - 2)
    table.add_column(overflow="fold")
    for label, said in subjects:
        table.add_row(label, Group(*said))
    return [table] if subjects else []
