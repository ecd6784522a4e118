"""A piece of a larger storage that is written, copied and made larger as if it had one of its own. Torch's own way is
to take the whole storage along, so that a file would hold more than the script has put into it, and to grow in place,
over the next piece."""

from __future__ import annotations

import copy
import functools
import weakref
from typing import Any

import torch

_RESIZING = ("resize_", "resize_as_")
_OWN = ("__reduce_ex__", "__deepcopy__", *_RESIZING)


def left_alone(piece: torch.Tensor) -> None:
    lone = _Lone(piece)
    own = lone.reduce, lone.deepcopy, *(functools.partial(lone.resize, name) for name in _RESIZING)
    vars(piece).update(zip(_OWN, own, strict=True))


class _Lone:
    """Stands before a tensor's own ways to be pickled, copied and resized; holds it weakly, since the tensor holds
    this."""

    __slots__ = ("_piece",)

    def __init__(self, piece: torch.Tensor) -> None:
        self._piece = weakref.ref(piece)

    def reduce(self, protocol: Any) -> Any:
        return self._alone().__reduce_ex__(protocol)

    def deepcopy(self, memo: Any) -> Any:
        return copy.deepcopy(self._alone(), memo)

    def resize(self, name: str, *sizes: Any, **how: Any) -> Any:
        piece: Any = self._piece()
        for own in _OWN:
            vars(piece).pop(own, None)
        if piece.is_leaf:
            piece.data = piece.detach().clone()
        return getattr(piece, name)(*sizes, **how)

    def _alone(self) -> torch.Tensor:
        piece: Any = self._piece()
        rest = {name: value for name, value in vars(piece).items() if name not in _OWN}
        if piece.grad_fn is not None:  # what was made of it is torch's to judge
            vars(piece).clear()
            vars(piece).update(rest)
            return piece  # type: ignore[no-any-return]
        alone = piece.detach().clone().requires_grad_(piece.requires_grad)
        alone.grad = piece.grad
        vars(alone).update(rest)
        return alone  # type: ignore[no-any-return]
