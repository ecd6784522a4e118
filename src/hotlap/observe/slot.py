"""Torch's own slot for the compiled call of a module, as a place to stand round its calls: pickles, copies,
state_dict and hooks never see it, and `Module.__call__` stays as it is."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from hotlap.observe.patch import Patch


def fill_slot(patch: Patch, module: Any, through: Callable[..., Any]) -> None:
    """Calls of a module become `through(original, module, args, kwargs)`."""
    slot = _Slot(module, through)
    vars(module)["_compiled_call_impl"] = slot  # a compiled module would hand it on to what it wraps
    patch.on_undo(functools.partial(_empty_slot, weakref.ref(module), weakref.ref(slot)))  # both may be dropped


def is_drawn() -> bool:
    """Whether torch.jit or torch.export draws the script's model: what they make outlives the run, and must show the
    plain calls."""
    import torch

    return bool(torch._C._is_tracing() or torch.compiler.is_exporting())


def drawing(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.jit.script`, which reads every attribute of a module and knows no type for a slot, or `torch.jit.trace`,
    which holds what it drew against plain calls: there is no slot then."""

    @functools.wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        import torch

        given = next(iter((*args, *kwargs.values())), None)
        modules = list(given.modules()) if isinstance(given, torch.nn.Module) else []
        slots = [(vars(one), vars(one)["_compiled_call_impl"]) for one in modules if _has_slot(one)]
        for own, _ in slots:
            del own["_compiled_call_impl"]
        try:
            return original(*args, **kwargs)
        finally:
            for own, slot in slots:
                own["_compiled_call_impl"] = slot

    return draw


def _has_slot(module: Any) -> bool:
    return isinstance(vars(module).get("_compiled_call_impl"), _Slot)


def leave_slot(module: Any, through: Callable[..., Any]) -> None:
    """Before the end of its patch, where nobody else stands there since."""
    slot = vars(module).get("_compiled_call_impl")
    if isinstance(slot, _Slot) and slot._through is through:
        _empty_slot(weakref.ref(module), weakref.ref(slot))


def kept_with(module: Any) -> dict[Any, Any]:
    """What belongs to the calls of a module, to be filled. Unlike a weak dictionary's, it may refer to the module: both
    then go together."""
    slot = vars(module).get("_compiled_call_impl")
    return slot.kept if isinstance(slot, _Slot) else {}


class _Slot:
    """It holds its module weakly, and its copies and pickles are empty:
    a class that copies its `__dict__` by hand must not get the calls of another module."""

    __slots__ = ("__weakref__", "_original", "_root", "_through", "kept", "old")

    def __init__(self, root: Any, through: Callable[..., Any]) -> None:
        self.old = vars(root).get("_compiled_call_impl")
        self._root, self._through = weakref.ref(root), through
        self.kept: dict[Any, Any] = {}
        self._original = _plain_call if self.old is None else _compiled_call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_drawn():
            return self._original(self._root(), args, kwargs)
        return self._through(self._original, self._root(), args, kwargs)

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> Any:
        return type(None), ()


def _plain_call(root: Any, args: Any, kwargs: Any) -> Any:
    """One for all roots: a chain remembers its original, and must not keep a dropped model alive."""
    return root._call_impl(*args, **kwargs)


def _compiled_call(root: Any, args: Any, kwargs: Any) -> Any:
    return vars(root)["_compiled_call_impl"].old(*args, **kwargs)


def _empty_slot(reference: weakref.ref[Any], slot: weakref.ref[Any]) -> None:
    root, own = reference(), slot()
    if root is None or own is None or vars(root).get("_compiled_call_impl") is not own:
        return  # gone, or the script has compiled it since
    if own.old is None:
        vars(root).pop("_compiled_call_impl")
    else:
        vars(root)["_compiled_call_impl"] = own.old
