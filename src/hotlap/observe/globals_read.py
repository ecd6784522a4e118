"""The globals that the script's own code reads to make a sample: in `__getitem__`, in the methods and functions that it
calls, and in those of the data sets and transforms inside."""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from hotlap.parts.code_names import globals_of, is_scripts, names_of

_BEGIN = ("__getitem__", "__getitems__", "__call__", "forward")
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType)
_SIMPLE = (int, float, complex, str, bytes, list, dict, tuple, set, frozenset, type(None))
_SETTINGS = (argparse.Namespace, types.SimpleNamespace)
_DEPTH, _ITEMS, _FUNCTIONS = 3, 8, 64


def globals_read(dataset: Any) -> list[Any]:
    """Values, and objects of the script's own; where it reads the environment, all of that."""
    kinds = list(dict.fromkeys(type(one) for one in _objects(dataset, _DEPTH)))
    waiting = [_member(kind, name) for kind in kinds for name in _BEGIN]
    found: list[Any] = []
    seen: set[Any] = set()
    while waiting and len(seen) < _FUNCTIONS:
        function = waiting.pop()
        if not isinstance(function, types.FunctionType) or function in seen or not is_scripts(function.__globals__):
            continue
        seen.add(function)
        names, attributes = sorted(globals_of(function)), sorted(names_of(function))
        if {"environ", "getenv"} & {*names, *attributes}:
            found.append(hash(frozenset(os.environ.items())))
        read = [function.__globals__[name] for name in names if name in function.__globals__]
        inside = [vars(one)[name] for one in read if _has_names(one) for name in attributes if name in vars(one)]
        found += [one for one in read + inside if _is_told(one)]
        waiting += read + inside + [_member(kind, name) for kind in kinds for name in attributes]
    return found


def _objects(value: Any, depth: int) -> Iterator[Any]:
    """A data set and what it is made of."""
    yield value
    if not depth:
        return
    for held in list(getattr(value, "__dict__", {}).values()):
        for one in held[:_ITEMS] if type(held) in (list, tuple) else (held,):
            if hasattr(one, "__dict__") and not isinstance(one, _OPAQUE):
                yield from _objects(one, depth - 1)


def _member(kind: type, name: str) -> Any:
    """The function behind a method or property."""
    member = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def _has_names(value: Any) -> bool:
    """A class or module of the script's own, whose attributes are as good as globals."""
    if isinstance(value, type):
        return is_scripts(vars(sys.modules.get(value.__module__, types)))
    return isinstance(value, types.ModuleType) and is_scripts(vars(value))


def _is_told(value: Any) -> bool:
    """Not what libraries keep, such as a logger: that changes by being used."""
    if isinstance(value, (*_SIMPLE, *_SETTINGS)) or hasattr(value, "__array__"):
        return True
    return not isinstance(value, _OPAQUE) and _has_names(type(value))
