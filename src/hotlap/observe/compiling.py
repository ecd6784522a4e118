"""What torch.compile did in this process, from its own counts: in which steps it was at work, how many graphs it made,
and where Python broke them. Nothing is imported for it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hotlap.observe.run import BreakFacts, CompiledFacts
from hotlap.observe.whose import is_users

_BRANCHES = ("generic_jump", "Data-dependent branching")  # dynamo's own words for `if tensor:`


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


def compiled_facts() -> CompiledFacts:
    """So far, and in all: by the script and by what was applied to it."""
    dynamo = _dynamo()
    breaks: dict[tuple[str, int], Counter[str]] = {}
    for reason in getattr(dynamo, "graph_break_reasons", ()):
        breaks.setdefault(_place(reason), Counter())[str(reason.reason).strip().split("\n")[0]] += 1
    found = [BreakFacts(_words(why), *place, max(why.values())) for place, why in breaks.items()]
    return CompiledFacts(
        graphs=int(_counters("stats").get("unique_graphs", 0)),
        breaks=sorted(found, key=lambda one: -one.count),
        again=sum(bool(getattr(one, "recompile_reason", None)) for one in _metrics(dynamo)),
    )


def _place(reason: Any) -> tuple[str, int]:
    """The line of the script's own code, where there is one."""
    frames: Sequence[Any] = reason.user_stack or ()
    own = [frame for frame in frames if is_users(frame.filename)] or frames
    return (os.path.basename(own[-1].filename), int(own[-1].lineno or 0)) if own else ("", 0)


def _words(why: Counter[str]) -> str:
    """Dynamo gives one break several names, of which those with underscores are for itself."""
    text = min(why, key=lambda words: ("_" in words, -why[words])).rstrip(".")
    return "data-dependent branch" if text.startswith(_BRANCHES) else text[:1].lower() + text[1:]


def _frames() -> int:
    """Pieces of code compiled so far, once for each time."""
    return int(_counters("frames").get("total", 0))


def _counters(name: str) -> Any:
    return getattr(_dynamo(), "counters", {}).get(name, {})


def _metrics(dynamo: Any) -> Sequence[Any]:
    read = getattr(dynamo, "get_compilation_metrics", None)
    found: Sequence[Any] = read() if read is not None else ()
    return found


def _dynamo() -> Any:
    return sys.modules.get("torch._dynamo.utils")
