"""A tensor that lies on the device already and stands where a script expects one in main memory.

Moving it to that device hands over what lies there, without a copy. Whatever else is done with it, it is brought to
main memory first and then is a plain tensor for good: so nothing a script does can go wrong, only be slower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from hotlap.parts.early_copies import dress_of

_MOVES = (torch.Tensor.to, torch.Tensor.cuda)
_METHODS = ("size", "dim", "numel", "__len__", "stride", "element_size")
_METHODS += ("is_floating_point", "is_contiguous", "is_inference")
_NAMES = ["shape", "dtype", "device", "ndim", "layout", "nbytes", "itemsize", "requires_grad", "grad_fn"]
_NAMES += ["is_cuda", "is_meta", "is_sparse", "is_leaf", "is_quantized", "_version"]
_ASKED = {getattr(torch.Tensor, name) for name in _METHODS} | {getattr(torch.Tensor, name).__get__ for name in _NAMES}


class Waiting(torch.Tensor):
    """`made` on a device. `taken()` gives it for use on the thread that asks, and another like it whenever it is called
    again; `moved(device)` hears where the script wanted it."""

    _taken: Callable[[], torch.Tensor] | None
    _moved: Callable[[torch.device], object]
    _host: torch.Tensor | None

    @staticmethod
    def __new__(
        cls: Any, made: torch.Tensor, taken: Callable[[], torch.Tensor], moved: Callable[[torch.device], object]
    ) -> Waiting:
        waiting: Any = torch.Tensor._make_wrapper_subclass(
            cls, made.shape, strides=made.stride(), dtype=made.dtype, device=torch.device("cpu")
        )
        waiting._taken, waiting._moved, waiting._host = taken, moved, None
        return waiting  # type: ignore[no-any-return]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func in _ASKED and type(first) is Waiting and first._host is None:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func in _MOVES and type(first) is Waiting:
            return first._go(func, args[1:], kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*tree_map(_plain, args), **tree_map(_plain, kwargs))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What reached it past the method above, as from C++."""
        return func(*tree_map(_plain, args), **tree_map(_plain, kwargs or {}))

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        """As every batch is moved: straight, since the way through the method above takes longer than a small step."""
        return self._go(torch.Tensor.to, args, kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        return self._go(torch.Tensor.cuda, args, kwargs)

    def _go(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        device = _target(func, args, kwargs)
        if device is not None and device.type != "cpu":
            self._moved(device)
            if self._taken is not None:
                result: torch.Tensor = func(self._taken(), *args, **kwargs)
                return result
        with torch._C.DisableTorchFunctionSubclass():
            moved: torch.Tensor = func(_plain(self), *tree_map(_plain, args), **kwargs)
            return moved


def lying_on(device: torch.device, tensor: torch.Tensor) -> torch.Tensor:
    """What lies there already in place of a tensor in main memory, for whoever copies it to a place of its own; the
    tensor itself where nothing does."""
    if type(tensor) is not Waiting:
        dress = dress_of(tensor)
        return tensor if dress is None else dress.taken(device)
    tensor._moved(device)
    host: torch.Tensor = _plain(tensor) if tensor._taken is None else tensor._taken()
    return host


def _plain(value: Any) -> Any:
    """A tensor in main memory, which from now on is what counts: others may have been let look into it."""
    if type(value) is not Waiting:
        return value
    if value._taken is not None:
        value._host, value._taken = value._taken().cpu(), None
    return value._host


def _target(func: Any, args: Any, kwargs: Any) -> torch.device | None:
    """Where it is to go; None where nothing is said of a device, or torch will say what is wrong."""
    if func is torch.Tensor.cuda:
        wanted = args[0] if args else kwargs.get("device")
        try:
            return torch.device("cuda" if wanted is None else wanted)
        except (TypeError, RuntimeError):
            return None
    if args and isinstance(args[0], torch.device):
        return args[0]
    if args and isinstance(args[0], torch.Tensor):
        return args[0].device
    try:
        known = {key: value for key, value in kwargs.items() if key not in ("copy", "memory_format")}
        device: torch.device | None = torch._C._nn._parse_to(*args, **known)[0]
    except (TypeError, RuntimeError):
        return None
    return device
