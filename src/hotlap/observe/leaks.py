"""Finding the line that keeps tensors alive from step to step.

A look goes through what the script can reach by name, keeps nothing but numbers, and is over in about 50 ms. What grows
from look to look is a leak: a container with more and more tensors, or a tensor whose graph reaches back to the one
that had its name at the look before."""

from __future__ import annotations

import gc
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotlap.observe.holders import Holder, adding_site
from hotlap.observe.kept_graphs import KeptGraphs
from hotlap.observe.named_values import BOXES, ENTRIES, PLAIN, NamedValues, attributes, kind_of_box
from hotlap.observe.scrutiny_facts import GrowthFacts

_SECONDS = 0.05  # a look
_WORTH_BYTES = 1024  # a step; less is only worth a word when there is a graph behind it


@dataclass
class _Track:
    """One holder through the looks."""

    step: int  # of the last look that met it
    ids: frozenset[int] = frozenset()
    number: int = -1  # of the node a tensor's graph begins at
    count: int = 1
    grew: int = 0  # looks in which it had grown since the one before
    steps: int = 0
    bytes: float = 0.0
    fresh: frozenset[int] = frozenset()
    has_graph: bool = False
    scalar: bool = True
    holders: list[Holder] = field(default_factory=list)

    def is_inside(self, other: _Track) -> bool:
        """Whether these are tensors of a container in the other: `logs["train"]` in `logs`."""
        pairs = [(own.words, above.words) for own in self.holders for above in other.holders]
        return bool(self.fresh & other.fresh) and any(own[: len(above)] == above for own, above in pairs)

    def why(self, added: str) -> str:
        word = added or ("loss" if self.scalar else "output")
        if self.number >= 0 and added:
            return f"the running sum keeps every step's graph: add {word}.detach()"
        if self.number >= 0:
            return "it reaches back through the graph of every step before: detach what is carried over"
        if self.has_graph:
            instead = f"{word}.item() or {word}.detach()" if self.scalar else f"{word}.detach()"
            return f"every {word} is kept together with its graph: append {instead}"
        return f"every {word} is kept, and none is dropped: keep a summary, or the last few"


class Leaks:
    """`look` at three or more boundaries between steps, unevenly apart (3, 4 and 5 steps, say): what a script gathers
    and drops in a rhythm of its own must not be met at the same beat."""

    def __init__(self) -> None:
        self._looks: list[int] = []
        self._tracks: dict[Holder, _Track] = {}

    def look(self, step: int, roots: Iterable[Any] = (), optimizers: Iterable[Any] = ()) -> None:
        """On the script's own thread, below its frames."""
        torch = sys.modules.get("torch")
        if torch is None or (self._looks and step <= self._looks[-1]):
            return
        self._looks.append(step)
        collects = gc.isenabled()
        gc.disable()  # a look makes many small objects: a collection of the script's in the midst of it takes longer
        try:
            with torch._C.DisableTorchFunction():  # no subclass and no mode of the script's is to answer
                roots = list(roots)
                look = _Look(torch, step, self._tracks)
                look.go(roots, sys._getframe(1))
                look.judge(KeptGraphs(torch, roots, list(optimizers)))
                self._tracks |= look.tracks
        finally:
            if collects:
                gc.enable()

    def facts(self) -> list[GrowthFacts]:
        between = len(self._looks) - 1
        found: dict[tuple[str, int, str], GrowthFacts] = {}
        told: list[_Track] = []
        for track in {id(track): track for track in self._tracks.values()}.values():
            a_step = track.bytes / max(1, track.steps)
            is_worth_a_word = track.has_graph or a_step >= _WORTH_BYTES
            if not track.grew or track.grew * 3 < between * 2 or not is_worth_a_word:
                continue
            if any(track.is_inside(other) for other in told):
                continue
            told.append(track)
            site = adding_site(track.holders)
            growth = GrowthFacts(site.path, site.line, site.text, track.count, a_step, track.why(site.word))
            found.setdefault((site.path, site.line, site.text), growth)
        return sorted(found.values(), key=lambda growth: -growth.bytes_a_step)


class _Look:
    """One look, held against the one before."""

    def __init__(self, torch: Any, step: int, before: dict[Holder, _Track]) -> None:
        self._torch, self._step = torch, step
        self._before, self.tracks = before, dict[Holder, _Track]()
        self._values = NamedValues(torch)
        self._until = time.perf_counter() + _SECONDS
        self._boxes: dict[int, _Track] = {}
        self._sums: list[tuple[_Track, _Track, Any]] = []  # now, before, and the tensor
        self._grown: list[tuple[_Track, list[Any], int]] = []  # with new tensors and the oldest node that counts

    def go(self, roots: list[Any], frame: Any) -> None:
        self._values.frames(frame)
        for root in roots:
            self._values.ask(root, Holder("", 0, (("name", type(root).__name__),)))
        for value, holder, entries, is_known in self._values.found(
            self._until - _SECONDS / 3
        ):  # the rest is for graphs
            if issubclass(type(value), self._torch.Tensor):
                self._tensor(value, holder)
            elif not is_known:
                self._box(value, holder, entries)
            elif id(value) in self._boxes:
                self._boxes[id(value)].holders.append(holder)
                self.tracks.setdefault(holder, self._boxes[id(value)])

    def _box(self, box: Any, holder: Holder, entries: Sequence[Any]) -> None:
        kind = kind_of_box(box)
        if kind is deque and box.maxlen is not None:
            return
        plain, skipped, tensors = self._torch.Tensor, {*PLAIN, type(None)}, []
        for entry in entries:
            if type(entry) is plain:
                tensors.append(entry)
            elif type(entry) not in skipped:
                tensors += self._held(entry, kind is dict)
        if not tensors:
            return
        old, ids = self._before.get(holder), frozenset(map(id, tensors))
        track = self._follow(holder, old, ids=ids, count=int(len(tensors) * max(1, kind.__len__(box) / ENTRIES)))
        self._boxes[id(box)] = track
        fresh = [tensor for tensor in tensors if old is not None and id(tensor) not in old.ids]
        if old is None or old.number >= 0 or not fresh or track.count <= old.count:
            return
        self._grew(track, old, fresh)
        track.fresh |= set(map(id, fresh))

    def _held(self, entry: Any, in_dict: bool) -> list[Any]:
        """The tensors of one entry, and one level inside it. A list in a dict is a container of its own."""
        kind, tensor = type(entry), self._torch.Tensor
        if issubclass(kind, tensor):
            return [entry]
        parts: Iterable[Any] = ()
        if issubclass(kind, dict):
            parts = list(dict.values(entry))
        elif issubclass(kind, tuple) or (issubclass(kind, list) and not in_dict):
            parts = list((tuple if issubclass(kind, tuple) else list).__iter__(entry))
        elif not issubclass(kind, (*BOXES, *PLAIN, self._torch.nn.Module)) and self._values.home(kind):
            parts = attributes(entry).values()
        return [part for part in parts if issubclass(type(part), tensor)]

    def _tensor(self, tensor: Any, holder: Holder) -> None:
        """A tensor with a graph. Nodes are numbered as they are made, so the old one is not below any older one."""
        node = tensor.grad_fn
        if node is None or holder in self.tracks:
            return
        old, number = self._before.get(holder), node._sequence_nr()
        track = self._follow(holder, old, number=number)
        if old is not None and 0 <= old.number < number:
            self._sums.append((track, old, tensor))

    def _follow(self, holder: Holder, old: _Track | None, **now: Any) -> _Track:
        track = _Track(self._step, **now, holders=[holder])
        if old is not None:
            track.grew, track.steps, track.bytes = old.grew, old.steps, old.bytes
            track.has_graph, track.scalar, track.fresh = old.has_graph, old.scalar, old.fresh
        self.tracks[holder] = track
        return track

    def _grew(self, track: _Track, old: _Track, tensors: list[Any], oldest: int = 0) -> None:
        track.grew += 1
        track.steps += self._step - old.step
        track.has_graph = track.has_graph or tensors[-1].grad_fn is not None
        track.scalar = tensors[-1].numel() == 1
        self._grown.append((track, tensors, oldest))

    def judge(self, graphs: KeptGraphs) -> None:
        """With the names known: which sums have grown, and how much is behind what has."""
        starts, numbers = [tensor.grad_fn for _, _, tensor in self._sums], [old.number for _, old, _ in self._sums]
        reached = graphs.reached(starts, numbers, (self._until - time.perf_counter()) / 2)
        for (track, old, tensor), has_grown in zip(self._sums, reached, strict=True):
            if has_grown:
                self._grew(track, old, [tensor], old.number)
        for left, (track, tensors, oldest) in zip(range(len(self._grown), 0, -1), self._grown, strict=True):
            track.bytes += graphs.bytes_kept(tensors, oldest, (self._until - time.perf_counter()) / left)
