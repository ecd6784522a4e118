"""What commands are given: the arguments and options they share, and how what is typed is read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotlap.errors import HotlapError

if TYPE_CHECKING:
    from hotlap.observe.launch import Target

Script = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]...", help="as for python", show_default=False)]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]
# Each of these may also be given several times.
Only = Annotated[list[str] | None, typer.Option(help="only these techniques, comma-separated")]
Skip = Annotated[list[str] | None, typer.Option(help="all but these techniques, comma-separated")]
With = Annotated[
    list[str] | None, typer.Option("--with", help="these techniques instead of a plan: a,b:setting=1:other=2")
]
Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="files and folders", show_default=False)]
AllowNetwork = Annotated[bool, typer.Option("--allow-network", help="let trials use the network")]
AcceptWrites = Annotated[
    bool, typer.Option("--accept-writes", help="go on where trials cannot be kept from writing files")
]


def as_python_would(app: typer.Typer, arguments: list[str]) -> list[str]:
    """After `-m NAME` everything belongs to the module, options too: say so to the parser."""
    commands: Any = typer.main.get_command(app)
    command = commands.commands.get(arguments[0]) if arguments else None
    if command is None:
        return arguments
    values = {name for option in command.params if not getattr(option, "is_flag", True) for name in option.opts}
    place = 1
    while place < len(arguments) and arguments[place].startswith("-"):
        if arguments[place] == "-m":
            return [*arguments[: place + 1], "--", *arguments[place + 1 :]]
        place += 2 if arguments[place] in values else 1
    return arguments


def target_of(script: list[str], is_module: bool) -> Target:
    from hotlap.observe.launch import Target

    if not script[0]:
        raise HotlapError("the script's name is empty: name the script that trains")
    return Target(script[0], tuple(script[1:]), is_module)


def listed(names: str | list[str] | None) -> list[str]:
    given = [names] if isinstance(names, str) else names or []
    return [name.strip() for part in given for name in part.split(",") if name.strip()]


def seconds_in(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h)?", text.strip())
    if not match or not float(match[1]):
        raise HotlapError(f"--budget takes a time such as 90s, 5m or 1h, not {text!r}")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600}[match[2]]
