"""What stands in for a function of torch's while a joint is attached to it: the original, with the joint round it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container
from typing import Any

from hotlap.observe.joint import Around, Notice

_under_construction: set[int] = set()


def passing(original: Any, through: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return through(original, *args, **kwargs)

    return function


def asking(original: Any, through: Callable[..., Any]) -> Any:
    """For `torch.autograd.grad`, whose inputs may come from a generator, which can be read only once."""
    import torch
    from torch.autograd.graph import GradientEdge

    @functools.wraps(original)
    def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        is_one = isinstance(inputs, GradientEdge) or torch.overrides.is_tensor_like(inputs)
        return through(original, outputs, (inputs,) if is_one else tuple(inputs), *args, **kwargs)

    return grad


def named(name: str, original: Any, through: Callable[..., Any]) -> Any:
    """For a joint that many functions share: it is told which."""

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return through(call, name, *args, **kwargs)

    return method


def method_of(found: Container[Any], original: Any, through: Callable[..., Any]) -> Any:
    """A method of a class some of whose instances were found to be roots; the others keep theirs."""

    def call(root: Any, args: Any, kwargs: Any) -> Any:
        return original(root, *args, **kwargs)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return through(call, self, args, kwargs) if self in found else original(self, *args, **kwargs)

    method.__hotlap__ = True  # type: ignore[attr-defined]
    return method


def building(original: Any, through: Callable[..., Any]) -> Any:
    """An __init__ whose arguments pass through a joint, bound to their names. A base class's __init__, called by an
    __init__ that already passed, is left alone."""
    signature = inspect.signature(original)

    def build(owner: Any, bound: inspect.BoundArguments) -> None:
        original(*bound.args, **bound.kwargs)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if id(self) in _under_construction:
            original(self, *args, **kwargs)
            return
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError:
            original(self, *args, **kwargs)  # raises the script's own error
            return
        bound.apply_defaults()
        _under_construction.add(id(self))
        try:
            through(build, self, bound)
        finally:
            _under_construction.discard(id(self))

    return __init__


def stepping(original: Any, joint: Around) -> Any:
    import torch

    is_hooked = getattr(original, "hooked", False)
    update, through = original.__wrapped__ if is_hooked else original, joint.through

    @functools.wraps(update)
    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the script compiles its update: nothing of ours is to be traced
            return update(optimizer, *args, **kwargs)
        return through(update, optimizer, *args, **kwargs)

    step: Any = torch.optim.Optimizer.profile_hook_step(call) if is_hooked else call
    if is_hooked:
        step.hooked = True  # torch's own mark, without which it would wrap once more
    step.__hotlap__ = True
    return step


def telling(original: Any, notice: Callable[[], object]) -> Any:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        notice()
        return original(*args, **kwargs)

    return function


def compiling(original: Any, notice: Notice, take: Callable[[Any], None]) -> Any:
    """The notice comes first, so that nothing of ours is traced; then what was compiled is taken as a root."""

    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        notice()
        compiled = original(*args, **kwargs)
        take(args[0] if compiled is None and args else compiled)
        return compiled

    return compile


def masking(original: Any, waiting: Any) -> Any:
    import torch

    def is_mask(index: Any) -> bool:
        return isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)

    @functools.wraps(original)
    def method(tensor: Any, index: Any, *value: Any) -> Any:
        if tensor.is_cuda and (is_mask(index) or (type(index) is tuple and any(map(is_mask, index)))):
            return waiting(tensor, index, *value)
        return original(tensor, index, *value)

    return method
