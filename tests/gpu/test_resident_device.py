"""Samples kept on a CUDA device, and batches gathered from page-locked memory for one."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.resident_batches import ResidentBatches
from hotlap.parts.resident_loader import serves

pytestmark = pytest.mark.gpu


class Powers(Dataset):
    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int):
        return torch.full((3, 8, 8), float(index) ** 2), torch.tensor(index / 3, dtype=torch.bfloat16), index


def test_gathered_on_the_device_in_the_loaders_order() -> None:
    for workers in (0, 2):
        loader = DataLoader(Powers(), batch_size=32, shuffle=True, num_workers=workers)
        batches = ResidentBatches(loader, "cuda")
        for epoch in range(4):
            torch.manual_seed(epoch)
            found = list(batches)
            assert all(leaf.is_cuda for batch in found for leaf in batch)
            torch.manual_seed(epoch)
            for batch, expected in zip(found, loader, strict=True):
                assert all(torch.equal(leaf.cpu(), other) for leaf, other in zip(batch, expected, strict=True))
        assert not batches.reason and batches._samples.store.has_served


def test_a_script_goes_on_getting_batches_in_main_memory_page_locked() -> None:
    torch.zeros(1, device="cuda")
    patch = Patch(Joints())
    find("resident-dataset").apply(patch, {})
    try:
        dataset = Powers()
        for _ in range(3):
            loader = DataLoader(dataset, batch_size=32, shuffle=True)
            for x, _, index in loader:
                assert x.device.type == "cpu" and x.is_pinned()
                assert torch.equal(x.cuda(non_blocking=True)[:, 0, 0, 0].cpu(), index.float() ** 2)
        assert serves(loader) and not patch.joints.withdrawn
    finally:
        patch.undo()
