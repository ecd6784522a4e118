"""What a recorded pass rests on beside its inputs: all that its code can reach, from its closure on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hotlap.parts.code_names import Closure, names_of, stored
from hotlap.parts.reach import Reach


class Grounds(Reach):
    """`hold()` says whether everything is as it was; `why` names what is not."""

    def __init__(self, function: Any, given: Sequence[Any] = ()) -> None:
        self._cells = Closure(function).now()
        super().__init__(lambda: self._walk(function, given))
        self._cells.clear()

    def _walk(self, function: Any, given: Sequence[Any]) -> None:
        """What the function itself sets (`self.loss`) is handed back, and read only after that."""
        names = names_of(function) - stored(function.__code__)
        self._visit_all(self._cells, self._cells, names, 0)
        self._visit_all(dict(enumerate(given)), range(len(given)), names, 0)
        self._look_into(function, 0)

    def grads(self) -> list[torch.Tensor]:
        """Of all weights that it knows, as far as they have one now."""
        return [
            one.grad for one in dict.fromkeys((*self.tensors, *self.updated)) if one.is_leaf and one.grad is not None
        ]

    def hold(self, function: Any) -> bool:
        """The function is made anew in each step, and its closure with it, which is here only while it is asked."""
        self._cells.update(Closure(function).now())
        try:
            return self.is_as_it_was()
        finally:
            self._cells.clear()
