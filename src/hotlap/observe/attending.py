"""Whether a model may hold attention that is written by hand: what its code names, which is quick to ask and seldom
wrong. What is really there only a traced graph tells."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from hotlap.parts.code_names import globals_of, names_of

_DEPTH = 3  # of functions that call each other


def may_attend(root: Any) -> bool:
    from torch import nn

    kinds = {type(module) for module in root.modules()}
    if nn.Softmax in kinds or any(_names_softmax(kind) for kind in kinds):
        return True
    return any(isinstance(part, nn.MultiheadAttention) and not _is_torchs(type(owner)) for owner, part in _parts(root))


def _parts(root: Any) -> Iterator[tuple[Any, Any]]:
    """Torch's own layers tell their attention that nobody wants its weights."""
    for owner in root.modules():
        yield from ((owner, part) for part in owner.children())


def _names_softmax(kind: type) -> bool:
    for one in kind.__mro__:
        if not _is_torchs(one) and any(_leads_there(method, _DEPTH) for method in vars(one).values()):
            return True
    return False


def _leads_there(function: Any, depth: int) -> bool:
    if not isinstance(function, FunctionType) or _is_torchs(function):
        return False
    names = globals_of(function)
    if "softmax" in names | names_of(function):
        return True
    called = (function.__globals__.get(name) for name in names)
    return depth > 1 and any(_leads_there(one, depth - 1) for one in called)


def _is_torchs(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] in ("torch", "builtins")
