"""In which steps torch.compile was at work, from its own counters. Nothing is imported for it."""

from __future__ import annotations

import sys


class Compiling:
    def __init__(self) -> None:
        self.steps: list[int] = []
        self._frames = _frames()

    def step(self, count: int) -> None:
        """One step more is done, the `count`th."""
        frames = _frames()
        if frames > self._frames:
            self.steps.append(count - 1)
        self._frames = frames


def _frames() -> int:
    """Pieces of code compiled so far, once for each time."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return int(counters.get("frames", {}).get("total", 0))
