"""What the ledger holds: events of the training loop, as intervals on the host's clock."""

from __future__ import annotations

from typing import NamedTuple

DRAW, END, FORWARD, BACKWARD, UPDATE, COPY, SYNC, STARTED, JUDGED, OWN, LOOK = range(11)
# JUDGED: a forward without training; OWN: hotlap at work between two steps; LOOK: steps under a closer look


class Event(NamedTuple):
    kind: int
    key: int  # which loader, root or optimizer
    start: float
    end: float
    device_start: float | None = None  # when the device got to its start and to its end, where that was marked
    device_end: float | None = None
