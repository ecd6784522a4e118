"""`hotlap --help`, drawn as typer would. Typer's own way there loads what renders Markdown and tracebacks, of which the
page has none, and takes half as long again."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class FrontPage(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        from rich.console import Console
        from rich.padding import Padding
        from rich.panel import Panel
        from rich.table import Table
        from rich.text import Text

        usage = Text(self.get_usage(ctx), style="bold")
        usage.highlight_words(["Usage: "], "yellow")
        console = Console(highlight=False, markup=False)
        console.print(Padding(usage, 1), Padding(self.help or "", (0, 1, 1, 1)))

        panels = {"Options": [option.get_help_record(ctx) for option in self.get_params(ctx)]}
        for name, command in self.commands.items():
            panels.setdefault(command.rich_help_panel, []).append((name, command.help))
        width = max(len(name) for name in self.commands)
        for title, rows in panels.items():
            table = Table(show_header=False, expand=True, box=None, pad_edge=False)
            table.add_column(style="bold cyan", no_wrap=True, min_width=width)
            table.add_column(ratio=1)
            for row in rows:
                table.add_row(*row)
            console.print(Panel(table, title=title, title_align="left", border_style="dim"))
