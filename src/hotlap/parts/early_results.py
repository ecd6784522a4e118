"""What a replayed pass has made by the time it goes back: loss and outputs can be read then, while the device still
works on backward and update. `loss.item()` by itself waits for all of it, and the device for the host afterwards."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from hotlap.parts.graph_recorder import Moment

_NUMBERS = (int, float, bool)


def can_be_read(value: Any) -> bool:
    """Whether it may be a result, an input or a plain number; a number that is itself read late is none of them."""
    return type(value) in _NUMBERS or isinstance(value, torch.Tensor)


class Made:
    """By one replay. Whether somebody has changed a tensor since, its version tells."""

    def __init__(self, moment: Moment, results: Iterable[torch.Tensor], inputs: Iterable[torch.Tensor]) -> None:
        self._moment, self._asked_from = moment, _place(moment)
        # To ask others is to use them; and those made in inference mode have no version.
        plain = [one for one in (*inputs, *results) if type(one) is torch.Tensor and not one.is_inference()]
        self._known = {id(one): (weakref.ref(one), one._version) for one in plain}

    def reading(self, values: Sequence[Any]) -> AbstractContextManager[Any]:
        """Aside, where the values are plain numbers or known from the pass; where one is not, nothing is changed."""
        given = [one for one in values if type(one) not in _NUMBERS]
        if not all(map(self._is_known, given)) or _place(self._moment) != self._asked_from:
            return nullcontext()
        self._moment.spare(given)
        return self._moment.aside()

    def _is_known(self, value: Any) -> bool:
        known, version = self._known.get(id(value), (None, 0))
        return known is not None and known() is value and value._version == version


class Handed:
    """Copies of what one replay has made, and what they were copied from: a single number is read there, so that a
    script that asks for one now and then need not have each of its copies made early."""

    def __init__(self, moment: Moment, copies: Iterable[torch.Tensor], originals: Sequence[torch.Tensor]) -> None:
        self._moment, self._asked_from = moment, _place(moment)
        self._copies, self._originals = [weakref.ref(one) for one in copies], originals

    def item(self, value: torch.Tensor) -> Any:
        """`value.item()`, which does not wait for more than the forward where it is one of the copies, unchanged."""
        for copy, original in zip(self._copies, self._originals, strict=True):
            if copy() is value and value._version == 0 and _place(self._moment) == self._asked_from:
                return self._moment.read(original)
        return value.item()


def _place(moment: Moment) -> tuple[int, Any]:
    """Work of other threads and queues is in no order with ours."""
    return threading.get_ident(), moment.queue
