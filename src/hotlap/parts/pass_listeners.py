"""Who must know of replays, and what stands there while nobody does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch


class Listeners(Protocol):
    """Who must know of replays, which torch tells nobody of."""

    changes: int  # another number whenever somebody else begins or ends to take part in passes

    @property
    def are_there(self) -> bool:
        """Whether anybody has to be told of a replay."""

    @property
    def why_not(self) -> str:
        """Why nothing can be recorded now."""

    def recording(self) -> AbstractContextManager[Any]:
        """While it lasts, nobody is to be told of what is only recorded."""

    def played(self, play: Callable[[], torch.Tensor], inputs: Sequence[Any]) -> None:
        """Plays a pass, which gives its loss, and tells of it."""

    def compared(self, difference: float, limit: float) -> None: ...

    def refused(self, reason: str) -> None: ...


class Nobody:
    changes = 0
    are_there = False
    why_not = ""

    def recording(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def played(self, play: Callable[[], torch.Tensor], inputs: Sequence[Any]) -> None:
        play()

    def compared(self, difference: float, limit: float) -> None: ...

    def refused(self, reason: str) -> None: ...
