"""What happened when, as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

PROCESS = 1
TRACKS = ("steps", "host", "device", "evaluation")  # from top to bottom
LANES = 100  # thread numbers a track has


@dataclass(frozen=True)
class Span:
    """Something that took a while. Seconds, on one clock for the whole trace."""

    name: str
    start: float
    end: float
    detail: str = ""


@dataclass(frozen=True)
class Trace:
    host: list[Span] = field(default_factory=list)
    device: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    evaluation: list[Span] = field(default_factory=list)
    counters: list[tuple[str, float, float]] = field(default_factory=list)  # name, time, value


def trace(events: Trace) -> str:
    """The trace as JSON, in microseconds from its first event on. What has no finite time is left out."""
    tracks = {name: [span for span in getattr(events, name) if _is_known(span.start, span.end)] for name in TRACKS}
    counters = [one for one in events.counters if _is_known(*one[1:])]
    begin = min([span.start for spans in tracks.values() for span in spans] + [one[1] for one in counters], default=0.0)
    found: list[dict[str, Any]] = [_label("process_name", 0, name="hotlap")]
    for number, (name, spans) in enumerate(tracks.items()):
        for lane, inside in enumerate(_lanes(spans)):
            thread = 1 + number * LANES + lane
            found.append(_label("thread_name", thread, name=name if not lane else f"{name} {lane + 1}"))
            found.append(_label("thread_sort_index", thread, sort_index=thread))
            found += [_complete(span, begin, name, thread) for span in inside]
    for name, time, value in sorted(counters, key=lambda one: one[1]):
        place = {"ts": _nanoseconds(time, begin) / 1e3, "pid": PROCESS, "tid": 0}
        found.append({"name": name, "ph": "C", **place, "args": {"value": value}})
    return json.dumps({"traceEvents": found, "displayTimeUnit": "ms"}, ensure_ascii=False, allow_nan=False) + "\n"


def _lanes(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Spans that overlap without one holding the other cannot share a track: viewers would drop or stretch them."""
    lanes: list[tuple[list[Span], list[Span]]] = []  # what lies in it, and what is still open
    for span in sorted(spans, key=lambda one: (one.start, -one.end)):
        for _, still_open in lanes:
            while still_open and still_open[-1].end <= span.start:
                still_open.pop()
        fit = next((lane for lane in lanes[: LANES - 1] if not lane[1] or span.end <= lane[1][-1].end), None)
        if fit is None:
            fit = ([], [])
            lanes.append(fit)
        fit[0].append(span)
        fit[1].append(span)
    # an empty track still says that there was nothing
    yield from ([inside for inside, _ in lanes] or [[]])


def _complete(span: Span, begin: float, track: str, thread: int) -> dict[str, Any]:
    start = _nanoseconds(span.start, begin)
    length = max(0, _nanoseconds(span.end, begin) - start)
    event = {"name": span.name, "cat": track, "ph": "X", "ts": start / 1e3, "dur": length / 1e3}
    event |= {"pid": PROCESS, "tid": thread}
    return {**event, "args": {"detail": span.detail}} if span.detail else event


def _label(what: str, thread: int, **said: Any) -> dict[str, Any]:
    return {"name": what, "ph": "M", "ts": 0, "pid": PROCESS, "tid": thread, "args": said}


def _nanoseconds(time: float, begin: float) -> int:
    return round((time - begin) * 1e9)


def _is_known(*values: float) -> bool:
    return all(map(math.isfinite, values))
