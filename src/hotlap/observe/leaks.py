"""Finding the line that keeps tensors alive from step to step.

A look goes through what the script can reach by name: the locals of its functions at work, its modules, attributes of
its own objects, and containers in these. It reads what is there and calls nothing of the script's, keeps nothing but
numbers, and is over in about 50 ms. What grows from look to look is a leak: a container with more and more tensors,
or a tensor whose graph reaches back to the one that had its name at the look before."""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import time
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hotlap.observe.holders import Holder, adding_site
from hotlap.observe.run import GrowthFacts
from hotlap.observe.whose import is_users

_SECONDS = 0.05  # a look
_DEPTH, _VALUES, _ENTRIES, _NAMED, _NODES = 6, 20_000, 20_000, 64, 20_000
_LARGE = 1000  # entries; looked into last
_LEAF = 2**63  # sequence numbers from here on belong to the accumulators of parameters
_WORTH_BYTES = 1024  # a step; less is only worth a word when there is a graph behind it
_BOXES = (list, dict, deque, set)
_PLAIN = (int, float, str, bytes, bool, types.ModuleType, types.BuiltinFunctionType)


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
                look = _Look(torch, step, self._tracks, roots, list(optimizers))
                look.frames(sys._getframe(1))
                for root in roots:
                    look.ask(root, Holder("", 0, (("name", type(root).__name__),)), 0)
                look.go()
                look.judge()
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
    """One look: a queue of named values, the shallow ones first, since time may run out."""

    def __init__(
        self, torch: Any, step: int, before: dict[Holder, _Track], roots: list[Any], optimizers: list[Any]
    ) -> None:
        self._torch, self._step, self._roots, self._optimizers = torch, step, roots, optimizers
        self._before, self.tracks = before, dict[Holder, _Track]()
        data, optim = torch.utils.data, torch.optim
        self._aside = (data.Dataset, data.DataLoader, data.Sampler, optim.Optimizer, optim.lr_scheduler.LRScheduler)
        self._every_module = vars(torch.nn.Module()).keys()  # parameters, buffers, hooks
        self._until = time.perf_counter() + _SECONDS
        self._queue: deque[tuple[Any, Holder, int]] = deque()
        self._late: deque[tuple[Any, Holder, int]] = deque()  # large containers
        self._seen: dict[int, _Track | None] = {}
        self._sums: list[tuple[_Track, _Track, Any]] = []  # now, before, and the tensor
        self._grown: list[tuple[_Track, list[Any], int]] = []  # with new tensors and the oldest node that counts
        self._files: dict[str, str] = {}  # of the script's modules
        self._homes: dict[type, str] = {}  # of its classes; "" for those of libraries

    def frames(self, frame: Any) -> None:
        """What the functions at work call their own, innermost first, and then all modules of the script."""
        modules: dict[int, tuple[dict[str, Any], str]] = {}
        while frame is not None:
            code, path = frame.f_code, frame.f_code.co_filename
            if is_users(path):
                modules.setdefault(id(frame.f_globals), (frame.f_globals, path))
                if code.co_flags & 1:  # a function's; the locals of a module are its globals
                    for name, value in _locals(frame):
                        self.ask(value, Holder(path, code.co_firstlineno, (("name", name),)), 0)
            frame = frame.f_back
        for module in list(sys.modules.values()):
            names = vars(module) if type(module) is types.ModuleType else {}
            path = names.get("__file__")
            if isinstance(path, str) and is_users(path):
                modules.setdefault(id(names), (names, path))
        for names, path in modules.values():
            self._files.setdefault(str(names.get("__name__")), path)
            for name, value in list(names.items()):
                if not name.startswith("__"):
                    self.ask(value, Holder(path, 0, (("name", name),)), 0)

    def ask(self, value: Any, holder: Holder, depth: int) -> None:
        kind = type(value)
        size = len(value) if kind in _BOXES else 1
        if value is not None and size and kind not in _PLAIN and len(self._seen) < _VALUES:
            (self._late if size > _LARGE else self._queue).append((value, holder, depth))

    def go(self) -> None:
        until = self._until - _SECONDS / 3  # the rest is for the graphs
        while (self._queue or self._late) and time.perf_counter() < until:
            value, holder, depth = (self._queue or self._late).popleft()
            kind = type(value)
            if issubclass(kind, self._torch.Tensor):
                self._tensor(value, holder)
                continue
            if id(value) in self._seen:
                track = self._seen[id(value)]
                if track is not None:  # another name of the same container
                    track.holders.append(holder)
                    self.tracks.setdefault(holder, track)
                continue
            self._seen[id(value)] = None
            if depth > _DEPTH or issubclass(kind, self._aside):
                continue
            if issubclass(kind, _BOXES):
                self._box(value, holder, depth)
            elif issubclass(kind, tuple):
                for number, part in itertools.islice(enumerate(tuple.__iter__(value)), _NAMED):
                    self.ask(part, holder.inner("key", number), depth + 1)
            else:
                for part, name in self._inside(value, holder):
                    self.ask(part, name, depth + (not issubclass(type(part), self._torch.nn.Module)))

    def _inside(self, value: Any, holder: Holder) -> Iterator[tuple[Any, Holder]]:
        """What closures, classes and objects of the script's own hold. Properties are never asked."""
        kind = type(value)
        if kind is types.FunctionType:
            if value.__closure__ and is_users(value.__code__.co_filename):
                for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
                    if hasattr(cell, "cell_contents"):
                        yield cell.cell_contents, Holder(value.__code__.co_filename, 0, (("name", name),))
            return
        if issubclass(kind, type):
            for name, part in list(type.__getattribute__(value, "__dict__").items()) if self._home(value) else ():
                if issubclass(type(part), _BOXES):
                    words = (("name", value.__name__), ("attr", name))
                    yield part, Holder(self._home(value), value.__name__, words)
            return
        path = self._home(kind)
        if not path and kind not in _namespaces() and not self._is_module(kind):
            return
        names = _attributes(value)
        for name, child in list((names.get("_modules") or {}).items()) if self._is_module(kind) else ():
            yield child, holder.inner("attr", name)
        if kind in _namespaces():
            path, own = holder.path, holder
        else:
            own = Holder(path, kind.__name__, holder.words)
        if not path:
            return
        yield kind, own
        for name, part in names.items():
            if name not in self._every_module:
                yield part, own.inner("attr", name)

    def _home(self, kind: type) -> str:
        """The script's file that defines a class; nothing for those of libraries, and for data sets by their looks."""
        if kind not in self._homes:
            module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
            names = vars(module) if type(module) is types.ModuleType else {}
            path = self._files.get(kind.__module__) or names.get("__file__")
            defines = {name for base in kind.__mro__[:-1] for name in ("__getitem__", "__len__") if name in vars(base)}
            is_data = len(defines) == 2 and not self._is_module(kind)
            self._homes[kind] = path if isinstance(path, str) and is_users(path) and not is_data else ""
        return self._homes[kind]

    def _is_module(self, kind: type) -> bool:
        return issubclass(kind, self._torch.nn.Module)

    def _box(self, box: Any, holder: Holder, depth: int) -> None:
        kind: Any = next(kind for kind in _BOXES if issubclass(type(box), kind))  # an overridden method is not called
        is_dict, size = kind is dict, kind.__len__(box)
        pairs: Any = dict.items(box) if is_dict else enumerate(kind.__iter__(box))
        if size > _ENTRIES and kind is not set:  # then those that came last
            pairs = reversed(dict.items(box)) if is_dict else enumerate(kind.__reversed__(box))
        entries = list(itertools.islice(pairs, _ENTRIES))
        if len(entries) <= _NAMED:
            for number, (key, entry) in enumerate(entries):
                is_plain = type(key) in (str, int) and kind is not set
                self.ask(entry, holder.inner(*("key", key) if is_plain else ("nth", number)), depth + 1)
        if kind is deque and box.maxlen is not None:
            return
        plain, skipped, tensors = self._torch.Tensor, {*_PLAIN, type(None)}, []
        for _, entry in entries:
            if type(entry) is plain:
                tensors.append(entry)
            elif type(entry) not in skipped:
                tensors += self._held(entry, is_dict)
        if not tensors:
            return
        old, ids = self._before.get(holder), frozenset(map(id, tensors))
        track = self._follow(holder, old, ids=ids, count=int(len(tensors) * max(1, size / _ENTRIES)))
        self._seen[id(box)] = track
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
        elif not issubclass(kind, (*_BOXES, *_PLAIN, self._torch.nn.Module)) and self._home(kind):
            parts = _attributes(entry).values()
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

    def judge(self) -> None:
        """With the names known: which sums have grown, and how much is behind what has."""
        reached = self._reached(
            [tensor.grad_fn for _, _, tensor in self._sums], [old.number for _, old, _ in self._sums]
        )
        for (track, old, tensor), has_grown in zip(self._sums, reached, strict=True):
            if has_grown:
                self._grew(track, old, [tensor], old.number)
        for left, (track, tensors, oldest) in zip(range(len(self._grown), 0, -1), self._grown, strict=True):
            seconds = (self._until - time.perf_counter()) / left
            nodes = self._nodes([t.grad_fn for t in tensors[-2:] if t.grad_fn is not None], oldest, seconds)
            own: dict[int, int] = {}
            for tensor in tensors[-8:] if not oldest else ():
                own |= _storage(tensor)
            behind = sum(size for number, size in self._saved(nodes.values()).items() if number not in own)
            if len(own) == 1 and len(tensors) > 2:
                own = {}  # views of one tensor, which is there anyway
            each = behind / len(tensors[-2:]) + sum(own.values()) / len(tensors[-8:])
            track.bytes += each * len(tensors)

    def _reached(self, starts: list[Any], numbers: list[int]) -> list[bool]:
        """Whether the graph of each start has the node of the number that goes with it. One walk for all, since those
        of a step share most of their graphs."""
        bits = {number: 1 << place for place, number in enumerate(dict.fromkeys(numbers))}
        nodes = self._nodes(starts, min(bits, default=0), (self._until - time.perf_counter()) / 2)
        below: dict[int, int] = {}
        for number in sorted(nodes):  # as they were made: what is below a node comes before it
            numbers_below = [n._sequence_nr() for n, _ in nodes[number].next_functions if n is not None]
            below[number] = bits.get(number, 0)
            for other in numbers_below:
                below[number] |= below.get(other, bits.get(other, 0))
        return [bool(below[s._sequence_nr()] & bits[n]) for s, n in zip(starts, numbers, strict=True)]

    def _nodes(self, starts: list[Any], oldest: int, seconds: float) -> dict[int, Any]:
        """The nodes of the graphs newer than the oldest asked for, by number, those near the starts first."""
        found = {node._sequence_nr(): node for node in starts}
        queue, until = list(found.values()), time.perf_counter() + seconds
        for node in queue:
            if len(queue) > _NODES or time.perf_counter() > until:
                break
            for below, _ in node.next_functions:
                number = below._sequence_nr() if below is not None else _LEAF
                if oldest < number < _LEAF and number not in found:
                    found[number] = below
                    queue.append(below)
        return found

    def _saved(self, nodes: Iterable[Any]) -> dict[int, int]:
        """What the graph keeps for backward, as it lies there: unpacking could run hooks of the script's."""
        found: dict[int, int] = {}
        for node in nodes:
            for name in _saved_names(type(node)):
                try:
                    raw = getattr(node, name)
                    for one in raw if isinstance(raw, (list, tuple)) else (raw,):
                        data = getattr(one, "data", None)
                        if issubclass(type(data), self._torch.Tensor):
                            found |= _storage(data)
                except RuntimeError:  # freed by backward
                    continue
        return {number: size for number, size in found.items() if number not in self._kept} if found else {}

    @functools.cached_property
    def _kept(self) -> set[int]:
        """Storages of parameters and buffers: they are there whatever else is kept."""
        tensors = [t for root in self._roots for t in (*root.parameters(), *root.buffers())]
        tensors += [p for o in self._optimizers for group in o.param_groups for p in group["params"]]
        return {number for tensor in tensors for number in _storage(tensor)}


def _storage(tensor: Any) -> dict[int, int]:
    try:
        storage = tensor.untyped_storage()
        return {storage._cdata: storage.nbytes()}
    except Exception:  # sparse, wrapped, not there yet: nothing to be told
        return {}


def _locals(frame: Any) -> list[tuple[str, Any]]:
    seen = frame.f_locals
    found = list(seen.items())
    if sys.version_info < (3, 13) and sys.getrefcount(seen) <= 3:
        seen.clear()  # a copy that only the frame keeps: it would hold the script's tensors until its function returns
    return found


def _attributes(value: Any) -> dict[str, Any]:
    """What an object has in its `__dict__` and `__slots__`, without asking the object."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        found = {}
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items() if "__slots__" in vars(kind) else ():
            if type(slot) is types.MemberDescriptorType:
                try:
                    found[name] = slot.__get__(value)
                except AttributeError:  # not set
                    continue
    return found


def _namespaces() -> tuple[Any, ...]:
    return types.SimpleNamespace, getattr(sys.modules.get("argparse"), "Namespace", types.SimpleNamespace)


@functools.cache
def _saved_names(node: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
