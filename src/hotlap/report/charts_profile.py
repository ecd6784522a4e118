"""The charts of a profile: every step, what each was spent on, and its layers under the roof of this machine."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

from hotlap.report import anatomy, canvas, figures, wording
from hotlap.report.profile_findings import SHARES, Layer, ProfileReport

LINE = canvas.SHARE_COLOURS["forward"]
BOUND_COLOURS = {"compute": "#0072b2", "memory": "#d55e00", "": canvas.QUIET}
MOST_BINS = 80
MOST_LAYERS = 60
MOST_NAMED = 8  # layers that carry the number of their row in the table


_FAR = 20  # times a step
_SAME_ROOF = 0.05


def steps(report: ProfileReport) -> Any | None:
    """Every step of a profile in order, so that warm-up, spikes and drift are seen."""
    points = canvas.finite_points(report.step_times)
    if len(points) < 2:
        return None
    scale, unit = (1e3, "ms") if report.step_seconds < 1.5 else (1.0, "s")
    figure, axes = canvas.figure(2.6)
    axes.plot([x for x, _ in points], [y * scale for _, y in points], color=LINE, linewidth=1.0)
    if report.step_seconds > 0:
        axes.axhline(report.step_seconds * scale, color=canvas.INK, linewidth=0.8, linestyle=(0, (4, 3)))
        canvas.legend(axes, [canvas.line(f"a step: {figures.seconds(report.step_seconds)}", canvas.INK, (0, (4, 3)))])
    axes.grid(axis="y")
    positive = [y for _, y in points if y > 0]
    if positive and max(positive) > _FAR * max(report.step_seconds, min(positive)):
        axes.set_yscale("log")  # a first step of many seconds would press all others to the floor
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel(f"{unit} a step")
    return figure


def parts(report: ProfileReport) -> Any | None:
    """What the steps after warm-up were spent on, in order; many steps are averaged into one bar."""
    found = [row for row in report.step_parts if len(row) == len(SHARES)]
    first = report.warmup_steps if len(found) > report.warmup_steps + 1 else 0
    bins = _bins([row for row in found[first:] if all(map(figures.known, row))])
    names = wording.shares(*(dict(zip(SHARES, row, strict=True)) for row in bins))
    if len(bins) < 2 or not names:
        return None
    largest = max(map(sum, bins))
    scale, unit = (1e3, "ms") if largest < 1.5 else (1.0, "s")
    edges = [first + 1 + k * (len(found) - first) / len(bins) for k in range(len(bins) + 1)]
    figure, axes = canvas.figure(2.6)
    level = [0.0] * len(bins)
    for name in names:
        above = [low + row[SHARES.index(name)] * scale for low, row in zip(level, bins, strict=True)]
        # the last value again, so that the last bar has its width
        low, high = [*level, level[-1]], [*above, above[-1]]
        axes.fill_between(edges, low, high, step="post", color=canvas.colour(name), linewidth=0)
        level = above
    axes.grid(axis="y")
    axes.set_ylim(0, largest * scale * 1.05)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("step")
    axes.set_ylabel(f"{unit} a step")
    canvas.share_key(axes, names)
    return figure


def _roofs(report: ProfileReport) -> dict[str, float]:
    """Peaks by dtype; those that lie on one another are one roof."""
    found: dict[str, float] = {}
    for name, peak in report.peak_flops.items():
        if not figures.known(peak) or peak <= 0:
            continue
        same = next((other for other, height in found.items() if abs(peak / height - 1) < _SAME_ROOF), None)
        found[f"{same}, {name[:16]}" if same else name[:16]] = found.pop(same) if same else peak
    return found


def roofline(report: ProfileReport) -> Any | None:
    """Layers by how much they compute for a byte, and how fast; nothing can lie above the roof measured here."""
    from matplotlib.ticker import LogLocator

    roofs = _roofs(report)
    bandwidth = report.peak_bandwidth
    points = [
        (k, one, *where) for k, one in enumerate(anatomy.layers(report)[:MOST_LAYERS], 1) if (where := _point(one))
    ]
    if not roofs or not points or not (figures.known(bandwidth) and bandwidth > 0):
        return None
    ridges = [peak / bandwidth for peak in roofs.values()]
    left = min([x for _, _, x, _ in points] + ridges) / 2.5
    right = max([x for _, _, x, _ in points] + ridges) * 4
    top = max([y for *_, y in points] + list(roofs.values())) * 2.2
    figure, axes = canvas.figure(3.4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot([left, max(ridges)], [left * bandwidth, max(roofs.values())], color=canvas.INK, linewidth=0.9)
    for name, peak in roofs.items():
        axes.plot([peak / bandwidth, right], [peak, peak], color=canvas.INK, linewidth=0.9)
        said = f"{name} {figures.si(peak, 'FLOP/s')}"
        axes.annotate(said, (right, peak), xytext=(0, 3), textcoords="offset points", ha="right", fontsize=7.5)
    for bound, colour in BOUND_COLOURS.items():
        of_kind = [(x, y) for _, one, x, y in points if one.bound == bound]
        axes.plot(
            *zip(*of_kind, strict=True), "o", color=colour, markersize=4.2, alpha=0.8, markeredgewidth=0
        ) if of_kind else None
    _number(axes, [(k, x, y) for k, _, x, y in points])
    bottom = min([y for *_, y in points] + list(roofs.values())) / 4
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, top)
    axes.grid()
    for axis, label in ((axes.xaxis, lambda x, _: f"{x:,g}"), (axes.yaxis, lambda y, _: _power(y))):
        axis.set_major_locator(LogLocator(numticks=8))
        axis.set_major_formatter(label)
        axis.set_minor_formatter("")
    axes.set_xlabel("flop a byte moved")
    axes.set_ylabel("flop a second")
    kinds = [("compute", "bound by arithmetic"), ("memory", "bound by memory"), ("", "not told")]
    bounds = {one.bound for _, one, _, _ in points}
    canvas.legend(axes, [canvas.dot(text, BOUND_COLOURS[kind]) for kind, text in kinds if kind in bounds])
    return figure


def _bins(rows: list[list[float]]) -> list[list[float]]:
    """Neighbours averaged until there are few enough."""
    number = min(len(rows), MOST_BINS)
    cuts = [round(k * len(rows) / number) for k in range(number + 1)] if number else []
    groups = [rows[start:end] for start, end in itertools.pairwise(cuts)]
    return [[sum(column) / len(group) for column in zip(*group, strict=True)] for group in groups]


def _point(layer: Layer) -> tuple[float, float] | None:
    seconds = anatomy.layer_seconds(layer)
    if not all(figures.known(value) and value > 0 for value in (seconds, layer.flops, layer.intensity)):
        return None
    return layer.intensity, layer.flops / seconds


def _power(value: float) -> str:
    number, _, power = figures.si(value, "").partition(" ")
    return f"{float(number.replace(',', '')):g} {power}"


def _number(axes: Any, points: list[tuple[int, float, float]]) -> None:
    """The slowest carry the number of their row, unless another's stands there already."""
    taken: list[tuple[float, float]] = []
    for number, x, y in points[:MOST_NAMED]:
        at = math.log10(x), math.log10(y)
        if all(abs(at[0] - other[0]) > 0.25 or abs(at[1] - other[1]) > 0.3 for other in taken):
            axes.annotate(str(number), (x, y), xytext=(4, 3), textcoords="offset points", fontsize=8)
            taken.append(at)


CHARTS: dict[str, Callable[[ProfileReport], Any]] = {"steps": steps, "parts": parts, "roofline": roofline}
CAPTIONS = {
    "steps": "Time of every step, warm-up included.",
    "parts": "What the steps after warm-up were spent on, by the host's clock.",
    "roofline": "Layers under the roof measured on this machine; numbers are rows of the table.",
}
