"""The blocks a network is made of: parts of one class, built alike and called one after the other."""

from __future__ import annotations

from typing import Any

LEAST = 3  # built alike: fewer are no repetition worth using


def repeated_blocks(root: Any) -> list[list[Any]]:
    """All parts of the class that holds most of the parameters and repeats itself, grouped by how they are built; none
    where no class does."""
    import torch
    from torch import nn

    by_class: dict[type, list[Any]] = {}
    for module in root.modules():
        is_called = not isinstance(module, (nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule))
        if module is not root and is_called and next(module.children(), None) is not None:
            by_class.setdefault(type(module), []).append(module)
    best: list[list[Any]] = []
    most = 0
    for members in by_class.values():
        if len(members) < LEAST:
            continue
        groups = _alike(_outermost(members))
        size = sum(_size(member) for group in groups for member in group)
        if size > most and max(map(len, groups)) >= LEAST:  # of two that hold the same, the outer one came first
            best, most = groups, size
    return best


def _outermost(members: list[Any]) -> list[Any]:
    inner = {id(part) for member in members for part in member.modules() if part is not member}
    return [member for member in members if id(member) not in inner]


def _alike(members: list[Any]) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for member in members:
        groups.setdefault(_structure(member), []).append(member)
    return list(groups.values())


def _structure(module: Any) -> Any:
    parts = tuple((name, type(part)) for name, part in module.named_modules())
    return parts, tuple((name, tuple(p.shape), p.dtype) for name, p in _shaped(module))


def _size(module: Any) -> int:
    return sum(p.numel() for _, p in _shaped(module))


def _shaped(module: Any) -> list[tuple[str, Any]]:
    """A lazy parameter has no shape before its first use."""
    from torch.nn.parameter import is_lazy

    return [(name, p) for name, p in module.named_parameters() if not is_lazy(p)]
