"""What a trial is told to do, as data that crosses to its process."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Literal


def own_process(module: str, *arguments: str) -> list[str]:
    """The command that runs a module's `main` without the folder we stand in on its path: what lies there may be named
    like something hotlap imports."""
    return [sys.executable, "-c", f"import sys; sys.path.pop(0); from {module} import main; main()", *arguments]


Role = Literal["reference", "candidate", "other seed", "shaken"]


@dataclass(frozen=True)
class Order:
    """One process: the script, the techniques, how long. Exchanged as JSON between tuner, server and trial."""

    name: str  # the script's path, or its dotted name
    arguments: list[str] = field(default_factory=list)
    is_module: bool = False
    cwd: str = "."
    choices: list[dict[str, Any]] = field(default_factory=list)  # technique.Choice as JSON
    steps: int = 0  # stop after so many steps ...
    seconds: float = 0.0  # ... or after so long once `steps_at_least` are done; 0 = to the script's end
    steps_at_least: int = 0
    seconds_at_most: float = 0.0  # of training, however few steps that gave; 0 = no such bound
    limit_seconds: float = 600.0  # a trial that is still there then is killed
    folder: str = ""  # where record, log and parity tensors are exchanged
    kept_folder: str = ""  # what trials of one tuning leave for the next: compiled kernels
    protected: bool = True
    sandbox: str = ""  # "namespace", "redirect" or "none"; empty: as HOTLAP_SANDBOX says, else "namespace"
    allow_network: bool = False
    terminal: list[int] = field(default_factory=list)  # rows and columns of the one on its standard input; none: empty
    watched: bool = True
    closely: bool = False  # also watch host syncs, copies, how batches are made, layers and memory
    parity: Role | None = None  # what the witness is there for, if there is one
    parity_folder: str = ""
    seed: int = 0
    real: bool = False  # the user's own run, in its own terminal: it ends as the script ends
