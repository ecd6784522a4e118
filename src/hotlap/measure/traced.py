"""A profile's raw events as the tracks of a trace."""

from __future__ import annotations

from hotlap.observe.anatomy import anatomy, host_spans
from hotlap.observe.events import Event
from hotlap.report.trace import Span, Trace


def traced(events: list[Event]) -> Trace:
    """The device's clock has another zero than the host's: the two are laid so that no work is done before it was
    asked for, and some as soon as it was."""
    parts = anatomy(events)
    host = [Span(name, start, end) for name, start, end in host_spans(events, float("-inf"), float("inf"))]
    marked = [event for event in events if event.device_start is not None and event.device_end is not None]
    offset = max((event.start - event.device_start for event in marked if event.device_start is not None), default=0.0)
    moved = [
        event._replace(start=event.device_start + offset, end=event.device_end + offset)
        for event in marked
        if event.device_start is not None and event.device_end is not None
    ]
    return Trace(
        host=host,
        device=[Span(name, start, end) for name, start, end in host_spans(moved, float("-inf"), float("inf"))],
        steps=[Span(f"step {number}", step.start, step.end) for number, step in enumerate(parts.steps)],
        evaluation=[Span("evaluation", start, end) for start, end in parts.evaluations],
        counters=[],
    )
