"""`hotlap run`: the user's own process, with the chosen techniques in it and two lines of ours on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

from hotlap.observe.anatomy import Trips
from hotlap.observe.attach import Attached
from hotlap.observe.launch import Target, execute


class Pulse:
    """The lightest watch there is: counts steps, touches nothing else."""

    def __init__(self, patch: Any) -> None:
        self.steps = 0
        self.first = self.last = 0.0
        self._trips = Trips()
        patch.at(patch.joints.loader_started, self._loader_started)
        patch.at(patch.joints.batch_drawn, self._batch_drawn)
        patch.at(patch.joints.weights_updated, self._weights_updated)

    def _loader_started(self, loader: Any) -> None:
        if self._trips.started(id(loader._index_sampler)):
            self._step()

    def _batch_drawn(self, proceed: Any, iterator: Any) -> Any:
        key = id(iterator._index_sampler)
        if self._trips.asked(key):
            self._step()
        try:
            batch = proceed(iterator)
        except StopIteration:
            self._trips.ended(key)
            raise
        self._trips.drew(key)
        return batch

    def _weights_updated(self, optimizer: Any) -> None:
        if self._trips.updated(id(optimizer)):
            self._step()

    def _step(self) -> None:
        self.steps += 1
        self.last = time.perf_counter()
        self.first = self.first or self.last


def drive(target: Target, choices: Sequence[Any], words: str, quiet: bool) -> None:
    """Run the target to its end in this process; its exit code and errors are its own."""
    with_ = ", ".join(map(str, choices)) or "nothing applied"
    _say(quiet, f"{with_}{f' ({words})' if words else ''}")
    attached = Attached(choices, Pulse)
    try:
        execute(target)
    finally:
        for reason in attached.withdrawn:
            _say(quiet, f"withdrawn, and the run went on without it: {reason}")
        _say(quiet, _ending(attached.watch))


def _ending(pulse: Any) -> str:
    if pulse is None:
        return "the script never imported torch"
    if pulse.steps < 2:
        return "no training steps were seen"
    return f"{pulse.steps} steps, {1e3 * (pulse.last - pulse.first) / (pulse.steps - 1):.1f} ms each on average"


def _say(quiet: bool, sentence: str) -> None:
    if not quiet:
        print(f"hotlap: {sentence}", file=sys.stderr)
