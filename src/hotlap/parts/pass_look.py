"""One pass, watched operation by operation: what it reads, writes, draws and waits for on the way."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hotlap.parts.reach import Reach, address, is_weight

_READING = ("_local_scalar_dense", "is_nonzero", "equal", "item")


class Look(TorchDispatchMode):
    """`reason` says why what was seen cannot be recorded."""

    supports_higher_order_operators = True  # or torch would refuse to run them under it

    def __init__(self, device: str, inputs: Sequence[Any], grounds: Reach) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reason = ""
        self._device = device
        self._lasting = grounds.addresses()
        self._inputs = {address(one) for one in tensors(inputs)} - {0}
        self._known = self._lasting | self._inputs
        self._weights = {address(one) for one in grounds.tensors if is_weight(one)} - {0}
        self._grads = set(map(address, grounds.grads()))
        self._made: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or the compiler would be imported

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tensors((args, kwargs))
        out = function(*args, **(kwargs or {}))
        if not self.reason:
            changed = set(map(address, written(function, args, kwargs)))
            self._made |= changed & self._grads  # one that is added to, or set to zero, where it lies
            is_change = not (self._weights | self._inputs).isdisjoint(changed)
            self.reason = (
                "it changes its inputs or weights" if is_change else self._judged(function, args, given, tensors(out))
            )
        return out

    def _judged(self, function: Any, args: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> str:
        if not hasattr(function, "overloadpacket"):
            return f"it calls what cannot be looked into ({function})"
        name = function.overloadpacket.__name__
        is_sized_late = torch.Tag.dynamic_output_shape in function.tags and name != "index"
        if name in _READING or is_sized_late or _masks(name, args):
            return f"it waits for the device ({name})"
        for tensor in given:
            place = address(tensor)
            if place in self._lasting and tensor.is_cpu and tensor.dim() == 0 and self._device != "cpu":
                return f"it reads a number in main memory, which may change ({name})"
            is_number = tensor.is_cpu and tensor.dim() == 0 and place not in self._known
            if place and not is_number and place not in self._known and place not in self._made:
                return f"it reads a tensor that cannot be followed ({name})"
        for tensor in made:
            self._made.add(address(tensor))
            if tensor.device.type != self._device and tensor.dim() > 0:
                return f"it computes on the {tensor.device.type} ({name})"
        if torch.Tag.nondeterministic_seeded in function.tags and any(t.device.type != self._device for t in made):
            return f"it draws random numbers on the host ({name})"
        return ""


def _masks(name: str, args: Any) -> bool:
    """An index by a mask waits for its size; torch marks every index as if it did."""
    is_index = name in ("index", "index_put", "index_put_", "_index_put_impl_")
    return is_index and any(one.dtype in (torch.bool, torch.uint8) for one in tensors(args[1]))


def written(function: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """What an operation writes to; no version tells of it where that was reached by `data`, nor of the statistics of a
    batch norm, which its schema does not name either."""
    schema = getattr(function, "_schema", None)  # of operations that are made of others there is none
    is_norm = schema is not None and "batch_norm" in schema.name
    if schema is None or not (schema.is_mutable or is_norm):
        return []
    by_position = {one.name: value for one, value in zip(schema.arguments, args, strict=False)}
    given = {**by_position, **(kwargs or {})}
    changed = {one.name for one in schema.arguments if one.is_write}
    changed |= {"running_mean", "running_var"} if is_norm and given.get("training") else set()
    return tensors([value for name, value in given.items() if name in changed])


def tensors(values: Any) -> list[torch.Tensor]:
    """All there are in it; most often there is nothing else, and every step asks."""
    if type(values) in (tuple, list) and all(isinstance(one, torch.Tensor) for one in values):
        return list(values)
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def host_generators(device: str) -> tuple[Any, ...]:
    """The states of the generators on the host that everybody shares, and that no recording continues."""
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else ()
    plain = tuple(one.tobytes() if hasattr(one, "tobytes") else one for one in drawn)
    return torch.get_rng_state().numpy().tobytes() if device != "cpu" else b"", random.getstate(), plain


@contextmanager
def noting_backward(note: Callable[[Any], None]) -> Iterator[None]:
    """Tells from what a pass goes back, before it does; `Tensor.backward` looks the function up at each call."""
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        note(tensors)
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original
