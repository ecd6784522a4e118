"""What a profiler's events say about a step: pure functions over intervals, on one clock in seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_EVALUATES = "autograd::engine::evaluate_function"


class Op(NamedTuple):
    """An operation as the host saw it."""

    id: int
    thread: int
    start: float
    end: float
    name: str
    sequence: int  # of the autograd node it belongs to, or -1
    from_thread: int  # where that node was made


class Kernel(NamedTuple):
    """Work of the device: a kernel, a copy or a fill."""

    op: int  # the id of the operation that launched it, or 0
    launched: float  # when the host did
    start: float
    end: float
    is_transfer: bool = False


class Node(NamedTuple):
    sequence: int
    thread: int


class Nested(NamedTuple):
    """An operation with the time it spent outside those it called, and the backward node it works for."""

    op: Op
    self_seconds: float
    node: Node | None
    is_outermost: bool


class Piece(NamedTuple):
    start: float
    end: float
    share: str


def nest(ops: Iterable[Op]) -> list[Nested]:
    """Operations in their order, per thread. A node that adds a gradient to its parameter has no number of its own:
    it runs right after the node that made the gradient, and is taken for a part of it."""
    by_thread: dict[int, list[Op]] = {}
    for op in ops:
        by_thread.setdefault(op.thread, []).append(op)
    found: list[Nested] = []
    for thread_ops in by_thread.values():
        thread_ops.sort(key=lambda op: (op.start, -op.end))
        stack: list[int] = []
        last: Node | None = None
        for op in thread_ops:
            while stack and found[stack[-1]].op.end <= op.start:
                stack.pop()
            node = found[stack[-1]].node if stack else None
            if op.name.startswith(_EVALUATES):
                node = last = Node(op.sequence, op.from_thread) if op.sequence >= 0 else last or Node(-1, 0)
            found.append(Nested(op, op.end - op.start, node, not stack))
            if stack:
                parent = found[stack[-1]]
                found[stack[-1]] = parent._replace(self_seconds=max(parent.self_seconds - (op.end - op.start), 0.0))
            stack.append(len(found) - 1)
    return found


def pieces(host: Sequence[tuple[str, float, float]], start: float, end: float) -> list[Piece]:
    """Nested intervals of the host, cut so that the innermost counts; what nothing covers is "other"."""
    found: list[Piece] = []
    stack = [("other", end)]
    now = start

    def on_to(when: float) -> None:
        nonlocal now
        when = min(when, end)
        if when > now:
            found.append(Piece(now, when, stack[-1][0]))
            now = when

    for share, begins, ends in sorted(host, key=lambda interval: (interval[1], -interval[2])):
        while len(stack) > 1 and stack[-1][1] <= begins:
            on_to(stack[-1][1])
            stack.pop()
        on_to(begins)
        stack.append((share, ends))
    while stack:
        on_to(stack[-1][1])
        stack.pop()
    return found


def device_seconds(kernels: Iterable[Kernel], host: Sequence[Piece]) -> dict[str, float]:
    """The device's work by what the host was doing when it launched it. What was launched outside does not count."""
    starts = [piece.start for piece in host]
    total: dict[str, float] = {}
    for kernel in kernels:
        index = bisect_right(starts, kernel.launched) - 1
        if index >= 0 and kernel.launched < host[index].end:
            total[host[index].share] = total.get(host[index].share, 0.0) + kernel.end - kernel.start
    return total


def idle_seconds(kernels: Iterable[Kernel], host: Sequence[Piece]) -> dict[str, float]:
    """When no work ran on the device, by what the host was doing then. Streams that overlap count once."""
    busy: list[list[float]] = []
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        if busy and kernel.start <= busy[-1][1]:
            busy[-1][1] = max(busy[-1][1], kernel.end)
        else:
            busy.append([kernel.start, kernel.end])
    total: dict[str, float] = {}
    first = 0
    for piece in host:
        idle = piece.end - piece.start
        while first < len(busy) and busy[first][1] <= piece.start:
            first += 1
        index = first
        while index < len(busy) and busy[index][0] < piece.end:
            idle -= min(busy[index][1], piece.end) - max(busy[index][0], piece.start)
            index += 1
        if idle > 0:
            total[piece.share] = total.get(piece.share, 0.0) + idle
    return total
