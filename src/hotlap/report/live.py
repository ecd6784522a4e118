"""What a tuning shows while it runs: one line a trial, and under them what is going on now."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

_ROLES = {
    "baseline": "as it is",
    "screen": "screening",
    "parity": "same training?",
    "confirm": "proof by pairs",
    "ablation": "what each is worth",
    "epochs": "whole epochs",
}


class LiveTrials:
    """A listener for trials. Without a terminal it prints plain lines; without a budget it names none. Use as a
    context manager."""

    def __init__(self, console: Console, budget_seconds: float = 0.0) -> None:
        self._console, self._budget = console, budget_seconds
        self._started = time.monotonic()
        self.interrupted = False
        self._role, self._label, self._steps = "", "", 0
        self._live: Live | None = Live(self, console=console, transient=True, refresh_per_second=8)
        self._spinner = Spinner("dots")
        if not console.is_terminal:
            self._live = None

    def __enter__(self) -> LiveTrials:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __rich__(self) -> Any:
        spent = time.monotonic() - self._started
        steps = f", step {self._steps}" if self._steps else ""
        of = f" of {self._budget:.0f}" if self._budget else ""
        self._spinner.update(text=Text(f"{self._label}{steps}   {spent:.0f}{of} s", style="dim"))
        return self._spinner

    def started(self, label: str, role: str) -> None:
        if role != self._role:
            self._role = role
            self._console.print(Text(_ROLES.get(role, role), style="bold"))
        self._label, self._steps = label, 0

    def stepped(self, steps: int) -> None:
        self._steps = steps

    def ended(self, label: str, role: str, verdict: str) -> None:
        shown = "done" if verdict == "enough" else verdict
        self._console.print(Text(f"  {label:<38} {shown}"))

    def stopped(self) -> None:
        self.interrupted = True

    def said(self, sentence: str) -> None:
        self._console.print(Text(sentence, style="dim"))
