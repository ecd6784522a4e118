"""Which module is at work: kept by torch's own global hooks, as one track of stamps for each thread.

A stamp says when a module became the innermost one, on the clock and in autograd's count of nodes. So an operation is
traced to its module by its time, and a node of the backward by its number, long after both."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

clock = time.perf_counter


class Place(NamedTuple):
    """A module's place in the script's models."""

    root: str
    name: str
    module: Any


class Top(NamedTuple):
    """The innermost module, and the backward it was called in: -1 unless a checkpoint computes it again."""

    place: int
    task: int


class Track:
    """The stamps of one thread; times and node numbers only grow."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stack: list[Top] = []
        self._times: list[float] = []
        self._nodes: list[int] = []
        self._tops: list[Top | None] = []

    def stamp(self, now: float, next_node: int) -> None:
        self._times.append(now)
        self._nodes.append(next_node)
        self._tops.append(self.stack[-1] if self.stack else None)

    def at(self, when: float) -> Top | None:
        index = bisect_right(self._times, when) - 1
        return self._tops[index] if index >= 0 else None

    def of_node(self, sequence: int) -> Top | None:
        """Who made a node: the last stamp not after it, since a stamp holds the number the next node will get."""
        index = bisect_right(self._nodes, sequence) - 1
        return self._tops[index] if index >= 0 else None


class Tracks:
    """All threads, and the places of the modules under the roots. Modules of no root count for what calls them."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self.places: list[Place] = []
        self.index: dict[int, int] = {}
        self.owners: dict[int, int] = {}  # parameter -> the place that holds it
        self.calls: dict[int, int] = {}
        self.dtypes: dict[int, str] = {}
        self.copies_called = False  # replicas of DataParallel, which are not the script's own modules
        self.on_thread: Callable[[Track], None] | None = None
        self._tracks: dict[int, Track] = {}
        self._handles: list[Any] = []
        for root in roots:
            for name, module in root.named_modules():
                if id(module) in self.index:
                    continue
                self.index[id(module)] = len(self.places)
                for parameter in module.parameters(recurse=False):
                    self.owners.setdefault(id(parameter), len(self.places))
                self.places.append(Place(type(root).__name__, name, module))

    def hang_up(self) -> None:
        from torch.nn.modules import module as torch_module

        self._handles.append(torch_module.register_module_forward_pre_hook(self._enter))
        self._handles.append(torch_module.register_module_forward_hook(self._leave, always_call=True))

    def take_down(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def boundary(self) -> None:
        """Between two steps of the script nothing is being called: an interrupt may have left entries behind."""
        track = self.here()
        track.stack.clear()
        self._stamp(track)

    def here(self) -> Track:
        thread = threading.get_ident()
        track = self._tracks.get(thread)
        if track is None:
            track = self._tracks[thread] = Track(len(self._tracks))
            if self.on_thread is not None:
                self.on_thread(track)
        return track

    def all(self) -> list[Track]:
        return list(self._tracks.values())

    def of_node(self, sequence: int, task: int) -> int | None:
        """The place that made a node which backward `task` runs. Each thread counts for itself; this one comes first,
        since a checkpoint that starts a backward of its own does so where it computed again. What was entered inside
        `task` itself is younger than the nodes it runs."""
        here = self.here()
        for track in (here, *(track for track in self.all() if track is not here)):
            top = track.of_node(sequence)
            if top is not None and top.task != task:
                return top.place
        return None

    def _enter(self, module: Any, args: Any) -> None:
        import torch

        place = self.index.get(id(module))
        if place is None:
            self.copies_called = self.copies_called or getattr(module, "_is_replica", False)
            return
        task = torch._C._current_graph_task_id()
        if task == -1:
            self.calls[place] = self.calls.get(place, 0) + 1
        track = self.here()
        track.stack.append(Top(place, task))
        self._stamp(track)

    def _leave(self, module: Any, args: Any, out: Any) -> None:
        place = self.index.get(id(module))
        if place is None:
            return
        track = self.here()
        depth = next((d for d in reversed(range(len(track.stack))) if track.stack[d].place == place), None)
        if depth is None:
            return  # entered before the look began
        del track.stack[depth:]
        self._stamp(track)
        if place not in self.dtypes:
            dtype = next((t.dtype for t in (out if isinstance(out, (tuple, list)) else (out,)) if _is_tensor(t)), None)
            if dtype is not None:
                self.dtypes[place] = str(dtype).removeprefix("torch.")

    def _stamp(self, track: Track) -> None:
        import torch

        track.stamp(clock(), torch.autograd._get_sequence_nr())


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)
