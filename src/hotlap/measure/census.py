"""What modules and optimizers are set to in a step: training flags, dropout rates, learning rates, weight decay.

Settings are found by what they are, not by the class that holds them, and compared only where both sides have them: a
technique may put another module or optimizer in the place of the script's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_WRAPPERS = ("_orig_mod", "module")  # what compiling and parallel training put into a path
_OF_MODULES = ("p", "dropout", "dropout_p", "momentum", "eps")
_HOW = frozenset({"foreach", "fused", "capturable", "differentiable", "params"})  # how an optimizer computes, not what
Census = dict[str, Any]


def modules(roots: Sequence[Any]) -> Census:
    """Keyed by where a module sits in its root."""
    found: Census = {}
    for number, root in enumerate(roots):
        for path, module in root.named_modules():
            name = ".".join([str(number), *(part for part in path.split(".") if part and part not in _WRAPPERS)])
            found[f"training of {name}"] = bool(module.training)
            for setting in _OF_MODULES:
                value = vars(module).get(setting)
                if isinstance(value, (int, float)):
                    found[f"{setting} of {name}"] = value
    return found


def optimizer(number: int, optimizer: Any) -> Census:
    """The values that occur in any of its groups: these may be split and merged."""
    found: dict[str, set[Any]] = {}
    for group in optimizer.param_groups:
        for setting, value in group.items():
            if setting not in _HOW and (known := _plain(value)) is not None:
                found.setdefault(f"{setting} of optimizer {number}", set()).add(known)
    return {name: [list(value) for value in sorted(values)] for name, values in found.items()}


def differences(ours: list[Census], theirs: list[Census]) -> tuple[int, list[str]]:
    """How many settings both sides have, and which are not the same in every step both saw. A census after the first
    holds only what changed."""
    known: list[Census] = [{}, {}]
    compared: set[str] = set()
    different: dict[str, str] = {}
    for step, changes in enumerate(zip(ours, theirs, strict=False), start=1):
        for side, change in zip(known, changes, strict=True):
            side.update(change)
        for name in known[0].keys() & known[1].keys():
            compared.add(name)
            if name not in different and not _same(known[0][name], known[1][name]):
                words = f"{_words(known[0][name])} -> {_words(known[1][name])}"
                different[name] = f"{name}: {words} at step {step}"
    return len(compared), list(different.values())


def _plain(value: Any) -> tuple[float, ...] | None:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.item() if value.numel() == 1 else None
    values = value if isinstance(value, (tuple, list)) else (value,)
    is_plain = values and all(isinstance(one, (int, float)) for one in values)
    return tuple(float(one) for one in values) if is_plain else None


def _same(one: Any, other: Any) -> bool:
    """A learning rate that sits in a tensor is rounded."""
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return math.isclose(one, other, rel_tol=1e-5)


def _words(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_words, value)) if value else "-"
    return str(value) if isinstance(value, bool) else f"{value:.3g}"
