"""A data set that hands out the very tensors it holds."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset


class OwnRows(Dataset):
    def __init__(self) -> None:
        self.rows = torch.arange(48.0).view(12, 4)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]
