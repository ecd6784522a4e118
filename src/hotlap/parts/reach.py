"""Everything that code can reach: weights, buffers, settings, globals, closures. A recording is good as long as all of
them are what and where they were."""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from hotlap.parts.code_names import Closure, globals_of, is_scripts, names_of
from hotlap.parts.compilable import HOOKS, is_compiled_function
from hotlap.parts.held import PLAIN, Parts, Slots
from hotlap.parts.reach_inventory import Inventory, hooks_on

TORCHS = {*vars(nn.Module()), "_compiled_call_impl", "_is_full_backward_hook"} - {"training"}  # of every module
_MOST_ITEMS = 64
_DEPTH = 8
_ROUNDS = 4
_ARRAY_BYTES = 1 << 16  # of an array that is compared in each step
_COMPILED = "it calls what is compiled by itself"
_DRAWS = "it draws random numbers on the host"
# A recording would not say, draw, read or wait again. By the name of the module, or of what is called.
_ONCE = {"print": "it prints", "input": "it asks", "open": "it opens files", "synchronize": "it waits for the device"}
_DRAWING = {"random": _DRAWS, "time": "it reads the clock", "datetime": "it reads the clock"}
_RATES = {torch.optim.Optimizer: {"param_groups"}, LRScheduler: {"get_last_lr", "get_lr"}}

_ASKED = {"__call__", "__getattr__", "__getitem__", "__contains__", "__iter__", "__len__"}  # without a name in code


class Unfit(Exception):
    """Why something cannot be recorded."""


class Reach:
    """`is_as_it_was()` says whether everything is; `why` names what is not."""

    refuses_words: ClassVar[bool] = True  # code that names what is done only once; else somebody watches what it does

    def __init__(self, walk: Callable[[], None]) -> None:
        """`walk` visits all there is, from where it begins. It does so again as long as it meets code that names what
        was passed by before: an object may be given to a function that looks into it."""
        self._named: frozenset[str] = frozenset()
        try:
            for _ in range(_ROUNDS):
                known = self._named
                self._begin()
                walk()
                if self._named == known:
                    break
        except Unfit:
            raise
        except Exception as error:  # objects that do not like to be looked at
            raise Unfit(f"what it rests on cannot be looked through ({type(error).__name__}: {error})") from error
        self.gone = self._found.closed()

    def _begin(self) -> None:
        self._found = Inventory()
        self.updated: list[torch.Tensor] = []  # by optimizers, which clear their gradients as well
        self._seen: set[Any] = set()

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self._found.tensors

    @property
    def why(self) -> str:
        return self._found.why

    def is_as_it_was(self) -> bool:
        return self._found.is_as_it_was()

    def addresses(self) -> set[int]:
        """Where all tensors lie that it knows."""
        return {address(tensor) for tensor in self.tensors}

    def _visit_all(self, where: Any, keys: Any, names: frozenset[str], depth: int) -> None:
        for key in list(keys):
            self._visit(where, key, names, depth)

    def _visit(self, where: Any, key: Any, names: frozenset[str], depth: int) -> None:
        """Takes down what stands under a key, and what can be reached from there by the names that code uses."""
        value = where[key]
        if isinstance(value, PLAIN):
            self._found.value(where, key, value)
            return
        if isinstance(value, torch.Tensor):
            self._found.object(where, key, value)
            self._found.tensors.append(value)
            if value.grad_fn is not None:
                raise Unfit("it reads or keeps what was made of weights")
            if any(hooks_on(value)):
                raise Unfit("a weight has hooks of the script's")
            if value.layout is not torch.strided:
                raise Unfit("it reads sparse tensors")
            return
        if is_compiled_function(value):
            raise Unfit(_COMPILED)
        self._found.object(where, key, value)
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
        elif isinstance(value, FunctionType):
            self._look_into(value, depth + 1)
        elif isinstance(value, MethodType):
            self._visit_all(Parts(value), ("__func__", "__self__"), names | {value.__name__}, depth + 1)
        elif isinstance(value, functools.partial):
            self._visit_all(Parts(value), ("func", "args", "keywords"), names | names_of(value.func), depth + 1)
        elif isinstance(value, list | tuple | dict):
            self._found.length(value)
            if len(value) <= _MOST_ITEMS and is_new:
                self._visit_all(value, value if isinstance(value, dict) else range(len(value)), names, depth + 1)
            elif is_new:
                self._found.contents.add(value)
        elif isinstance(value, set | deque):
            self._found.contents.add(value)
        elif isinstance(value, ContextVar):
            raise Unfit("it reads what each context has of its own")
        elif isinstance(value, Iterator):
            raise Unfit("it may draw from an iterator, which a replay would not")
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            if value.nbytes <= _ARRAY_BYTES and not value.dtype.hasobject:
                self._found.contents.add_array(value)
        elif isinstance(value, type):
            self._reached(value, names | {"forward", "backward"}, depth + 1)  # of a function with its own gradient
        elif isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random"):
            raise Unfit(_DRAWS)
        elif any(isinstance(value, kind) and names & reads for kind, reads in _RATES.items()):
            raise Unfit("it reads its learning rate, or what else an optimizer has")
        elif isinstance(value, torch.optim.Optimizer):
            self._look_into_optimizer(value)
        elif hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            self._look_into_object(value, names, depth)

    def _look_into_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for listed in (optimizer.param_groups, *(group["params"] for group in optimizer.param_groups)):
            self._found.length(listed)
        self.updated += [p for group in optimizer.param_groups for p in group["params"]]

    def _look_into(self, function: Any, depth: int) -> None:
        """What a function of the script's own reads: globals, closures, and what it calls on them."""
        function = getattr(function, "__func__", function)
        code = getattr(function, "__code__", None)
        if code is None or code in self._seen or depth > _DEPTH or not is_scripts(function.__globals__):
            return
        self._seen.add(code)
        names, own = names_of(function), function.__globals__
        read = globals_of(function)
        for name, reason in _ONCE.items() if self.refuses_words else ():
            if name in names or (name in read and name not in own):
                raise Unfit(reason)
        if names & {"environ", "getenv"}:
            raise Unfit("it reads the environment")
        if depth:
            self._named |= names
            closure = Closure(function)
            self._visit_all(closure, closure.now(), names, depth)
        self._visit_all(own, sorted(read & own.keys()), names, depth)

    def _look_into_import(self, module: ModuleType, names: frozenset[str], depth: int) -> None:
        root = module.__name__.partition(".")[0]
        if self.refuses_words and root in _DRAWING:
            raise Unfit(_DRAWING[root])
        is_drawing = "random" in names or module.__name__.startswith("numpy.random")
        if self.refuses_words and root == "numpy" and is_drawing:
            raise Unfit(_DRAWS)
        if is_scripts(vars(module)):
            self._visit_all(vars(module), sorted(names & vars(module).keys()), names, depth + 1)

    def _look_into_object(self, value: Any, names: frozenset[str], depth: int) -> None:
        """Only what code names: a trainer counts its steps, which is nobody's concern here. Of installed classes, whose
        code is not looked into, all tensors."""
        own, is_own = getattr(value, "__dict__", {}), _is_of_script(type(value))
        names = self._reached(type(value), names | _ASKED, depth + 1, own)
        is_all = isinstance(value, Mapping | Sequence)  # that wraps another one, in an attribute that no code names
        named = names | self._named
        keys = [(own, k) for k, one in own.items() if is_all or k in named or (_is_tensor(one) and not is_own)]
        slots = Slots(value) if is_own else None
        keys += [(slots, key) for key in sorted(named & slots.names) if hasattr(value, key)] if slots else []
        for where, key in keys:
            if (id(value), key) not in self._seen:
                self._seen.add((id(value), key))
                self._visit(where, key, names, depth + 1)

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
            if len(getattr(module, "device_ids", None) or ()) > 1:
                raise Unfit("its calls are spread over several devices")
            self._found.hooks += [own[name] for name in HOOKS if name in own]
            if any(own.get(name) for name in HOOKS):
                raise Unfit("modules have hooks of the script's")
            for name in ("_parameters", "_buffers"):
                self._visit_all(own[name], own[name], frozenset(), depth + 1)
            for held in filter(None, (own["_parameters"], own["_buffers"], own["_modules"])):
                self._found.length(held)
            if "forward" not in own:
                self._found.absent(own, "forward")
            for key, child in own["_modules"].items():
                self._found.object(own["_modules"], key, child)
            is_torchs = type(module).__module__.startswith("torch.")
            names = self._reached(type(module), frozenset({"forward"}), depth + 1, own)
            keys = [k for k, one in own.items() if k not in TORCHS and (isinstance(one, PLAIN) or not is_torchs)]
            self._visit_all(own, keys, names, depth + 1)

    def _reached(self, kind: type, names: frozenset[str], depth: int, own: Any = ()) -> frozenset[str]:
        """Names of methods and attributes, and those that the script's own methods of these names read in turn. What a
        class says for all of them may be said anew, there or by one of them, which has `own`."""
        waiting, done = set(names), set[str]()
        while waiting:
            done.add(name := waiting.pop())
            for one in [one for one in kind.__mro__ if name in vars(one)]:
                function = _function_of(vars(one)[name])
                if is_compiled_function(function):
                    raise Unfit(_COMPILED)
                if isinstance(function, FunctionType) and is_scripts(function.__globals__):
                    self._look_into(function, depth)
                    waiting |= names_of(function) - done
                else:
                    self._visit_in_class(one, name, own, frozenset(done | waiting), depth)
        for name in sorted(self._named - done):  # whether a method of that name is called, nobody knows
            for one in [one for one in kind.__mro__ if name in vars(one)]:
                self._visit_in_class(one, name, own, names, depth)
        return frozenset(done)

    def _visit_in_class(self, kind: type, name: str, own: Any, names: frozenset[str], depth: int) -> None:
        """What all objects of a class share, and may change: no methods, and nothing of Python's own."""
        found = vars(kind)[name]
        is_code = hasattr(type(found), "__get__") or isinstance(found, type)
        is_kept = not (is_code or name.startswith("__")) and _is_of_script(kind)
        if name not in own and (isinstance(found, PLAIN) or is_kept):
            self._visit(vars(kind), name, names, depth)
            self._found.absent(own, name)


def _is_of_script(kind: type) -> bool:
    return is_scripts(vars(sys.modules.get(kind.__module__, sys)))


def _function_of(found: Any) -> Any:
    return getattr(found, "fget", None) or getattr(found, "__func__", found)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def address(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def is_weight(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or isinstance(tensor, nn.Parameter)
