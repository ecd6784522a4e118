"""Batches gathered on a device. The CPU runs the same code; tests/gpu runs it on a CUDA device."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from hotlap.parts.resident_batches import ResidentBatches


class Powers(Dataset):
    def __init__(self, noise: bool = False) -> None:
        self.noise, self.exponent = noise, 2

    def __len__(self) -> int:
        return 53

    def __getitem__(self, index: int):
        return torch.full((2, 2), float(index) ** self.exponent + (torch.rand(()) if self.noise else 0)), index


def epochs(batches, number: int = 3) -> list:
    torch.manual_seed(3)
    return [[(x.tolist(), y.tolist()) for x, y in batches] + [torch.rand(1).item()] for _ in range(number)]


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "drop_last": True}, {"shuffle": True, "num_workers": 2}], ids=str
)
def test_the_loaders_own_batches_in_its_own_order(options: dict) -> None:
    loader = DataLoader(Powers(), batch_size=8, **options)
    batches = ResidentBatches(loader, "cpu")
    assert len(batches) == len(loader)
    assert epochs(batches) == epochs(loader)
    assert not batches.reason and batches._samples.store.has_served


def test_batches_are_the_callers_own() -> None:
    batches = ResidentBatches(DataLoader(Powers(), batch_size=8), "cpu")
    for _ in range(3):
        for x, y in batches:
            assert torch.equal(x[:, 0, 0], y.float() ** 2)
            x.zero_()


def test_what_may_not_be_kept_comes_from_the_loader() -> None:
    batches = ResidentBatches(DataLoader(Powers(noise=True), batch_size=8), "cpu")
    with pytest.warns(UserWarning, match="draws random numbers"):
        first = epochs(batches, 2)
    assert first == epochs(batches._loader, 2) and "random" in batches.reason
    with pytest.warns(UserWarning, match="GiB"):
        assert len(list(ResidentBatches(DataLoader(Powers(), batch_size=8), "cpu", limit_bytes=100))) == 7
    assert "collates" in ResidentBatches(DataLoader(Powers(), collate_fn=list), "cpu").reason


def test_a_data_set_that_changes() -> None:
    dataset = Powers()
    batches = ResidentBatches(DataLoader(dataset, batch_size=8), "cpu", state=lambda dataset: dataset.exponent)
    epochs(batches, 2)
    dataset.exponent = 1
    with pytest.warns(UserWarning, match="changed"):
        assert epochs(batches) == epochs(batches._loader)
