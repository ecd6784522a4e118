"""What a recorded pass rests on beside its inputs: weights, buffers, settings and functions that its code can reach. A
recording is good as long as all of them are what and where they were."""

from __future__ import annotations

import contextlib
import dis
import functools
import operator
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.memory_format)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CHANGED = ("training", "p", "momentum", "eps", "inplace")  # settings of torch's own layers that scripts change
_TORCHS = {*vars(nn.Module()), "_compiled_call_impl", "_is_full_backward_hook"} - {"training"}  # of every module
_STANDARD = sysconfig.get_path("stdlib")
_MOST_ITEMS = 64
_DEPTH = 8
# A recording would not say, draw, read or wait again. By the name of the module, or of what is called.
_ONCE = {"print": "it prints", "input": "it asks", "open": "it opens files", "synchronize": "it waits for the device"}
_DRAWING = {
    "random": "it draws random numbers on the host",
    "time": "it reads the clock",
    "datetime": "it reads the clock",
}


class Unfit(Exception):
    """Why a pass cannot be recorded."""


class Grounds:
    """`hold()` says whether everything is as it was; `why` names what is not."""

    def __init__(self, function: Any, given: Sequence[Any] = ()) -> None:
        self.tensors: list[torch.Tensor] = []
        self.why = ""
        self._values: tuple[list[Any], list[Any], list[Any]] = ([], [], [])  # where, by what key, what was there
        self._objects: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        self._lengths: tuple[list[Any], list[int]] = ([], [])
        self._hooks: list[Any] = []
        self._seen: set[Any] = set()
        self._cells = _cells(function)
        try:
            self._walk(function, given)
        except Unfit:
            raise
        except Exception as error:  # objects that do not like to be looked at
            raise Unfit(f"what it rests on cannot be looked through ({type(error).__name__}: {error})") from error
        self._addresses = [tensor.data_ptr() for tensor in self.tensors]
        self._trains = [tensor.requires_grad for tensor in self.tensors]

    def _walk(self, function: Any, given: Sequence[Any]) -> None:
        """What the function itself sets (`self.loss`) is handed back, and read only after that."""
        names = _names(function) - _stored(function.__code__)
        self._visit_all(self._cells, self._cells, names, 0)
        self._visit_all(dict(enumerate(given)), range(len(given)), names, 0)
        self._look_into(function, 0)

    def hold(self, function: Any) -> bool:
        """Runs in every step, so that it is no more than look-ups and comparisons, none of them in Python itself."""
        cells = _cells(function)
        names = [name for name, old in self._cells.items() if not _is_same(cells.get(name), old)]
        try:
            is_good = (
                not names
                and all(map(operator.is_, map(operator.getitem, *self._objects[:2]), self._objects[2]))
                and list(map(operator.getitem, *self._values[:2])) == self._values[2]
                and list(map(torch.Tensor.data_ptr, self.tensors)) == self._addresses
                and [tensor.requires_grad for tensor in self.tensors] == self._trains
                and list(map(len, self._lengths[0])) == self._lengths[1]
                and not any(self._hooks)
            )
        except (KeyError, IndexError):
            is_good = False
        if not is_good:
            self.why = self._fault(names)
        return is_good

    def _fault(self, names: list[str]) -> str:
        for name in names:
            return f"{name} is another"
        for where, key, value in zip(*self._values, strict=True):
            if not _has(where, key) or where[key] != value:
                return f"{key} changes"
        for where, key, value in zip(*self._objects, strict=True):
            if not _has(where, key) or where[key] is not value:
                return f"{key} is another"
        if any(self._hooks):
            return "modules have hooks of the script's"
        if list(map(len, self._lengths[0])) != self._lengths[1]:
            return "a list or dict that it can reach grows"
        return "a weight lies elsewhere, or is trained no more"

    def addresses(self) -> set[int]:
        """Where all tensors lie that it knows."""
        return {address(tensor) for tensor in self.tensors}

    def _visit_all(self, where: Any, keys: Any, names: frozenset[str], depth: int) -> None:
        for key in list(keys):
            self._visit(where, key, names, depth)

    def _visit(self, where: Any, key: Any, names: frozenset[str], depth: int) -> None:
        """Takes down what stands under a key, and what can be reached from there by the names that code uses."""
        value = where[key]
        if isinstance(value, _PLAIN):
            _add(self._values, where, key, value)
            return
        if isinstance(value, torch.Tensor):
            _add(self._objects, where, key, value)
            self.tensors.append(value)
            if value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None):
                raise Unfit("a weight has hooks of the script's")
            return
        if not isinstance(value, MethodType):
            _add(self._objects, where, key, value)
        if id(value) in self._seen and not hasattr(value, "__dict__"):
            return
        is_new = id(value) not in self._seen
        self._seen.add(id(value))
        if depth > _DEPTH:
            return
        if isinstance(value, nn.Module):
            if is_new:
                self._look_into_module(value, depth)
        elif isinstance(value, ModuleType):
            self._look_into_import(value, names, depth)
        elif isinstance(value, FunctionType | MethodType | functools.partial):
            self._look_into(getattr(value, "func", value), depth + 1)
        elif isinstance(value, list | tuple | dict):
            _add(self._lengths, value, len(value))
            if len(value) <= _MOST_ITEMS and is_new:
                self._visit_all(value, value if isinstance(value, dict) else range(len(value)), names, depth + 1)
        elif isinstance(value, type):
            self._reached(value, names | {"forward", "backward"}, depth + 1)  # of a function with its own gradient
        elif not isinstance(value, torch.optim.Optimizer) and hasattr(value, "__dict__"):
            self._look_into_object(value, names, depth)

    def _look_into(self, function: Any, depth: int) -> None:
        """What a function of the script's own reads: globals, closures, and what it calls on them."""
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None or code in self._seen or depth > _DEPTH or not _is_scripts(function.__globals__):
            return
        self._seen.add(code)
        names, own = _names(function), function.__globals__
        read = _globals(function)
        for name, reason in _ONCE.items():
            if name in names or (name in read and name not in own):
                raise Unfit(reason)
        if depth:
            cells = _cells(function)
            self._visit_all(cells, cells, names, depth)
        self._visit_all(own, sorted(read & own.keys()), names, depth)

    def _look_into_import(self, module: ModuleType, names: frozenset[str], depth: int) -> None:
        root = module.__name__.partition(".")[0]
        if root in _DRAWING:
            raise Unfit(_DRAWING[root])
        if root == "numpy" and ("random" in names or module.__name__.startswith("numpy.random")):
            raise Unfit(_DRAWING["random"])
        if _is_scripts(vars(module)):
            self._visit_all(vars(module), sorted(names & vars(module).keys()), names, depth + 1)

    def _look_into_object(self, value: Any, names: frozenset[str], depth: int) -> None:
        """Only what code names: a trainer counts its steps, which is nobody's concern here. Of installed classes, whose
        code is not looked into, all tensors."""
        own, is_scripts = vars(value), _is_scripts(vars(sys.modules.get(type(value).__module__, sys)))
        names = self._reached(type(value), names | {"__call__"}, depth + 1)
        for key in [key for key, one in own.items() if key in names or (_is_tensor(one) and not is_scripts)]:
            if (id(value), key) not in self._seen:
                self._seen.add((id(value), key))
                self._visit(own, key, names, depth + 1)

    def _look_into_module(self, root: nn.Module, depth: int) -> None:
        for module in root.modules():
            if id(module) in self._seen and module is not root:
                continue
            self._seen.add(id(module))
            own = vars(module)
            if type(module).__name__ == "OptimizedModule":
                raise Unfit("the script compiles its model")
            if "distributed" in type(module).__module__:
                raise Unfit("its gradients are exchanged with other processes")
            self._hooks += [own[name] for name in _HOOKS if name in own]
            if any(own.get(name) for name in _HOOKS):
                raise Unfit("modules have hooks of the script's")
            for name in ("_parameters", "_buffers"):
                self._visit_all(own[name], own[name], frozenset(), depth + 1)
            for key, child in own["_modules"].items():
                _add(self._objects, own["_modules"], key, child)
            is_torchs = type(module).__module__.startswith("torch.")
            names = self._reached(type(module), frozenset({"forward"}), depth + 1)
            keys = [key for key in own if key in _CHANGED or not (is_torchs or key in _TORCHS)]
            self._visit_all(own, keys, names, depth + 1)

    def _reached(self, kind: type, names: frozenset[str], depth: int) -> frozenset[str]:
        """Names of methods and attributes, and those that the script's own methods of these names read in turn."""
        waiting, done = set(names), set[str]()
        while waiting:
            done.add(name := waiting.pop())
            for one in kind.__mro__:
                found = vars(one).get(name)
                function = getattr(found, "fget", None) or getattr(found, "__func__", found)
                if isinstance(function, FunctionType) and _is_scripts(function.__globals__):
                    self._look_into(function, depth)
                    waiting |= _names(function) - done
        return frozenset(done)


def _add(columns: tuple[list[Any], ...], *row: Any) -> None:
    for column, value in zip(columns, row, strict=True):
        column.append(value)


def _has(where: Any, key: Any) -> bool:
    return key in where if isinstance(where, dict) else key < len(where)


def _is_same(new: Any, old: Any) -> bool:
    return new is old or (isinstance(old, _PLAIN) and type(new) is type(old) and bool(new == old))


def _cells(function: Any) -> dict[str, Any]:
    """What a function's closure holds by now."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    found = {}
    for name, cell in zip(names, cells, strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            found[name] = cell.cell_contents
    return found


@functools.lru_cache(maxsize=1024)
def _read(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals and the attributes that code names."""
    names, attributes = set[str](), set[str]()
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL"):
            names.add(one.argval)
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR"):
            attributes.add(one.argval)
    for inner in (_read(one) for one in code.co_consts if isinstance(one, CodeType)):
        names, attributes = names | inner[0], attributes | inner[1]
    return frozenset(names), frozenset(attributes)


def _stored(code: CodeType) -> set[str]:
    return {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_ATTR"}


def _globals(function: Any) -> frozenset[str]:
    code = getattr(function, "__code__", None)
    return _read(code)[0] if code is not None else frozenset()


def _names(function: Any) -> frozenset[str]:
    """The attributes it names, of whatever object."""
    code = getattr(function, "__code__", None)
    return _read(code)[1] if code is not None else frozenset()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_scripts(names: Mapping[str, Any]) -> bool:
    """Whether these are the names of the script's own code: what is installed does the same in every step."""
    file = names.get("__file__")
    if names.get("__name__") == "__main__" or not isinstance(file, str):
        return names.get("__name__") == "__main__"
    parts = file.replace("\\", "/").split("/")
    return not {"site-packages", "dist-packages"} & set(parts) and not file.startswith(_STANDARD)


def address(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
