"""From raw events to steps and their shares: pure functions over a list of intervals on the host's clock.

A step is one trip round the training loop: from one draw of a training loader to the next. Without a loader it is one
full cycle of optimizer updates, as where one batch serves many of them; where the script updates its weights by hand,
from one backward to the next.
Evaluation (a loader whose batches are never followed by a backward) is cut out, and so is what hotlap itself took."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from hotlap.observe.events import BACKWARD, COPY, DRAW, END, FORWARD, JUDGED, LOOK, OWN, STARTED, SYNC, UPDATE, Event
from hotlap.observe.run import SHARES
from hotlap.observe.trips import BY_HAND_AFTER, Trips

_SHARE_OF = {DRAW: "wait", END: "wait", FORWARD: "forward", JUDGED: "forward", BACKWARD: "backward", UPDATE: "update"}
_SHARE_OF |= {COPY: "copy", SYNC: "sync", STARTED: "wait"}
_TRAINS = (BACKWARD, UPDATE)
_OURS = (OWN, LOOK)  # may come between any two that the script made
_PHASES = (FORWARD, BACKWARD, UPDATE)  # these are marked on the device's clock, all of a step's or none
_SMALL_CUT = 0.05  # of a step
JUDGEMENTS = 4  # in a row, without a loader, make an evaluation


@dataclass(frozen=True)
class Step:
    start: float
    end: float
    seconds: float
    parts: tuple[float, ...]  # in the order of SHARES
    starts_epoch: bool = False
    device_parts: tuple[float, ...] = ()  # the same by the device's clock


@dataclass(frozen=True)
class Anatomy:
    steps: list[Step]
    evaluations: list[tuple[float, float]]
    evaluation_parts: tuple[float, ...]  # seconds in all, in the order of SHARES
    training_loaders: frozenset[int]
    epoch_seconds: list[float]  # of each whole epoch, with all that comes at its end; hotlap's own work is cut out

    @property
    def evaluation_seconds(self) -> float:
        return _sum(self.evaluations)


class _Window(NamedTuple):
    start: float
    end: float
    device_start: float | None
    device_end: float | None


def anatomy(events: list[Event]) -> Anatomy:
    events = sorted(events, key=lambda event: (event.start, event.kind != STARTED, -event.end))
    events = _with_starts(events)
    stretches, trainers = _stretches(events)
    windows = [window for some, tellers in stretches for window in _windows(some, tellers)]
    evaluations = _merged([*_evaluations(events, trainers), *_judgements(events)])
    own = _merged([(event.start, event.end) for event in events if event.kind == OWN])
    cuts = _merged([*evaluations, *own])
    looks = [(event.start, event.end) for event in events if event.kind == LOOK]
    starts = [event.start for event in events]
    first = {event.start for event in events if event.kind == STARTED}

    def between(start: float, end: float) -> list[Event]:
        return events[bisect_left(starts, start) : bisect_left(starts, end)]

    steps = []
    for window in windows:
        start, end = window.start, window.end
        inside = between(start, end)
        trained = next((event.start for event in inside if event.kind == BACKWARD), start)
        if any(a <= trained < b for a, b in looks):
            continue
        cut = cuts[bisect_left(cuts, (start,)) : bisect_left(cuts, (end,))]
        judged = any(a < end and start < b for a, b in evaluations)
        steps.append(_step(window, inside, cut, start in first, judged))
    passes = [_parts(between(a, b), a, b, []) for a, b in evaluations]
    epochs = pairwise(step.start for step in steps if step.starts_epoch)
    return Anatomy(
        steps,
        evaluations,
        tuple(map(sum, zip(*passes, strict=True))),
        trainers,
        [b - a - _inside(own, a, b) for a, b in epochs],
    )


def _sum(spans: list[tuple[float, float]]) -> float:
    return sum(b - a for a, b in spans)


def _inside(spans: list[tuple[float, float]], start: float, end: float) -> float:
    """Seconds of the spans that lie between two moments."""
    return sum(max(0.0, min(b, end) - max(a, start)) for a, b in spans)


def host_spans(events: list[Event], start: float, end: float) -> list[tuple[str, float, float]]:
    """What the host did in a stretch of time, by share; may nest."""
    return [(_SHARE_OF[e.kind], e.start, e.end) for e in events if e.kind in _SHARE_OF and start <= e.start < end]


def _with_starts(events: list[Event]) -> list[Event]:
    """A loader that starts and is drawn from at once, as in a for loop, starts until that draw: what it takes to get
    its workers going is part of the epoch's first step."""
    found: list[Event] = []
    after: Event | None = None
    for event in reversed(events):
        if event.kind == STARTED and after is not None and after.kind in (DRAW, END) and after.key == event.key:
            event = event._replace(end=after.start)
        if event.kind not in _OURS:
            after = event
        found.append(event)
    return found[::-1]


def _follow(trips: Trips, event: Event) -> bool:
    """Whether a trip is over at this event."""
    if event.kind == STARTED:
        return trips.started(event.key)
    if event.kind in (DRAW, END):
        is_over = trips.asked(event.key)
        (trips.drew if event.kind == DRAW else trips.ended)(event.key)
        return is_over
    if event.kind == JUDGED:
        trips.judged()
    elif event.kind == BACKWARD:
        trips.trained()
        return trips.went_back()
    elif event.kind == UPDATE:
        return trips.updated(event.key)
    return False


def _stretches(events: list[Event]) -> tuple[list[tuple[list[Event], frozenset[int]]], frozenset[int]]:
    """Each with the loaders that tell of its trips; and all that ever trained. One for the whole script, unless
    loaders are put aside on the way: updates tell then, until a loader does again."""
    trips = Trips()
    found: list[tuple[list[Event], frozenset[int]]] = []
    begun = drawn = 0
    for number, event in enumerate(events):
        tellers = frozenset(trips.trainers)
        _follow(trips, event)
        is_back = bool(found) and not tellers
        if bool(trips.trainers) != bool(tellers) and (tellers or is_back):
            end = drawn if is_back else number
            found.append((events[begun:end], tellers))
            begun = end
        if event.kind == DRAW:
            drawn = number
    found.append((events[begun:], frozenset(trips.trainers)))
    return found, frozenset(trips.aside).union(*(tellers for _, tellers in found))


def _windows(events: list[Event], tellers: frozenset[int]) -> list[_Window]:
    if tellers:
        return _windows_between_draws(events, tellers)
    if any(event.kind == UPDATE for event in events):
        return _windows_between_cycles(events)
    return _windows_between_backwards(events)


def _windows_between_draws(events: list[Event], trainers: frozenset[int]) -> list[_Window]:
    windows: list[_Window] = []
    trips = Trips(trainers)
    opened: Event | None = None
    started: Event | None = None  # a loader that is about to be drawn from for the first time
    for event in events:
        if event.kind in _OURS or (event.kind in (STARTED, DRAW, END) and event.key not in trainers):
            continue
        is_over = _follow(trips, event)
        if is_over and opened is not None:
            windows.append(_Window(opened.start, event.start, opened.device_start, event.device_start))
        if is_over or not trips.drawn:
            opened = None
        if event.kind == DRAW and opened is None:
            opened = started if started is not None and started.end == event.start else event
        started = event if event.kind == STARTED and event.end > event.start else None
    return windows


def _windows_between_cycles(events: list[Event]) -> list[_Window]:
    windows: list[_Window] = []
    trips = Trips()
    cycle = before = frozenset[int]()
    opened: Event | None = None
    last: Event | None = None
    for event in events:
        if event.kind != UPDATE:
            continue
        if trips.updated(event.key):
            if opened is not None and last is not None:
                windows.append(_Window(opened.end, last.end, opened.device_end, last.device_end))
            opened, before, cycle = last, cycle, frozenset()
        cycle |= {event.key}
        last = event
    if opened is not None and last is not None and cycle == before:  # the script ended with a full cycle
        windows.append(_Window(opened.end, last.end, opened.device_end, last.device_end))
    return windows


def _windows_between_backwards(events: list[Event]) -> list[_Window]:
    backwards = [event for event in events if event.kind == BACKWARD][BY_HAND_AFTER - 1 :]
    return [_Window(a.end, b.end, a.device_end, b.device_end) for a, b in pairwise(backwards)]


def _evaluations(events: list[Event], trainers: frozenset[int]) -> list[tuple[float, float]]:
    """Spans from a non-training loader's start to its end, or, where it was left early, to the last that was judged.
    Training ends them all: a loader may be drawn from now and then, all along."""
    spans: list[tuple[float, float]] = []
    active: set[int] = set()
    first = last = 0.0
    for event in events:
        is_loader = event.kind in (STARTED, DRAW, END) and event.key not in trainers
        trains = event.kind in _TRAINS or (event.kind in (STARTED, DRAW) and event.key in trainers)
        if is_loader and not active:
            first = last = event.start
        if is_loader:
            active.add(event.key)
        if is_loader or (active and event.kind == JUDGED):
            last = max(last, event.end)
        if active and (trains or event.kind == END):
            active = set() if trains else active - {event.key}
            if not active and last > first:
                spans.append((first, last))
    return spans + ([(first, last)] if active and last > first else [])


def _judgements(events: list[Event]) -> list[tuple[float, float]]:
    """Evaluations without a loader: a model that trains is called again and again, and nothing is trained meanwhile."""
    trained = {event.key for event in events if event.kind == FORWARD}
    spans: list[tuple[float, float]] = []
    run: list[Event] = []
    for event in events:
        if event.kind == JUDGED and event.key in trained:
            run.append(event)
        elif event.kind in (FORWARD, BACKWARD, UPDATE):
            if len(run) >= JUDGEMENTS:
                spans.append((run[0].start, run[-1].end))
            run = []
    return spans + ([(run[0].start, run[-1].end)] if len(run) >= JUDGEMENTS else [])


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _step(
    window: _Window, inside: list[Event], cut: list[tuple[float, float]], starts_epoch: bool, judged: bool
) -> Step:
    """A step's length is what passed on the device's clock where that is known: the host only hands work over. The
    device's clock is no help where much was cut out of the host's."""
    start, end = window.start, window.end
    parts = _parts(inside, start, end, cut)
    wall = sum(parts)
    seconds, device_parts = wall, ()
    if window.device_start is not None and window.device_end is not None and not judged:
        if not cut:
            seconds = max(window.device_end - window.device_start, 1e-9)
        marked = [
            Event(e.kind, e.key, e.device_start, e.device_end)
            for e in inside
            if e.device_start is not None and e.device_end is not None
        ]
        whole = sum(e.kind in _PHASES for e in inside) == sum(e.kind in _PHASES for e in marked) > 0
        if whole and _sum(cut) <= _SMALL_CUT * wall:
            device_parts = _parts(marked, window.device_start, window.device_end, [])
    scale = seconds / wall if wall > 0 else 0.0
    return Step(start, end, seconds, tuple(part * scale for part in parts), starts_epoch, device_parts)


def _parts(inside: list[Event], start: float, end: float, cut: list[tuple[float, float]]) -> tuple[float, ...]:
    """Exclusive time by share, in the order of SHARES: what happens inside something else is counted where it happens,
    and what is left over is "other"."""
    totals = dict.fromkeys(SHARES, 0.0)
    open_events: list[tuple[float, str]] = []
    for event in inside:
        if event.kind not in _SHARE_OF:
            continue
        until = min(event.end, end)
        seconds = until - event.start - _inside(cut, event.start, until)
        while open_events and open_events[-1][0] <= event.start:
            open_events.pop()
        if open_events:
            totals[open_events[-1][1]] -= seconds
        share = _SHARE_OF[event.kind]
        totals[share] += seconds
        open_events.append((event.end, share))
    totals["other"] = max(0.0, end - start - _sum(cut) - sum(totals.values()))
    return tuple(max(0.0, totals[name]) for name in SHARES)
