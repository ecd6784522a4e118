"""`hotlap run`: the user's own process, with the chosen techniques in it and two lines of ours on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from hotlap.observe.attach import Attached
from hotlap.observe.launch import Target, execute


class Pulse:
    """The lightest watch there is: one hook that counts updates and reads the clock."""

    def __init__(self, patch: Any) -> None:
        self._updates: dict[int, int] = {}
        self._first = self._last = 0.0
        patch.at(patch.joints.weights_updated, self._weights_updated)

    def _weights_updated(self, optimizer: Any) -> None:
        self._last = time.perf_counter()
        key = id(optimizer)
        if key in self._updates:
            self._updates[key] += 1
        else:
            self._updates[key] = 1
            self._first = self._first or self._last

    def __str__(self) -> str:
        updates = max(self._updates.values(), default=0)  # two optimizers that take turns make one step
        if updates < 2:
            return "no training steps were seen"
        return f"{updates} updates, {1e3 * (self._last - self._first) / (updates - 1):.1f} ms each on average"


def drive(target: Target, choices: Sequence[Any], words: str, quiet: bool) -> None:
    """Run the target to its end in this process; its exit code and errors are its own."""
    with_ = ", ".join(map(str, choices)) or "nothing applied"
    _say(quiet, f"{with_}{f' ({words})' if words else ''}")
    attached = Attached(choices, Pulse)
    try:
        execute(target)
    except Exception:
        if attached.applied:
            _say(quiet, f"it failed with {', '.join(attached.applied)} applied; --no-plan runs it as it is")
        raise
    finally:
        for reason in attached.withdrawn:
            _say(quiet, f"withdrawn, and the run went on without it: {reason}")
        _say(quiet, str(attached.watch or "the script never imported torch"))


def _say(quiet: bool, sentence: str) -> None:
    if not quiet:
        print(f"hotlap: {sentence}", file=sys.stderr)
