"""What torch finds out about Triton kernels in a graph that it compiles, found out once for all calls that are alike.

For each call it makes the kernel's intermediate code anew, several times over, and looks at what that writes to: with
batch norms of ours that was 5 of the 12 s in which one core traces a ResNet-50, before anything is compiled."""

from __future__ import annotations

import contextlib
import copy
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch

_MODULE = "torch._higher_order_ops.triton_kernel_wrap"
NAMES = ("identify_accessed_tensors", "identify_mutated_tensors")  # the newer one, and the older
_PLAIN = (int, float, bool, str, type(None), torch.dtype)


@contextlib.contextmanager
def analysed_once() -> Iterator[None]:
    """While a graph is compiled. Where torch has no such function there is nothing to save."""
    try:
        module = importlib.import_module(_MODULE)
    except ImportError:
        yield
        return
    with contextlib.ExitStack() as stack:
        for name in NAMES:
            plain = getattr(module, name, None)
            if plain is not None:
                setattr(module, name, _remembering(plain))
                stack.callback(setattr, module, name, plain)
        yield


def _remembering(plain: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[Any, Any] = {}

    def found(kernel: Any, arguments: dict[str, Any], *more: Any, **others: Any) -> Any:
        key = None if any(more) or others else _key(kernel, arguments)
        if key is None:
            return plain(kernel, arguments, *more, **others)
        if key not in known:
            known[key] = kernel, plain(kernel, arguments, *more)  # the kernel stays, and with it its number
        return copy.deepcopy(known[key][1])

    return found


def _key(kernel: Any, arguments: dict[str, Any]) -> Any:
    """None where something is given of which we do not know what counts."""
    kinds = tuple((name, _kind(value)) for name, value in arguments.items())
    return None if any(kind is None for _, kind in kinds) else (id(kernel), kinds)


def _kind(value: Any) -> Any:
    """Of tensors, of torch's own or as the compiler has them, only the type of numbers counts."""
    if type(value) in _PLAIN:
        return type(value), value
    if isinstance(value, sympy.Integer):  # as the compiler has them
        return "integer", int(value)
    if isinstance(value, torch.Tensor):
        return "tensor", type(value), value.dtype
    if hasattr(value, "get_dtype"):
        return "tensor", type(value), value.get_dtype()
    return None
