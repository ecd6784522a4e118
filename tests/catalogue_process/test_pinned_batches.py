"""Every loader pins, unless its data lies on the device already."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from hotlap.catalogue import find
from hotlap.observe.run import Run
from hotlap.technique import CannotHelp

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


class OnDevice(Dataset):
    """Stands for a data set whose tensors are CUDA tensors."""

    def __init__(self) -> None:
        self.images = type("Images", (), {"is_cuda": True})()

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_loaders_pin(apply) -> None:
    apply("pinned-batches")
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=4)
    assert loader.pin_memory
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_data_on_the_device_cannot_be_pinned(apply) -> None:
    apply("pinned-batches")
    assert not DataLoader(OnDevice()).pin_memory


def test_undone_the_next_loader_is_plain(apply) -> None:
    apply("pinned-batches").undo()
    assert not DataLoader(TensorDataset(torch.arange(8))).pin_memory


def test_nothing_to_gain_without_a_loader() -> None:
    assert isinstance(find("pin_memory").settings(Run("2.11", "cuda")), CannotHelp)
