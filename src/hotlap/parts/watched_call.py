"""A module's call, made plainly and watched: what it gives, whether a graph could repeat it, and where its backward
comes from."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from hotlap.parts.compilable import interpreted
from hotlap.parts.listening import listening
from hotlap.parts.packed import Packed, form_of
from hotlap.parts.pass_look import host_generators, written


class Sighting:
    """One plain call. `wanted` fills up when its backward comes; `why` says what a graph could not repeat."""

    def __init__(self, outputs: Packed, why: str) -> None:
        self.form, self.why = form_of(outputs), why
        self._times: Counter[int] = Counter()
        self._is_double = False

    def listen(self, outputs: Packed) -> list[torch.Tensor]:
        """The outputs, heard. One may be made from another: what comes to each from outside is heard at a copy."""
        has_several = sum(t.requires_grad for t in outputs.tensors) > 1
        heard = [t.clone() if t.requires_grad and has_several else t for t in outputs.tensors]
        for number, tensor in enumerate(heard):
            if tensor.requires_grad:
                tensor.register_hook(functools.partial(self._note, number))
        return heard

    def _note(self, number: int, grad: torch.Tensor | None) -> None:
        self._is_double |= torch.is_grad_enabled()
        if grad is not None:
            self._times[number] += 1

    @property
    def wanted(self) -> frozenset[int]:
        """The outputs that gradients came to."""
        return frozenset(self._times)

    @property
    def unusual(self) -> str:
        if self._is_double:
            return "gradients of its gradients are asked for"
        return "its backward comes more than once" if any(times > 1 for times in self._times.values()) else ""


def watched(
    call: Callable[[], Any],
    given: Sequence[torch.Tensor],
    own: Sequence[torch.Tensor],
    device: torch.device,
    buffers: Sequence[torch.Tensor] = (),
    trains: bool = True,
) -> tuple[Any, Sighting]:
    """`own` is what the module keeps; of that, only `buffers` may be written to."""
    tracked = [t for t in given if not t.is_inference()]  # the others have no version
    versions, generators = [t._version for t in tracked], host_generators(device.type)
    reads = _reading(given, own, device, buffers)
    is_cast, dtype = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
    uncached = torch.autocast(device.type, dtype=dtype, enabled=is_cast, cache_enabled=False)
    with listening(device) as heard, uncached, interpreted(), reads:  # earlier casts would pass for somebody else's
        out = call()
    if reads.has_foreign:
        heard.append("it reads tensors that are neither given to it nor its own")
    if reads.has_brought:
        heard.append("it brings tensors from main memory")
    if reads.has_hidden:
        heard.append("it calls what cannot be looked into")
    if reads.has_changed:
        heard.append("it changes its parameters or what else it keeps")
    outputs = Packed(out)
    if [t._version for t in tracked] != versions or reads.has_written:
        heard.append("it changes its inputs in place")
    if host_generators(device.type) != generators:
        heard.append("it draws random numbers on the host")
    if not outputs.packing.is_plain:
        heard.append("it gives more than tensors and plain values")
    if trains and not any(t.requires_grad for t in outputs.tensors):
        heard.append("nothing that it gives carries gradients")
    if not trains and any(t.requires_grad for t in outputs.tensors):
        heard.append("what it gives carries gradients")
    if _share_memory(outputs.tensors, [*given, *own]):
        heard.append("what it gives shares memory with its inputs, its parameters or itself")
    sighting = Sighting(outputs, heard[0] if heard else "")
    return out if heard else outputs.packing.filled(sighting.listen(outputs)), sighting


def _reading(
    given: Sequence[torch.Tensor], own: Sequence[torch.Tensor], device: torch.device, buffers: Sequence[torch.Tensor]
) -> Any:
    """Notes whether an operation reads what was there before and is not known: a graph would read on at that place,
    whatever the script does with it. A number in main memory would even be read only once, and what is made there and
    copied without waiting is gone by the next replay."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Reading(TorchDispatchMode):
        has_foreign = has_changed = has_hidden = has_written = has_brought = False
        supports_higher_order_operators = True  # or torch would refuse to run them under it

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
            taken = set(map(_storage, tensors))
            is_constant = function is torch.ops.aten.lift_fresh.default  # made of numbers in the code
            self.has_foreign = self.has_foreign or not (is_constant or taken <= known)
            self.has_hidden = self.has_hidden or not hasattr(function, "overloadpacket")
            places = {_storage(t) for t in written(function, args, kwargs)}
            self.has_changed = self.has_changed or bool(places & kept)
            self.has_written = self.has_written or bool(places & inputs)
            out = function(*args, **(kwargs or {}))
            made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
            is_mixed = device.type != "cpu" and any(t.device == device for t in made)
            self.has_brought = self.has_brought or (is_mixed and any(t.is_cpu and t.dim() > 0 for t in tensors))
            known.update(map(_storage, made))
            return out

    known = {_storage(t) for t in (*given, *own) if t.device == device}
    kept = {_storage(t) for t in own} - {_storage(t) for t in buffers} - {0}
    inputs = {_storage(t) for t in given} - {0}
    mode: Any = Reading
    return mode()


def _storage(tensor: torch.Tensor) -> int:
    with contextlib.suppress(NotImplementedError, RuntimeError):  # sparse, or inside a transform
        return int(tensor.untyped_storage()._cdata)
    return 0


def _share_memory(outputs: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Parts of one tensor, as `chunk` gives them, are fine where no element is in two of them."""
    if any(t.layout is not torch.strided or type(t) is not torch.Tensor for t in outputs):
        return True
    taken = {t.untyped_storage().data_ptr() for t in others if t.numel()}
    groups: dict[int, list[torch.Tensor]] = {}
    for t in outputs:
        groups.setdefault(t.untyped_storage().data_ptr(), []).append(t)
    shared = [group for place, group in groups.items() if len(group) > 1 and place]
    return any(place in taken for place in groups if place) or any(map(_overlap, shared))


@torch.no_grad()
def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    if len({t.dtype for t in tensors}) > 1 or any(torch._debug_has_internal_overlap(t) == 1 for t in tensors):
        return True
    marks = torch.zeros(tensors[0].untyped_storage().nbytes() // tensors[0].element_size(), dtype=torch.int8)
    for t in tensors:
        marks.as_strided(t.shape, t.stride(), t.storage_offset()).add_(1)
    return bool((marks > 1).any())
