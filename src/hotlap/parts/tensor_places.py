"""Where tensors lie and how they look, asked of all of them with one call: to ask each for its type, sizes, strides and
whatever else a recording has in it for good takes Python longer than the rest of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards  # nothing of the compiler is imported with it

_address = torch.Tensor.data_ptr


class Places:
    """Of tensors that are not kept. Where `hold` says yes, address, type, layout, device, dtype, sizes, strides and
    `requires_grad` are what they were. It may say no without need, where a tensor comes twice or autocast was entered
    since: who asks has a longer way to go then."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._addresses = list(map(_address, tensors))
        sizes, strides = [list(one.shape) for one in tensors], [list(one.stride()) for one in tensors]
        forms: Any = TensorGuards  # its stub knows of no tensors
        self._forms = forms(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)

    def hold(self, tensors: Sequence[Any]) -> bool:
        return (
            len(tensors) == len(self._addresses)
            and bool(self._forms.check(*tensors))  # first: what is no tensor has no address
            and list(map(_address, tensors)) == self._addresses
        )
