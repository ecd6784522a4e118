"""Copies to the device that are made before they are asked for, and handed out when `to` or `cuda` is called.

    from hotlap.parts.early_copies import copier_for, copy_early, is_plain, tensors_in

    copier = copier_for(torch.device("cuda", 0))
    copy_early([one for one in tensors_in(batch) if is_plain(one)], copier)  # in any thread
    x = batch["x"].to("cuda:0")  # the copy made above; the stream waits for it, the host does not

The tensors stay what they are. Until it is moved for the first time, a tensor that has been copied early carries its
copy in its own `__dict__`, so that both live and die together, and no method of torch's is replaced.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from hotlap.parts.cuda_copier import CudaCopier
from hotlap.parts.no_fork import no_fork

_THINGS = 4096  # looked at in one batch
_DEPTH = 2  # objects inside objects
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
_PRESERVED = (None, torch.preserve_format)


class Copier(Protocol):
    """How tensors get to one device."""

    device: torch.device
    room_bytes: int  # for all copies that wait to be handed out

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Begin the copies of one batch."""

    def hand_over(self, made: Any, blocking: bool) -> torch.Tensor:
        """A copy that was begun, for use on the thread that asks. Blocking: the tensor it came from may be written
        to as soon as this returns."""


def copier_for(device: torch.device) -> Copier | None:
    """The one that fits, or None where there is none for this kind of device."""
    return CudaCopier(device) if device.type == "cuda" else None


class Wish(NamedTuple):
    """What a call of `to` or `cuda` asks for, where that is a copy on a device and nothing else."""

    device: torch.device
    blocking: bool


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors of a batch, each once, always in the same order: through lists, tuples, dicts, and the attributes of
    objects of any class. None of their own code is run."""
    stack: list[tuple[Any, int]] = [(batch, _DEPTH)]
    seen, budget = set(), _THINGS
    while stack and budget:
        thing, depth = stack.pop()
        budget -= 1
        if isinstance(thing, _PLAIN) or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            yield thing
            continue
        if isinstance(thing, (list, tuple, deque)):
            inside, depth_inside = list(thing), depth
        elif isinstance(thing, dict):
            inside, depth_inside = list(dict.values(thing)), depth
        else:
            inside, depth_inside = _attributes(thing) if depth else [], depth - 1
        stack.extend((one, depth_inside) for one in reversed(inside))


def _attributes(thing: Any) -> list[Any]:
    held = getattr(thing, "__dict__", None)
    if isinstance(held, dict):
        return list(held.values())
    names = [field.name for field in dataclasses.fields(thing)] if dataclasses.is_dataclass(thing) else []
    return [getattr(thing, name, None) for name in names]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a copy of its values is all that moving it means."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not (tensor.requires_grad or tensor.is_conj() or tensor.is_neg())
        and not (tensor.is_quantized or tensor.is_inference())
    )


def copy_early(tensors: Sequence[torch.Tensor], copier: Copier, taken: Callable[[], object] = lambda: None) -> None:
    """Begin to copy these; each copy is handed out once, to the first call that asks for nothing more."""
    with no_fork:
        copies = copier.copy(tensors)
    for tensor, made in zip(tensors, copies, strict=True):
        Dress(tensor, _Early(made, copier, tensor._version, taken))


class _Early:
    __slots__ = ("_copier", "_made", "_taken", "_version")

    def __init__(self, made: Any, copier: Copier, version: int, taken: Callable[[], object]) -> None:
        self._made, self._copier, self._version, self._taken = made, copier, version, taken

    def __call__(self, tensor: torch.Tensor, wish: Wish) -> torch.Tensor | None:
        if wish.device != self._copier.device or tensor._version != self._version:
            return None
        self._taken()
        return self._copier.hand_over(self._made, wish.blocking)


class Dress:
    """Stands before a tensor's own `to` and `cuda` until one of them is called. `answer(tensor, wish)` gives what is
    returned then, or None for what torch would return. Pickles and copies of the tensor know nothing of it."""

    __slots__ = ("_alias", "_answer", "_tensor")

    def __init__(self, tensor: torch.Tensor, answer: Callable[[torch.Tensor, Wish], torch.Tensor | None]) -> None:
        self._answer, self._tensor = answer, weakref.ref(tensor)
        self._alias = tensor.detach()  # in `batch.pop("x").to(device)` the tensor is gone before it is moved
        own = {"to": self._to, "cuda": self._cuda, "__reduce_ex__": self._reduce, "__deepcopy__": self._deepcopy}
        vars(tensor).update(own)

    def _off(self) -> torch.Tensor:
        tensor = self._tensor()
        if tensor is None:
            return self._alias
        for name in ("to", "cuda", "__reduce_ex__", "__deepcopy__"):
            vars(tensor).pop(name, None)
        return tensor

    def taken(self, device: torch.device) -> torch.Tensor:
        """For whoever copies the tensor to a place of its own there: the early copy, or else the tensor itself."""
        tensor = self._off()
        found = self._answer(tensor, Wish(device, True))
        return tensor if found is None else found

    def _to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._moved("to", args, kwargs)

    def _cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self._moved("cuda", args, kwargs)

    def _moved(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        tensor = self._off()
        wish = wish_of(tensor, name, args, kwargs)
        found = None if wish is None else self._answer(tensor, wish)
        result: torch.Tensor = getattr(torch.Tensor, name)(tensor, *args, **kwargs) if found is None else found
        return result

    def _reduce(self, protocol: Any) -> Any:
        return self._off().__reduce_ex__(protocol)

    def _deepcopy(self, memo: Any) -> Any:
        return copy.deepcopy(self._off(), memo)


def dress_of(tensor: torch.Tensor) -> Dress | None:
    own = getattr(vars(tensor).get("to"), "__self__", None)
    return own if isinstance(own, Dress) else None


def wish_of(tensor: torch.Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Wish | None:
    """None where torch must do it: another dtype or layout, a gradient, a mode that watches every operation."""
    if tensor.requires_grad or torch._C._len_torch_dispatch_stack():
        return None
    try:
        if name == "cuda":
            device, blocking, layout = _cuda_arguments(*args, **kwargs)
            dtype = None
        else:
            known = {key: value for key, value in kwargs.items() if key != "copy"}  # another device: always a copy
            device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **known)
            blocking = not non_blocking
    except (TypeError, RuntimeError):  # torch will say what is wrong with it
        return None
    if device is None or device.type == "cpu" or dtype not in (None, tensor.dtype) or layout not in _PRESERVED:
        return None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Wish(device, blocking)


def _cuda_arguments(
    device: Any = None, non_blocking: bool = False, memory_format: Any = None
) -> tuple[torch.device, bool, Any]:
    wanted = torch.device("cuda") if device is None else device
    if not isinstance(wanted, torch.device):
        wanted = torch.device("cuda", wanted) if isinstance(wanted, int) else torch.device(wanted)
    return wanted, not non_blocking, memory_format
