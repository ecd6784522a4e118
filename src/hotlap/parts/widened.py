"""What a call gives back, with its 16-bit tensors in float32, in whatever they come: lists and dicts, dataclasses, and
classes made from those. The objects themselves are left as they are, since a model may have kept them."""

from __future__ import annotations

import copy
import dataclasses
import types
from typing import Any

import torch
from torch.utils._pytree import tree_map


def widened(value: Any, dtype: torch.dtype) -> Any:
    """`dtype`: what becomes float32."""
    return tree_map(lambda leaf: _leaf(leaf, dtype), value)


def _leaf(leaf: Any, dtype: torch.dtype) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.float() if leaf.dtype == dtype else leaf
    if isinstance(leaf, type) or not (
        isinstance(leaf, (dict, list, types.SimpleNamespace)) or dataclasses.is_dataclass(leaf)
    ):
        return leaf
    items = dict(leaf) if isinstance(leaf, dict) else dict(enumerate(leaf)) if isinstance(leaf, list) else {}
    named = dict(getattr(leaf, "__dict__", {}))
    wide_items, wide_named = widened(items, dtype), widened(named, dtype)
    if _same(items, wide_items) and _same(named, wide_named):
        return leaf
    made = copy.copy(leaf)
    for key, one in wide_items.items():
        if one is not items[key]:
            made[key] = one
    for key, one in wide_named.items():
        if one is not named[key]:
            object.__setattr__(made, key, one)  # a dataclass may be frozen
    return made


def _same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    return all(value is other[key] for key, value in one.items())
