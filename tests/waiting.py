"""Waiting for what will surely come: long enough for any machine, and no longer than it takes."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 300.0  # only a fault lasts so long


def comes_true(holds: Callable[[], object]) -> bool:
    """Whether it does, however busy the machine is."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := holds()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(found)
