"""What the script can reach by name: the locals of its functions at work, its modules, attributes of its own objects,
and containers in these. It is read as it lies there, and nothing of the script's is called."""

from __future__ import annotations

import itertools
import sys
import time
import types
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hotlap.observe.holders import Holder
from hotlap.observe.whose import is_users

BOXES = (list, dict, deque, set)
PLAIN = (int, float, str, bytes, bool, types.ModuleType, types.BuiltinFunctionType)
ENTRIES = 20_000  # of one container
_DEPTH, _VALUES, _NAMED = 6, 20_000, 64
_LARGE = 1000  # entries; looked into last


class NamedValue(NamedTuple):
    """A tensor or a container by one of its names."""

    value: Any
    holder: Holder
    entries: Sequence[Any] = ()  # of a container that is met for the first time
    is_known: bool = False  # a container that was met by another name


class NamedValues:
    """A queue of named values, the shallow ones first, since time may run out."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        data, optim = torch.utils.data, torch.optim
        self._aside = (data.Dataset, data.DataLoader, data.Sampler, optim.Optimizer, optim.lr_scheduler.LRScheduler)
        self._every_module = vars(torch.nn.Module()).keys()  # parameters, buffers, hooks
        self._queue: deque[tuple[Any, Holder, int]] = deque()
        self._late: deque[tuple[Any, Holder, int]] = deque()  # large containers
        self._seen: dict[int, bool] = {}  # whether it was a container to tell of
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
                        self.ask(value, Holder(path, code.co_firstlineno, (("name", name),)))
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
                    self.ask(value, Holder(path, 0, (("name", name),)))

    def ask(self, value: Any, holder: Holder, depth: int = 0) -> None:
        kind = type(value)
        size = len(value) if kind in BOXES else 1
        if value is not None and size and kind not in PLAIN and len(self._seen) < _VALUES:
            (self._late if size > _LARGE else self._queue).append((value, holder, depth))

    def found(self, until: float) -> Iterator[NamedValue]:
        while (self._queue or self._late) and time.perf_counter() < until:
            value, holder, depth = (self._queue or self._late).popleft()
            kind = type(value)
            if issubclass(kind, self._torch.Tensor):
                yield NamedValue(value, holder)
                continue
            if id(value) in self._seen:
                if self._seen[id(value)]:
                    yield NamedValue(value, holder, is_known=True)
                continue
            self._seen[id(value)] = False
            if depth > _DEPTH or issubclass(kind, self._aside):
                continue
            if issubclass(kind, BOXES):
                self._seen[id(value)] = True
                yield NamedValue(value, holder, self._entries(value, holder, depth))
            elif issubclass(kind, tuple):
                for number, part in itertools.islice(enumerate(tuple.__iter__(value)), _NAMED):
                    self.ask(part, holder.inner("key", number), depth + 1)
            else:
                for part, name in self._inside(value, holder):
                    self.ask(part, name, depth + (not issubclass(type(part), self._torch.nn.Module)))

    def _entries(self, box: Any, holder: Holder, depth: int) -> list[Any]:
        kind = kind_of_box(box)
        is_dict, size = kind is dict, kind.__len__(box)
        pairs: Any = dict.items(box) if is_dict else enumerate(kind.__iter__(box))
        if size > ENTRIES and kind is not set:  # then those that came last
            pairs = reversed(dict.items(box)) if is_dict else enumerate(kind.__reversed__(box))
        entries = list(itertools.islice(pairs, ENTRIES))
        if len(entries) <= _NAMED:
            for number, (key, entry) in enumerate(entries):
                is_plain = type(key) in (str, int) and kind is not set
                self.ask(entry, holder.inner(*("key", key) if is_plain else ("nth", number)), depth + 1)
        return [entry for _, entry in entries]

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
            for name, part in list(type.__getattribute__(value, "__dict__").items()) if self.home(value) else ():
                if issubclass(type(part), BOXES):
                    words = (("name", value.__name__), ("attr", name))
                    yield part, Holder(self.home(value), value.__name__, words)
            return
        path = self.home(kind)
        if not path and kind not in _namespaces() and not self._is_module(kind):
            return
        names = attributes(value)
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

    def home(self, kind: type) -> str:
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


def kind_of_box(box: Any) -> Any:
    """Whose methods are called, since the script may have overridden them."""
    return next(kind for kind in BOXES if issubclass(type(box), kind))


def _locals(frame: Any) -> list[tuple[str, Any]]:
    seen = frame.f_locals
    found = list(seen.items())
    if sys.version_info < (3, 13) and sys.getrefcount(seen) <= 3:
        seen.clear()  # a copy that only the frame keeps: it would hold the script's tensors until its function returns
    return found


def attributes(value: Any) -> dict[str, Any]:
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
