"""What reports on a terminal are built of, and how they are made to fit it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

TALL = 40  # lines, where there is no screen to ask
GOOD, BAD, QUIET, STRONG = "green", "red", "dim", "bold"
# rows a list, and whether blank lines and side remarks must go: tried in turn until the screen holds it
FITS = tuple((rows, False) for rows in (12, 9, 7, 5, 4)) + tuple((rows, True) for rows in (5, 4, 3, 2, 1))
BLOCKS = " ▏▎▍▌▋▊▉█"


class Screen:
    """Draws with ever fewer rows a list until the whole thing fits the height."""

    def __init__(
        self, draw: Callable[[ConsoleOptions, int, bool], Any], fits: Sequence[tuple[int, bool]] = FITS
    ) -> None:
        self.draw, self.fits = draw, fits

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = console.height - 1 if console.is_terminal else math.inf  # a prompt comes after; a file has no end
        lines: list[list[Segment]] = []
        for rows, tight in self.fits:
            lines = console.render_lines(self.draw(options, rows, tight), options, pad=False)
            if len(lines) <= room:
                break
        for line in lines:
            yield from line
            yield Segment.line()


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


def spaced(parts: Sequence[Sequence[Any]], tight: bool) -> Group:
    """Parts with a blank line between; tight ones have none but that before the commands."""
    filled = [part for part in parts if part]
    between = [Text()] * (not tight)
    lines = [piece for part in filled[:-1] for piece in (*part, *between)]
    return Group(*lines, *([Text()] if tight else []), *filled[-1])


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=f"{QUIET} not bold")
    for column in columns:
        # the name may be as long as it likes, the explanation gives way
        made.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=column in right
        )
    return made


def head(what: str, items: Sequence[Any], shown: int) -> str:
    return f"{what}, {shown} of {len(items)}" if len(items) > shown else what


def commands(found: Sequence[str]) -> list[Any]:
    return [Padding(Text(command, style="cyan", overflow="fold"), (0, 0, 0, 2)) for command in found]


def bar(part: float, width: int, plain: bool) -> str:
    """A bar of so many columns at most; never empty, for what is nothing has no bar."""
    if plain:
        return "#" * max(1, round(part * width))
    whole, rest = divmod(max(1, round(part * width * 8)), 8)
    return BLOCKS[8] * whole + (BLOCKS[rest] if rest else "")


def one_line(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Text that is cut rather than broken."""
    return Text(text, style=style, no_wrap=True, overflow="crop" if options.ascii_only else "ellipsis")


def tail(text: str, most: int, options: ConsoleOptions) -> str:
    """The end of a long path or name: there the difference lies."""
    dots = "..." if options.ascii_only else "…"
    return text if len(text) <= most else dots + text[len(text) - most + len(dots) :]
