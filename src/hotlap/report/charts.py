"""The charts of a report, drawn once: as SVG to stand inside a page, and as PDF to lie beside a paper.

A chart function returns a figure, or None where there is nothing to draw; nobody shows an empty chart.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from hotlap.report import canvas, charts_profile, figures, wording
from hotlap.report.findings import TuneReport
from hotlap.report.profile_findings import ProfileReport

BEFORE, AFTER = "#0072b2", "#e69f00"

ROW = 0.27
MOST_ROWS = 14
MOST_DOTS = 24  # of one trial; more only make the page heavy
MOST_TRIALS = 48


def step(report: TuneReport) -> Any | None:
    """The step before, what each share saved or cost, and the step after, as a waterfall."""
    found = wording.share_seconds(report)
    if not found or not report.before_seconds > 0:
        return None
    has_after = found[0][2] is not None
    changes = [(name, after - before) for name, before, after in found if after is not None]
    total = max(report.before_seconds, report.after_seconds)
    changes = [(name, change) for name, change in changes if abs(change) >= 0.002 * total]
    rows = ["before", *(name for name, _ in changes), "after"] if has_after else ["a step"]
    figure, axes = canvas.figure((0.6 if has_after else 1.0) + ROW * 1.1 * len(rows))
    scale, unit = (1e3, "ms") if total < 1.5 else (1.0, "s")
    _stack(axes, 0, [(name, before * scale) for name, before, _ in found])
    _say(axes, report.before_seconds * scale, 0, figures.seconds(report.before_seconds))
    level = report.before_seconds
    for row, (name, change) in enumerate(changes, start=1):
        axes.barh(row, change * scale, left=level * scale, height=0.66, color=canvas.colour(name))
        _say(axes, max(level, level + change) * scale, row, figures.like(change, report.before_seconds, "+"))
        axes.plot([(level + change) * scale] * 2, [row - 0.33, row + 1.33], color=canvas.QUIET, linewidth=0.7)
        level += change
    if has_after:
        _stack(axes, len(rows) - 1, [(name, (after or 0.0) * scale) for name, _, after in found])
        _say(
            axes, report.after_seconds * scale, len(rows) - 1, figures.like(report.after_seconds, report.before_seconds)
        )
    else:
        canvas.share_key(axes, [name for name, _, _ in found])
    axes.set_xlim(0, total * scale * 1.16)
    _rows(axes, rows)
    axes.set_xlabel(f"{unit} a step")
    return figure


def ablation(report: TuneReport) -> Any | None:
    """Each technique alone, and the plan without it, as speed-up over the script as it is."""
    found = [one for one in report.ablation if figures.known(one.alone) or figures.known(one.left_out)][:MOST_ROWS]
    if not found:
        return None
    figure, axes = canvas.figure(0.95 + ROW * 1.75 * len(found))
    largest = 1.0
    for row, one in enumerate(found):
        for offset, value, colour in ((-0.2, one.alone, BEFORE), (0.2, one.left_out, AFTER)):
            if value is not None and figures.known(value):
                axes.barh(row + offset, value, height=0.36, color=colour)
                _say(axes, value, row + offset, figures.ratio(value))
                largest = max(largest, value)
    axes.axvline(1.0, color=canvas.INK, linewidth=0.8)
    if report.speedup is not None and figures.known(report.speedup.ratio):
        axes.axvline(report.speedup.ratio, color=canvas.INK, linewidth=0.8, linestyle=(0, (4, 3)))
        largest = max(largest, report.speedup.ratio)
    axes.set_xlim(0, largest * 1.14)
    _rows(axes, [_short(one.technique) for one in found])
    axes.set_xlabel("speed-up over the script as it is")
    handles = [canvas.swatch("alone", BEFORE), canvas.swatch("left out of the plan", AFTER)]
    if report.speedup is not None:
        handles.append(canvas.line(f"plan {figures.ratio(report.speedup.ratio)}", canvas.INK, (0, (4, 3))))
    canvas.legend(axes, handles)
    return figure


def losses(report: TuneReport) -> Any | None:
    """The two loss curves on top of one another, over the band that other seeds leave the script in."""
    before, after = canvas.finite_points(report.losses_before), canvas.finite_points(report.losses_after)
    if len(before) < 2 or len(after) < 2:
        return None
    figure, axes = canvas.figure(2.6)
    handles = [canvas.line("script as it is", BEFORE, "-", 2.4), canvas.line("with the plan", AFTER, "-", 1.1)]
    low, high = (canvas.finite_points([bounds[end] for bounds in report.losses_spread]) for end in (0, 1))
    if low and high:
        numbers, lows = zip(*low, strict=True)
        axes.fill_between(numbers, lows, [value for _, value in high], color=BEFORE, alpha=0.16, linewidth=0)
        handles.append(canvas.swatch("script with other seeds", BEFORE, 0.16))
    axes.plot(*zip(*before, strict=True), color=BEFORE, linewidth=2.4, alpha=0.75, solid_capstyle="round")
    axes.plot(*zip(*after, strict=True), color=AFTER, linewidth=1.1)
    axes.grid(axis="y")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    canvas.legend(axes, handles)
    return figure


def trials(report: TuneReport) -> Any | None:
    """Step times of every trial in the order in which they ran: dots are steps, the dash is the median."""
    found = [trial for trial in report.trials if _settled(trial.step_seconds, trial.warmup_steps)]
    if len(found) > MOST_TRIALS:
        found = [trial for trial in found if trial.label in ("baseline", "plan")][:MOST_TRIALS]
    if not found:
        return None
    figure, axes = canvas.figure(2.7)
    columns = [(trial, _settled(trial.step_seconds, trial.warmup_steps)) for trial in found]
    scale, unit = (1e3, "ms") if max(statistics.median(times) for _, times in columns) < 1.5 else (1.0, "s")
    colours = {"baseline": BEFORE, "plan": AFTER}
    for x, (trial, times) in enumerate(columns, start=1):
        colour = colours.get(trial.label, canvas.QUIET)
        dots = [value * scale for value in canvas.thinned(times, MOST_DOTS)]
        spread = [x + 0.5 * ((i * 0.618034) % 1.0 - 0.5) for i in range(len(dots))]  # even, and the same every time
        axes.plot(spread, dots, "o", color=colour, markersize=2.2, alpha=0.45, markeredgewidth=0)
        median = statistics.median(times) * scale
        axes.plot([x - 0.38, x + 0.38], [median, median], color=colour, linewidth=1.8, solid_capstyle="butt")
    axes.grid(axis="y")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0.3, len(columns) + 0.7)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("trial, in the order in which they ran")
    axes.set_ylabel(f"{unit} a step")
    kinds = [("baseline", BEFORE, "script as it is"), ("plan", AFTER, "with the plan")]
    handles = [canvas.dot(text, colour) for label, colour, text in kinds if any(t.label == label for t, _ in columns)]
    if any(trial.label not in colours for trial, _ in columns):
        handles.append(canvas.dot("other trials", canvas.QUIET))
    canvas.legend(axes, handles)
    return figure


TUNE: dict[str, Callable[[TuneReport], Any]] = {"step": step, "ablation": ablation, "losses": losses, "trials": trials}

NAMES = (*TUNE, *charts_profile.CHARTS)


def captions(report: TuneReport | ProfileReport) -> dict[str, str]:
    """What every chart of this kind of report shows."""
    if isinstance(report, ProfileReport):
        return charts_profile.CAPTIONS
    waterfall = "The step before and after the plan, and what each share of it saved."
    return {
        "step": waterfall if report.kept and report.shares_after else "What a step of the script as it is is spent on.",
        "ablation": "Each technique alone, and the plan with it left out.",
        "losses": "Loss of the script as it is and with the plan, over each other, with their randomness lined up."
        + (" The band is how far other seeds move the script." if report.losses_spread else ""),
        "trials": "Step times of every trial after warm-up; the dash is the median of its process.",
    }


def present(report: TuneReport | ProfileReport) -> dict[str, str]:
    """The charts this report has data for, with their captions."""
    return {name: caption for name, caption, _ in _drawn(report)}


def svgs(report: TuneReport | ProfileReport) -> dict[str, str]:
    """Every chart as an `<svg>` element in the colour of the text around it."""
    with canvas.style():
        return {name: canvas.svg(figure, name, caption) for name, caption, figure in _drawn(report)}


def svg_files(report: TuneReport | ProfileReport) -> dict[str, str]:
    """The same, each to stand alone: on white, since no page around it says what colour its text has."""
    alone = f'width="620" style="color: {canvas.INK}; background: #ffffff"'
    return {name: svg.replace('class="chart"', alone, 1) for name, svg in svgs(report).items()}


def pdfs(report: TuneReport | ProfileReport) -> dict[str, bytes]:
    """The same charts as PDF files."""
    with canvas.style():
        return {name: canvas.pdf(figure) for name, _, figure in _drawn(report)}


def _drawn(report: TuneReport | ProfileReport) -> Iterator[tuple[str, str, Any]]:
    said = captions(report)
    with canvas.style():
        if isinstance(report, TuneReport):
            made = {name: draw(report) for name, draw in TUNE.items()}
        else:
            made = {name: draw(report) for name, draw in charts_profile.CHARTS.items()}
    yield from ((name, said[name], figure) for name, figure in made.items() if figure is not None)


def _stack(axes: Any, row: int, parts: list[tuple[str, float]]) -> None:
    left = 0.0
    for name, width in parts:
        axes.barh(row, width, left=left, height=0.66, color=canvas.colour(name))
        left += width


def _say(axes: Any, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5)


def _rows(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _settled(step_seconds: list[float], warmup_steps: int) -> list[float]:
    return [value for value in step_seconds[warmup_steps:] if figures.known(value)]
