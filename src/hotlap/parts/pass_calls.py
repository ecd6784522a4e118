"""One pass as it was asked for, and what passes must have in common to share a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hotlap.parts.graph_recorder import Recorder, settings, watched_by
from hotlap.parts.pass_recording import NUMBERS, flat
from hotlap.parts.pass_stand_ins import stands_in, taken
from hotlap.parts.waiting_tensor import Waiting

_DATA = (torch.Tensor, Waiting)


@dataclass(frozen=True, eq=False)
class Call:
    function: Any
    inputs: Sequence[Any]
    leaves: Sequence[Any]  # of the inputs, which may be lists and dicts
    kind: Any  # what inputs and gradients must have in common to share a graph; None where there can be none
    why_not: str

    def plain(self) -> Any:
        return self.function(*map(taken, self.inputs))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]


def call_of(function: Any, inputs: Sequence[Any], recorder: Recorder, changes: int) -> Call:
    """`changes`: a number that is another one where somebody else takes part by now."""
    leaves, shape = flat(inputs)
    why_not = _why_not([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)], recorder)
    kind = None if why_not else (shape, settings(), changes, *_form(leaves))
    return Call(function, inputs, leaves, kind, why_not)


def _form(leaves: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            found += (leaf.shape, leaf.stride(), leaf.dtype, leaf.device, leaf.requires_grad)
        else:
            found += (type(leaf), (leaf, str(leaf)) if isinstance(leaf, NUMBERS) else id(leaf))  # -0.0 is 0.0
    return found


def _why_not(given: list[torch.Tensor], recorder: Recorder) -> str:
    if recorder.is_busy:
        return "the script records its passes itself"
    if not torch.is_grad_enabled():
        return "gradients are off"
    if torch.is_autocast_enabled(recorder.device):
        return "autocast is entered around the pass, and would hand on weights it has cast before"
    if any(type(one) not in _DATA or one.layout != torch.strided for one in given):
        return "its inputs are more than plain data"
    if any(one.requires_grad and not stands_in(one) for one in given):
        return "its inputs get gradients"
    return watched_by()
