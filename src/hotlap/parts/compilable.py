"""Why a module had better not be compiled: what torch.compile would leave out, get wrong or refuse."""

from __future__ import annotations

from typing import Any

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_QUANTISED = ("torch.ao.nn.", "torch.nn.quantized", "torch.nn.qat", "torch.ao.quantization", "torch.nn.intrinsic")


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
