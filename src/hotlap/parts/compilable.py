"""Why a module had better not be compiled: what torch.compile would leave out, get wrong or refuse. And what the script
compiles itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_QUANTISED = ("torch.ao.nn.", "torch.nn.quantized", "torch.nn.qat", "torch.ao.quantization", "torch.nn.intrinsic")

_interpreting = 0


def why_not_compiled(root: Any) -> str | None:
    """In a few words, or None. A float64 model is compiled like any other: its kernels are as exact."""
    for name, module in root.named_modules():
        why = _why_not(module)
        if why:
            return f"{name or type(root).__name__} {why}"
    for name, parameter in root.named_parameters():
        if parameter.is_complex():
            return f"{name} is complex, which compiled kernels are not made for"
    return None


def is_compiled_function(value: Any) -> bool:
    """By the script; or by torch at each call, as flexible attention is."""
    own = getattr(value, "__dict__", {})
    is_flexible = getattr(value, "__module__", "") == "torch.nn.attention.flex_attention"
    is_compiled = "_torchdynamo_orig_callable" in own and not own.get("_torchdynamo_disable")
    return is_compiled or (is_flexible and callable(value))


@contextmanager
def interpreted() -> Iterator[None]:
    """Compiled code runs as it is written: the compiler fails where every operation is watched, and for good."""
    global _interpreting
    stance: AbstractContextManager[Any] = nullcontext()
    if "torch._dynamo" in sys.modules:
        import torch

        stance = torch.compiler.set_stance("force_eager")
    _interpreting += 1
    try:
        with stance:
            yield
    finally:
        _interpreting -= 1


def is_interpreted() -> bool:
    """Whether somebody wants to see what is not compiled."""
    return bool(_interpreting)


def graphs_made() -> int:
    """How often torch's compiler has made something in this process."""
    if "torch._dynamo" not in sys.modules:
        return 0
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _why_not(module: Any) -> str | None:
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return "is a scripted module"
    if any(_is_scripts(hook) for name in HOOKS for hook in (vars(module).get(name) or {}).values()):
        return "has hooks of the script's, which a compiled call may skip"
    if type(module).__module__.startswith(_QUANTISED):
        return "is quantised"
    if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
        return "has sparse gradients, which compiled code does not make"
    return None


def _is_scripts(hook: Any) -> bool:
    """Torch's own, such as weight norm's, are traced like everything else."""
    return not str(getattr(hook, "__module__", "")).startswith("torch.")
