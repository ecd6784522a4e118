"""A plain training loop whose images are decoded and transformed in batches on the device.

    from hotlap.parts.image_loader import ImageLoader

    loader = ImageLoader("photos/train", transform, batch_size=256, device="cuda", workers=8, shuffle=True)
    for epoch in range(90):
        for images, labels in loader:
            loss = criterion(model(images), labels)

A folder has one folder of images for each class, or images alone; a data set is anything whose samples come out of a
torchvision transform that it holds. Workers read files and draw random numbers; the device does the rest. The first
samples are also made one by one on the processor: should they differ, a warning says so, and all are made like that.
With `dtype=torch.bfloat16, memory_format=torch.channels_last` images come as such a model wants them.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from hotlap.parts.device_batches import DeviceBatches
from hotlap.parts.transform_sites import why_not

_FORMATS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".webp", ".tif", ".tiff")


class ImageFolder(Dataset[Any]):
    """Images below a folder, each with the number of its class: the folders in it, in the order of their names."""

    def __init__(self, folder: str | os.PathLike[str], transform: Any) -> None:
        root = Path(folder)
        self.classes = sorted(entry.name for entry in root.iterdir() if entry.is_dir())
        places = [root / name for name in self.classes] or [root]
        self.samples = [(str(path), label) for label, place in enumerate(places) for path in _files(place)]
        self.transform = transform
        if not self.samples:
            raise ValueError(f"there are no images in {root}")

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        from PIL import Image

        path, label = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), label


def _files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.suffix.lower() in _FORMATS)


class ImageLoader:
    """Batches on the device, in the order of a `DataLoader` with the same options."""

    def __init__(
        self, data: Any, transform: Any = None, batch_size: int = 1, device: Any = "cuda", workers: int = 0,
        shuffle: bool = False, drop_last: bool = False, ahead: int = 2, dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:  # fmt: skip
        if isinstance(data, (str, os.PathLike)):
            data = ImageFolder(data, transform)
        elif transform is not None:
            raise ValueError("a data set has its transform already; give one for a folder only")
        place = torch.device(device)
        if place.type == "cuda" and place.index is None:
            place = torch.device("cuda", torch.cuda.current_device())
        self._device = place
        self._as_wanted = functools.partial(_as_wanted, dtype, memory_format)  # no method: nobody is to hold the loader
        self._batches = DeviceBatches(_Limit(), warnings.warn, ahead, lambda: place, self._as_wanted)
        self._loader: Any = DataLoader(
            data, batch_size, shuffle, num_workers=workers, drop_last=drop_last, persistent_workers=workers > 0
        )
        reason = why_not(self._loader)
        if reason is not None:
            raise ValueError(f"batches cannot be made on the device: {reason}")

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self._batches.starts(self._loader)
        for batch in self._loader:
            yield tree_map(self._moved, batch)

    def _moved(self, value: Any) -> Any:
        return self._as_wanted(value.to(self._device, non_blocking=True)) if isinstance(value, torch.Tensor) else value


def _as_wanted(dtype: torch.dtype | None, memory_format: torch.memory_format, value: torch.Tensor) -> torch.Tensor:
    """Images, that is: batches of anything else stay as they are."""
    if value.dim() != 4 or not value.is_floating_point():
        return value
    return value.to(dtype=dtype or value.dtype, memory_format=memory_format)


class _Limit:
    """Fails once a sample is further from the processor's than is allowed."""

    failed = False

    def add(self, difference: float) -> None:
        if not difference <= 1.0 and not self.failed:
            self.failed = True
            warnings.warn("images made on the device differ from those made one by one, which are used", stacklevel=2)
