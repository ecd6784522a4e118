"""How long each module takes, from torch's own profiler: operations on the processor, kernels on a device.

The profiler's clock is tied to `time.perf_counter` by short ranges of our own, which also say which of the profiler's
threads is which of ours."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from hotlap.observe.look.timeline import Kernel, Nested, Op, nest
from hotlap.observe.look.tracks import Track, Tracks, clock

_MARK = "hotlap::"
_MARKS_A_STEP = 3  # the first range a process records takes a millisecond; the tightest counts
_SILENT = "99"  # kineto's log level: since 2.13 it announces every start on stderr. It is read once


@dataclass
class Trace:
    """What the profiler saw, on our clock."""

    ops: list[Op] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    threads: dict[int, int] = field(default_factory=dict)  # the profiler's thread -> number of our track


@dataclass
class Times:
    """Seconds in a window, not yet by the step."""

    forward: dict[int, float] = field(default_factory=dict)
    backward: dict[int, float] = field(default_factory=dict)
    by_operation: dict[str, float] = field(default_factory=dict)  # inside modules
    pieces: list[float] = field(default_factory=list)  # every kernel, or every outermost operation, inside modules


class Profile:
    def __init__(self, device: str) -> None:
        self._device = device
        self._profile: Any = None
        self._results: Any = None
        self._marks: list[tuple[int, float, float]] = []

    def start(self) -> None:
        from torch.autograd.profiler import profile

        old = os.environ.get("KINETO_LOG_LEVEL")
        os.environ["KINETO_LOG_LEVEL"] = old or _SILENT
        try:
            running = profile(use_kineto=True, use_device="cuda" if self._device == "cuda" else None)
            running.__enter__()
        finally:
            if old is None:
                os.environ.pop("KINETO_LOG_LEVEL", None)
        self._profile = running

    def mark(self, track: Track) -> None:
        from torch.autograd.profiler import record_function

        if self._profile is None:
            return
        for _ in range(_MARKS_A_STEP):
            before = clock()
            with record_function(f"{_MARK}{len(self._marks)}"):
                pass
            self._marks.append((track.number, before, clock()))

    def stop(self) -> None:
        if self._profile is not None:
            running, self._profile = self._profile, None
            running.__exit__(None, None, None)
            self._results = running.kineto_results

    @property
    def is_running(self) -> bool:
        return self._profile is not None

    def abandon(self) -> None:
        self._profile = None

    def trace(self) -> Trace:
        return _read(self._results.events(), self._marks) if self._results is not None else Trace()


def _read(events: list[Any], marks: list[tuple[int, float, float]]) -> Trace:
    """Kineto's events as plain data. Kernels name the operation that launched them as their linked correlation, and
    share their own correlation with the call of the runtime that did."""
    trace = Trace()
    marked = {event.name(): event for event in events if event.name().startswith(_MARK) and _is_host(event)}
    tied: tuple[float, int, float] | None = None
    for number, (track, before, after) in enumerate(marks):
        event = marked.get(f"{_MARK}{number}")
        if event is None:
            continue
        trace.threads[event.start_thread_id()] = track
        slack = after - before - event.duration_ns() * 1e-9
        if tied is None or slack < tied[0]:
            tied = slack, event.start_ns(), before + slack / 2
    if tied is None:
        return trace
    _, zero_ns, zero = tied

    def seconds(ns: int) -> float:
        return (ns - zero_ns) * 1e-9 + zero

    launches: dict[int, float] = {}
    work = []
    for event in events:
        if event.is_user_annotation():
            continue
        kind = _kind(event)
        if kind == "op":
            trace.ops.append(
                Op(
                    event.correlation_id(),
                    event.start_thread_id(),
                    seconds(event.start_ns()),
                    seconds(event.end_ns()),
                    event.name(),
                    event.sequence_nr(),
                    event.fwd_thread_id(),
                )
            )
        elif kind == "runtime":
            launches[event.correlation_id()] = seconds(event.start_ns())
        elif kind in ("kernel", "transfer"):
            work.append((event, kind == "transfer"))
    ops = {op.id: op for op in trace.ops}
    for event, is_transfer in work:
        start, op = seconds(event.start_ns()), ops.get(event.linked_correlation_id())
        launched = launches.get(event.correlation_id(), op.start if op is not None else start)
        trace.kernels.append(
            Kernel(op.id if op is not None else 0, launched, start, seconds(event.end_ns()), is_transfer)
        )
    return trace


def _is_host(event: Any) -> bool:
    return str(event.device_type()).endswith("CPU")


def _kind(event: Any) -> str:
    """Older versions of torch do not tell what an event is: there it is judged by its name and links."""
    activity = getattr(event, "activity_type", lambda: "")()
    name = event.name()
    if _is_host(event):
        if activity:
            return {"cpu_op": "op", "cuda_runtime": "runtime", "cuda_driver": "runtime"}.get(activity, "")
        return "runtime" if event.linked_correlation_id() or name.startswith("cu") else "op"
    is_transfer = name.startswith(("Memcpy", "Memset"))
    if activity in ("", "kernel", "concurrent_kernel", "gpu_memcpy", "gpu_memset"):
        return "transfer" if is_transfer else "kernel"
    return ""


def times(trace: Trace, tracks: Tracks, start: float, end: float, on_device: bool) -> Times:
    """Each operation's own time, booked under the module at work in forward, or the one that made the node."""
    by_number = {track.number: track for track in tracks.all()}
    by_thread = {thread: by_number[number] for thread, number in trace.threads.items()}
    launched: dict[int, list[float]] = {}
    for kernel in trace.kernels:
        launched.setdefault(kernel.op, []).append(kernel.end - kernel.start)
    result = Times()
    for nested in nest(trace.ops):
        op = nested.op
        if not start <= op.start < end:
            continue
        place = _place(nested, by_thread)
        if place is None:
            continue
        spent = launched.get(op.id, []) if on_device else [nested.self_seconds]
        booked = result.forward if nested.node is None else result.backward
        booked[place] = booked.get(place, 0.0) + sum(spent)
        result.by_operation[op.name] = result.by_operation.get(op.name, 0.0) + sum(spent)
        if on_device:
            result.pieces += spent
        elif nested.is_outermost:
            result.pieces.append(op.end - op.start)
    return result


def _place(nested: Nested, by_thread: dict[int, Track]) -> int | None:
    track = by_thread.get(nested.op.thread)
    top = track.at(nested.op.start) if track is not None else None
    if nested.node is not None and (top is None or top.task == -1):
        made_by = by_thread.get(nested.node.thread)
        top = made_by.of_node(nested.node.sequence) if made_by is not None and nested.node.sequence >= 0 else None
    return top.place if top is not None else None
