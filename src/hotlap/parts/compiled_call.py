"""A module's call, compiled. In modes with CUDA graphs only for the shapes it was first called with, and what comes out
is the caller's to keep.

    from hotlap.parts.compiled_call import CompiledCall

    call = CompiledCall(mode="reduce-overhead")
    output = call(model, (inputs,), {})  # instead of model(inputs)
"""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import Any

PLAIN = "default"
_COMPILER = ("torch._dynamo", "torch._inductor")


class CompiledCall:
    """`call(module, args, kwargs)` in place of `module(*args, **kwargs)`; one for each module. The module is handed in,
    not held: it may go, and what was compiled for it goes with this object."""

    def __init__(self, mode: str = PLAIN) -> None:
        import torch

        # Dynamo keeps what it compiles with the code object, and gives up after some variants: each gets its own.
        own = FunctionType(_call.__code__.replace(), _call.__globals__)
        compile = inspect.unwrap(torch.compile)  # the script is told when it compiles; this is not the script
        self._has_graphs = mode != PLAIN
        how = {"mode": mode, "dynamic": False} if self._has_graphs else {}
        self._run: Any = compile(own, **how)
        self._signature: Any = None
        self.has_run = False

    def __call__(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self._has_graphs:
            signature = _signature((args, kwargs))
            if self._signature is None:
                self._signature = signature
            if signature != self._signature:  # a smaller last batch: as it is, rather than recorded once more
                return module._call_impl(*args, **kwargs)
        out = self._run(module, args, kwargs)
        self.has_run = True
        return _copied(out) if self._has_graphs else out


def is_compilers(error: BaseException) -> bool:
    """Whether an error is the compiler's own, not the module's."""
    return type(error).__module__.startswith(_COMPILER)


def _call(module: Any, args: Any, kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


def _signature(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.requires_grad
    if isinstance(value, dict):
        return {key: _signature(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_signature(one) for one in value]
    return value if isinstance(value, (int, float, bool, str)) else type(value)


def _copied(out: Any) -> Any:
    """A graph writes its next output to the same place."""
    import torch

    if isinstance(out, torch.Tensor):
        return out.clone()
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, out)
