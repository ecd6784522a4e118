"""Tensors and what they are packed in: the arguments of a call, or what it gives."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

PLAIN = (int, float, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Packed:
    """`packing` can be told apart from others by value and holds no tensor; `tensors` are in its order, each once."""

    def __init__(self, value: Any) -> None:
        leaves, spec = tree_flatten(value)
        known: dict[int, int] = {}
        self.tensors: list[torch.Tensor] = []
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                if id(leaf) not in known:
                    known[id(leaf)] = len(self.tensors)
                    self.tensors.append(leaf)
                leaves[number] = _Tensor(known[id(leaf)])
        self.packing = Packing(spec, leaves)

    @classmethod
    def arguments(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
        """Of most calls quickly: only tensors, by position."""
        if kwargs or not all(type(one) is torch.Tensor for one in args) or len(set(map(id, args))) < len(args):
            return cls((args, kwargs))
        packed: Packed = object.__new__(cls)
        packed.tensors, packed.packing = list(args), _positions(len(args))
        return packed

    def is_still(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether arguments are what they were: a module may put what it finds into a dict that it is given."""
        again = Packed.arguments(args, kwargs)
        is_alike = again.packing.is_plain and again.packing.key == self.packing.key
        return is_alike and all(map(operator.is_, again.tensors, self.tensors))


class _Tensor(int):
    """Stands where the tensor of this number was."""


class Packing:
    def __init__(self, spec: Any, leaves: list[Any]) -> None:
        self._spec, self._leaves = spec, leaves
        self.is_plain = all(isinstance(leaf, PLAIN) for leaf in leaves)

    @functools.cached_property
    def key(self) -> Any:
        """Numbers with their types, since 1 equals True; older releases of torch cannot hash a spec."""
        return str(self._spec), tuple((type(leaf), leaf) for leaf in self._leaves)

    def filled(self, tensors: Sequence[Any]) -> Any:
        """The same with other tensors."""
        leaves = [tensors[leaf] if type(leaf) is _Tensor else leaf for leaf in self._leaves]
        return tree_unflatten(leaves, self._spec)


@functools.lru_cache
def _positions(count: int) -> Packing:
    return Packed((tuple(torch.empty(count)), {})).packing


def form_of(outputs: Packed) -> Any:
    """Everything about outputs but their values."""
    return outputs.packing.key, [(t.shape, t.dtype, t.requires_grad) for t in outputs.tensors]
