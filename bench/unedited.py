"""What benches that run an unedited script have in common: its command line, what hotlap said meanwhile, and how a
record names all that without a path of this machine."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence

from terminal import Ending

_HOTLAP = ("-c", "from hotlap.cli import main; main()", "run")


def command(script: Sequence[str], by_hotlap: bool, techniques: str = "") -> list[str]:
    """With `techniques`, as `hotlap run --with` takes them, and else by the plan beside it."""
    with_ = ["--with", techniques] if techniques else []
    return [sys.executable, *([*_HOTLAP, *with_] if by_hotlap else []), *script]


def parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The bench's own arguments, and the script's, which follow `--`."""
    words = list(arguments)
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


def said(ending: Ending) -> list[str]:
    """By hotlap: what it applied, and what it withdrew."""
    return [re.sub(r"(?<!\S)/\S*/", "", line) for line in ending.lines if line.startswith("hotlap: ")]


def ended(who: str, ending: Ending, before: str) -> str:
    """Why there are no figures, with the last that was seen of it."""
    how = "was ended at the limit" if ending.code is None else f"ended with {ending.code}"
    last = "\n".join(f"    {line}" for line in ending.lines[-12:]) or "    (it said nothing)"
    return f"{who} {how} after {ending.seconds:.0f} s, before {before}; its last lines:\n{last}"


def named(bench: str, words: Sequence[str]) -> str:
    """The bench's command line, for its record."""
    return shlex.join(["python", f"bench/{bench}", *(re.sub(r"[^=\s]*/", "", word) for word in words)])
