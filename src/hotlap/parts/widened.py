"""What a call gives back, with its tensors changed (those of 16 bits into float32), in whatever they come: lists and
dicts, dataclasses, and classes made from those. The objects themselves are left as they are, since a model may have
kept them."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map


def widened(value: Any, dtype: torch.dtype) -> Any:
    """`dtype`: what becomes float32."""
    return changed(value, lambda tensor: tensor.float() if tensor.dtype == dtype else tensor)


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A tensor that stays as it is, is handed back by `change` itself."""
    return tree_map(lambda leaf: _leaf(leaf, change), value)


def _leaf(leaf: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(leaf, torch.Tensor):
        return change(leaf)
    if isinstance(leaf, type) or not (
        isinstance(leaf, (dict, list, types.SimpleNamespace)) or dataclasses.is_dataclass(leaf)
    ):
        return leaf
    items = dict(leaf) if isinstance(leaf, dict) else dict(enumerate(leaf)) if isinstance(leaf, list) else {}
    named = dict(getattr(leaf, "__dict__", {}))
    other_items, other_named = changed(items, change), changed(named, change)
    if _same(items, other_items) and _same(named, other_named):
        return leaf
    made = copy.copy(leaf)
    for key, one in other_items.items():
        if one is not items[key]:
            made[key] = one
    for key, one in other_named.items():
        if one is not named[key]:
            object.__setattr__(made, key, one)  # a dataclass may be frozen
    return made


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return all(value is other[key] for key, value in one.items())
