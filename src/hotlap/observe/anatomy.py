"""From raw events to steps and their shares: pure functions over a list of intervals on the host's clock.

A step is one trip round the training loop: from one draw of a training loader to the next. Without a loader it is one
full cycle of optimizer updates. Evaluation (a loader whose batches are never followed by a backward) is cut out."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import NamedTuple

from hotlap.observe.run import SHARES

DRAW, END, FORWARD, BACKWARD, UPDATE, COPY, SYNC, STARTED, JUDGED = range(9)  # JUDGED: a forward without training
_SHARE_OF = {DRAW: "wait", END: "wait", FORWARD: "forward", JUDGED: "forward", BACKWARD: "backward", UPDATE: "update"}
_SHARE_OF |= {COPY: "copy", SYNC: "sync"}
_TRAINS = (BACKWARD, UPDATE)


class Event(NamedTuple):
    kind: int
    key: int  # which loader, root or optimizer
    start: float
    end: float
    device_time: float | None = None  # when the device got there, for draws


@dataclass(frozen=True)
class Step:
    start: float
    seconds: float
    parts: tuple[float, ...]  # in the order of SHARES


@dataclass(frozen=True)
class Anatomy:
    steps: list[Step]
    evaluation_seconds: float
    training_loaders: frozenset[int]


def anatomy(events: list[Event]) -> Anatomy:
    events = sorted(events, key=lambda event: event.start)
    trainers = _training_loaders(events)
    if trainers:
        windows = _windows_between_draws(events, trainers)
        evaluations = _evaluations(events, trainers)
    else:
        windows, evaluations = _windows_between_cycles(events), []
    starts = [event.start for event in events]
    steps = []
    for start, end, device_seconds in windows:
        inside = events[bisect_left(starts, start) : bisect_left(starts, end)]
        cut = [(a, b) for a, b in evaluations if start <= a < end]
        steps.append(_step(start, end, inside, cut, device_seconds))
    return Anatomy(steps, sum(b - a for a, b in evaluations), trainers)


def _training_loaders(events: list[Event]) -> frozenset[int]:
    """Loaders with a backward or an update after a draw and before their next one, unless the batch was used up by
    an evaluation, or the loader ended, before that."""
    trainers: set[int] = set()
    open_draws: list[int] = []  # drawn since the last backward
    used = False
    for event in events:
        if event.kind == DRAW:
            if used or event.key in open_draws:
                open_draws, used = [], False
            open_draws.append(event.key)
        elif event.kind == JUDGED:
            open_draws = []
        elif event.kind == END and event.key in open_draws:
            open_draws.remove(event.key)
        elif event.kind in _TRAINS and not used:
            trainers.update(open_draws)
            used = True
    return frozenset(trainers)


def _windows_between_draws(events: list[Event], trainers: frozenset[int]) -> list[tuple[float, float, float | None]]:
    windows: list[tuple[float, float, float | None]] = []
    opened: Event | None = None
    trained = False
    for event in events:
        if event.kind in _TRAINS:
            trained = True
        if event.key not in trainers or event.kind not in (DRAW, END):
            continue
        if opened is not None and not trained and event.key != opened.key:
            continue  # the second loader of a zip, drawn in the same step
        if opened is not None and (trained or event.kind == DRAW):
            marks = opened.device_time, event.device_time
            device = marks[1] - marks[0] if marks[0] is not None and marks[1] is not None else None
            windows.append((opened.start, event.start, device))
        opened, trained = (event if event.kind == DRAW else None), False
    return windows


def _windows_between_cycles(events: list[Event]) -> list[tuple[float, float, float | None]]:
    windows: list[tuple[float, float, float | None]] = []
    cycle: set[int] = set()
    opened: Event | None = None
    last: Event | None = None
    for event in events:
        if event.kind != UPDATE:
            continue
        if event.key in cycle:
            if opened is not None and last is not None:
                windows.append((opened.end, last.end, None))
            opened, cycle = last, set()
        cycle.add(event.key)
        last = event
    return windows


def _evaluations(events: list[Event], trainers: frozenset[int]) -> list[tuple[float, float]]:
    """Spans from a non-training loader's start to its end, or to its last draw where it was left early."""
    spans: list[tuple[float, float]] = []
    opened: dict[int, list[float]] = {}
    for event in events:
        if event.key in trainers or event.kind not in (STARTED, DRAW, END):
            continue
        if event.kind == STARTED or event.key not in opened:
            if event.key in opened:
                spans.append((opened[event.key][0], opened[event.key][1]))
            opened[event.key] = [event.start, event.end]
        opened[event.key][1] = event.end
        if event.kind == END:
            first, last = opened.pop(event.key)
            spans.append((first, last))
    return spans + [(first, last) for first, last in opened.values()]


def _step(start: float, end: float, inside: list[Event], cut: list[tuple[float, float]], device: float | None) -> Step:
    """Exclusive time by kind: what happens inside something else is counted where it happens."""
    totals = dict.fromkeys(SHARES, 0.0)
    open_events: list[tuple[float, str]] = []
    kept = [e for e in inside if e.kind in _SHARE_OF and not any(a <= e.start < b for a, b in cut)]
    for event in kept:
        seconds = min(event.end, end) - event.start
        while open_events and open_events[-1][0] <= event.start:
            open_events.pop()
        if open_events:
            totals[open_events[-1][1]] -= seconds
        share = _SHARE_OF[event.kind]
        totals[share] += seconds
        open_events.append((event.end, share))
    wall = end - start - sum(b - a for a, b in cut)
    totals["other"] = max(0.0, wall - sum(totals.values()))
    seconds = wall if device is None or cut else max(device, 1e-9)
    scale = seconds / wall if wall > 0 else 0.0
    return Step(start, seconds, tuple(max(0.0, totals[name]) * scale for name in SHARES))
