"""What samples may look like to be kept as rows, and what is refused."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_resident_sharing import LENGTH, Cubes, in_force
from torch.utils.data import DataLoader

from hotlap.parts.purity import reader
from hotlap.parts.resident import Refused, Resident, Room
from hotlap.parts.resident_loader import serves

Pair = namedtuple("Pair", ["z", "a"])
FORMS: dict[str, Callable[[int], Any]] = {
    "namedtuple": lambda index: Pair(torch.tensor([index]), 0.5 * index),
    "dict": lambda index: {"z": index, "a": {"deep": [float(index)]}},
    "bool": lambda index: torch.tensor([index % 2 == 0, True]),
    "bfloat16": lambda index: torch.full((3,), index, dtype=torch.bfloat16),
    "complex": lambda index: torch.tensor([index + 1j, float("nan")]).conj(),
    "view": lambda index: torch.arange(48.0).reshape(4, 4, 3).permute(2, 0, 1) + index,
    "float": lambda index: 0.1 * index,
}


class Formed(Cubes):
    def __init__(self, form: Callable[[int], Any]) -> None:
        super().__init__()
        self.form = form

    def __getitem__(self, index: int) -> Any:
        return self.form(index)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_of_samples(form: Callable[[int], Any]) -> None:
    def look(loader: DataLoader) -> list[str]:
        leaves = torch.utils._pytree.tree_leaves
        return [str((batch, [(leaf.dtype, leaf.stride()) for leaf in leaves(batch)])) for batch in loader]

    loader = DataLoader(Formed(form), 8)
    expected = look(loader)
    with in_force(0):
        assert [look(loader) for _ in range(3)] == [expected] * 3
        assert serves(loader)


def test_samples_that_cannot_be_rows() -> None:
    def refused(sample: Any) -> str:
        dataset = Formed(lambda index: sample)
        with pytest.raises(Refused) as error:
            Resident(LENGTH, reader(dataset), Room(1 << 20)).batch([0, 1])
        return str(error.value)

    class Image(torch.Tensor):
        pass

    assert "more than tensors" in refused("word")
    assert "more than tensors" in refused(torch.ones(2).as_subclass(Image))
    assert "part of a graph" in refused(torch.ones(2, requires_grad=True))
    assert "empty" in refused(torch.ones(0))
