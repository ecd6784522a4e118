"""A recorder as blind as a graph, without a device. What is recorded becomes a tape of operations with every number and
every address in it; a replay runs the tape, and nothing of what Python did. So whatever a recording rests on and nobody
looked at shows in the results, to the bit."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hotlap.parts.pass_look import written

_WAITS = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select")


class Tape(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, tapes: Any) -> None:
        super().__init__()
        self._done: list[tuple[Any, Any, Any, Any]] = []
        self._made: set[int] = set()
        self._tapes = tapes  # of one recorder, whose memory is one
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.overloadpacket.__name__
        if name in _WAITS:
            raise RuntimeError(f"operation not permitted when stream is capturing ({name})")
        outside = {_place(one) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        if name == "lift_fresh":  # made of numbers in the code
            self._made |= outside
        for tensor in [*written(function, args, kwargs), *(tree_leaves(args) if "batch_norm" in name else ())]:
            self._keep(tensor)
        given = tree_map(self._noted, (args, kwargs or {}))
        out = function(*args, **(kwargs or {}))
        self._made |= {_place(one) for one in tree_leaves(out) if isinstance(one, torch.Tensor)} - outside
        self._done.append((function, *given, tree_map(self._noted, out)))
        return out

    def _noted(self, value: Any) -> Any:
        """Memory of the tape's own, or an address outside, which nobody keeps for it."""
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach() if self._owns(value) or value.dim() == 0 else _Outside(value)

    def _owns(self, tensor: torch.Tensor) -> bool:
        return _place(tensor) in self._made

    def _keep(self, tensor: Any) -> None:
        """The values of what was there before, since nothing is carried out by recording it."""
        if isinstance(tensor, torch.Tensor) and not self._owns(tensor):
            self._before.setdefault(_place(tensor), (tensor.detach(), tensor.detach().clone()))

    @torch.no_grad()
    def undo(self) -> None:
        for tensor, value in self._before.values():
            tensor.copy_(value)
        self._before.clear()

    @torch.no_grad()
    def play(self) -> None:
        for function, *given, out in self._done:
            args, kwargs = tree_map(_found, given)
            again = function(*args, **kwargs)
            for place, new in zip(tree_leaves(tree_map(_found, out)), tree_leaves(again), strict=True):
                if isinstance(new, torch.Tensor) and _place(place) != _place(new):
                    place.copy_(new)


class _Outside:
    """By its address, as a graph has it: whatever lies there when it is asked for."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage, self._address = StorageWeakRef(tensor.untyped_storage()), tensor.data_ptr()
        self._like = tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def __call__(self) -> torch.Tensor:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
        dtype, offset, shape, strides = self._like
        if storage is not None:
            return torch.empty(0, dtype=dtype).set_(storage, offset, shape, strides)
        size = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        memory = (ctypes.c_byte * (size * dtype.itemsize)).from_address(self._address)
        return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)


def _found(value: Any) -> Any:
    return value() if isinstance(value, _Outside) else value


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class TapedRecorder:
    device, number = "cpu", None

    def __init__(self) -> None:
        self.flags: dict[str, object] = {}
        self.is_busy, self.recorded, self.played = False, 0, 0
        self._tapes: weakref.WeakSet[Tape] = weakref.WeakSet()

    def scalar(self, value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
        return value.detach().clone() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)

    def aside(self, device: torch.device) -> Any:
        return nullcontext()

    def moment(self) -> None:
        return None

    def record(self, update: Callable[[], object], device: torch.device) -> Callable[[], object]:
        tape, random = Tape(self._tapes), torch.get_rng_state()
        self.is_busy = True
        try:
            with tape:
                update()
        finally:
            self.is_busy = False
            tape.undo()
            torch.set_rng_state(random)
        self.recorded += 1
        self._tapes.add(tape)

        def play() -> None:
            self.played += 1
            tape.play()

        return play
