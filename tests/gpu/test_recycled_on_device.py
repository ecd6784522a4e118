"""Batches in used memory, on a real device that is behind the host: what arrives there is what was sent."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.parts.drawing_ahead import Prefetched
from hotlap.parts.recycled_batches import recycled_batches

pytestmark = pytest.mark.gpu

SHORT = 4_000_000  # cycles: about two milliseconds
COUNT, SIZE = 120, 1 << 18


class Numbered(Dataset):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        return torch.full((SIZE,), index), torch.tensor(index)


@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_copies_are_over_before_memory_is_used_again(pin_memory: bool, non_blocking: bool) -> None:
    found = []
    with recycled_batches():
        for large, small in DataLoader(Numbered(), None, num_workers=2, pin_memory=pin_memory):
            torch.cuda._sleep(SHORT)
            large, small = (one.to("cuda", non_blocking=non_blocking) for one in (large, small))
            found.append((large == small).all())
    assert torch.stack(found).all()


def test_memory_is_used_again() -> None:
    with recycled_batches():
        loader = DataLoader(Numbered(), 2, num_workers=1)  # put together by torch
        places = [large.data_ptr() for large, small in loader if (large == small[:, None]).all()]
    assert len(places) == COUNT // 2 and len(set(places)) <= 5


def test_copies_made_early() -> None:
    found = []
    with recycled_batches():
        loader = DataLoader(Numbered(), None, num_workers=2)
        for large, small in Prefetched(loader, "cuda"):
            torch.cuda._sleep(SHORT)
            found.append((large == small).all())
    assert torch.stack(found).all()
