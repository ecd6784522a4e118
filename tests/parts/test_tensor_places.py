"""Where tensors lie and how they look: nothing of it may change unnoticed, and nothing is held for it."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from hotlap.parts.tensor_places import Places


class Named(torch.Tensor): ...


def tensors() -> list[torch.Tensor]:
    return [nn.Parameter(torch.ones(4, 4)), torch.ones(2, 3, 2), torch.ones(())]


def put(tensor: torch.Tensor, data: torch.Tensor) -> None:
    tensor.data = data


CHANGES = {
    "another place": lambda ones: put(ones[0], ones[0].data.clone()),
    "other strides": lambda ones: put(ones[0], ones[0].data.t()),
    "a part of it": lambda ones: put(ones[0], ones[0].data[:2]),
    "another shape": lambda ones: put(ones[1], ones[1].data.view(3, 2, 2)),
    "another dtype": lambda ones: put(ones[1], ones[1].data.view(torch.int32)),
    "another type": lambda ones: ones.__setitem__(1, ones[1].as_subclass(Named)),
    "no gradients": lambda ones: ones[0].requires_grad_(False),
    "none": lambda ones: ones.__setitem__(1, None),
    "one less": lambda ones: ones.pop(),
    "one more": lambda ones: ones.append(torch.ones(())),
    "one for another": lambda ones: ones.__setitem__(1, ones[0]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_noticed(change) -> None:
    ones = tensors()
    places = Places(ones)
    assert places.hold(ones)
    change(ones)
    assert not places.hold(ones)


def test_values_are_no_concern_of_it_nor_who_asks() -> None:
    ones = tensors()
    places = Places(ones)
    with torch.no_grad():
        ones[0].add_(1.0)
        assert places.hold(ones)
    assert places.hold([one.detach() if one is not ones[0] else one for one in ones])


def test_no_tensor_is_held() -> None:
    (one, *_) = ones = tensors()
    before = sys.getrefcount(one), torch._C._storage_Use_Count(one.untyped_storage()._cdata)
    places = Places(ones)
    places.hold(ones)
    assert (sys.getrefcount(one), torch._C._storage_Use_Count(one.untyped_storage()._cdata)) == before
