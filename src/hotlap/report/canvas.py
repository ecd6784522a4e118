"""Paper and ink for the charts: one style, and the ways to write a figure out as SVG or PDF.

The same data gives the same bytes: fixed salts and fonts, no dates. Figures are built on matplotlib's objects; the
global state of pyplot is never touched.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from hotlap.report import figures

INK = "#1b1f24"  # every line of text and axis; becomes the page's own text colour in SVG
QUIET = "#8b949e"  # reads on white and on black
# Okabe and Ito's palette, told apart by every kind of colour vision
SHARE_COLOURS = {
    "wait": "#e69f00",
    "copy": "#56b4e9",
    "forward": "#0072b2",
    "backward": "#009e73",
    "update": "#cc79a7",
    "sync": "#d55e00",
    "other": "#999999",
}
MOST_POINTS = 600  # of one curve
WIDTH = 5.3  # inches; 380 units wide, so that text is readable on a phone without zooming

_STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same layout on every machine
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name is a $
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.unicode_minus": False,
    "grid.color": QUIET,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: small, searchable, in the page's font
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """Everything drawn and written inside looks like one report."""
    import matplotlib

    # from the defaults, so that a user's matplotlibrc cannot change a report
    defaults: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
    with matplotlib.rc_context(defaults | _STYLE):
        yield


def figure(height: float) -> tuple[Any, Any]:
    """An empty figure of so many inches, and its axes."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(WIDTH, height), layout="constrained")
    return drawn, drawn.subplots()


def svg(drawn: Any, name: str, caption: str) -> str:
    """A figure as an `<svg>` element to stand in a page, in the colour of the text around it."""
    import matplotlib

    target = io.StringIO()
    matplotlib.rcParams["svg.hashsalt"] = f"hotlap {name}"  # a salt for each chart: ids stay unique in one page
    drawn.savefig(target, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = target.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # would hold for the whole page
    text = text.replace(INK, "currentColor")
    # matplotlib leaves text black unless told otherwise
    text = re.sub(r'(<text style=")(?![^"]*\bfill:)', r"\1fill: currentColor; ", text)
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", text)
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert size is not None
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" class="chart" {size[0]} '
    )
    head += f'stroke-linejoin="round" stroke-linecap="butt" role="img" aria-label="{escape(caption)}">'
    return head + text[text.index(">") + 1 :].strip() + "\n"


def pdf(drawn: Any) -> bytes:
    """A figure as a PDF file without a date."""
    target = io.BytesIO()
    drawn.savefig(target, format="pdf", metadata={"CreationDate": None, "Creator": None, "Producer": None})
    return target.getvalue()


def legend(axes: Any, handles: list[Any]) -> None:
    axes.legend(
        handles=handles,
        ncols=len(handles),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        handlelength=1.4,
        columnspacing=1.4,
    )


def swatch(label: str, colour: str, alpha: float = 1.0) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=colour, label=label, alpha=alpha, linewidth=0 if alpha < 1 else None)


def line(label: str, colour: str, style: Any, width: float = 0.8) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle=style, linewidth=width, label=label)


def dot(label: str, colour: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=colour, linestyle="", marker="o", markersize=4, label=label)


def share_key(axes: Any, names: list[str]) -> None:
    """Which colour is which share."""
    handles = [swatch(name, colour(name)) for name in names]
    axes.legend(handles=handles, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), handlelength=1, columnspacing=1.2)


def colour(share: str) -> str:
    return SHARE_COLOURS.get(share, SHARE_COLOURS["other"])


def thinned(values: list[float], most: int) -> list[float]:
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def finite_points(values: list[float]) -> list[tuple[int, float]]:
    """Points of a curve, numbered from 1; what is not a number leaves a gap; long curves are thinned evenly."""
    every = max(1, math.ceil(len(values) / MOST_POINTS))
    points = [(i + 1, value if figures.known(value) else math.nan) for i, value in enumerate(values)][::every]
    return points if sum(not math.isnan(value) for _, value in points) >= 2 else []
