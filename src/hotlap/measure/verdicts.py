"""What trials came to, in words: one sentence, with the next step in it."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.measure.found import KEEP_GAIN
from hotlap.measure.timed import Untimed
from hotlap.observe.run import Run
from hotlap.technique import Choice


def no_gain(ratio: float, choices: Sequence[Choice], run: Run) -> str:
    """What a trial came to. One in which the technique had nothing to do says nothing about it."""
    if any(choice.technique.seen(run) is False for choice in choices):
        return f"{ratio:.2f}x: found nothing to do in a trial"
    words = (
        "slower in a trial" if ratio < 0.98 else "no gain in a trial" if ratio < KEEP_GAIN else "within the noise here"
    )
    compiled = str(run.compiled) if any("compiled" in choice.technique.traits for choice in choices) else ""
    return f"{ratio:.2f}x: {words}" + (f", {compiled}" if compiled else "")


def no_baseline(timing: Untimed) -> str:
    """Why the script as it is cannot be measured, and what to do about it."""
    if timing.run is None and timing.ending in ("finished", "enough"):
        return "the script ended without importing torch: name the script that trains"
    if timing.run is not None and timing.ending.startswith("only "):
        return f"{timing.ending}: name the script that trains, or give it arguments that train for longer"
    if timing.ending.startswith("hang"):
        return (
            "a trial of the script as it is took longer than it may: give a larger --budget (a trial may take half of"
            " it), or close other work"
        )
    last = timing.log.strip().split("\n")[-1][:200]
    more = f"; {last}" if last and last not in timing.ending else ""
    return f"the script does not run by itself ({timing.ending}{more}): mend that first"
