"""What a recorded pass rests on beside its inputs: all that its code can reach, from its closure on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotlap.parts.code_names import Closure, names_of, stored
from hotlap.parts.reach import Reach, is_same


class Grounds(Reach):
    """`hold()` says whether everything is as it was; `why` names what is not."""

    def __init__(self, function: Any, given: Sequence[Any] = ()) -> None:
        self._cells = Closure(function).now()
        super().__init__(lambda: self._walk(function, given))

    def _walk(self, function: Any, given: Sequence[Any]) -> None:
        """What the function itself sets (`self.loss`) is handed back, and read only after that."""
        names = names_of(function) - stored(function.__code__)
        self._visit_all(self._cells, self._cells, names, 0)
        self._visit_all(dict(enumerate(given)), range(len(given)), names, 0)
        self._look_into(function, 0)

    def hold(self, function: Any) -> bool:
        """The function is made anew in each step, and its closure with it."""
        cells = Closure(function).now()
        for name, old in self._cells.items():
            if not is_same(cells.get(name), old):
                self.why = f"{name} is another"
                return False
        return self.is_as_it_was()
