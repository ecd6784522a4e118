"""Torchvision, pictures, and the comparison that every test of batched transforms makes: the script's own transform on
PIL images, then the same seeds again and the batched form."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="makes the pictures with Pillow")
pytest.importorskip("torchvision", reason="needs torchvision")

from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor

from hotlap.parts.batched_transforms import Pipeline, recognised

VERSIONS = {"v1": v1, "v2": v2}
PHOTOS = ((250, 187), (187, 250), (166, 251), (100, 256), (64, 48), (40, 33))
SMALL = ((61, 80), (64, 48), (33, 40))
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def picture(width: int, height: int, seed: int = 0, mode: str = "RGB") -> Image.Image:
    """Smooth, textured, with edges: what photos are made of."""
    drawn = np.random.RandomState(seed)
    y, x = np.mgrid[:height, :width]
    channels = []
    for channel in range(3):
        wave = 60 * np.sin(x / (7 + 9 * channel) + drawn.rand() * 6) + 40 * np.cos(y / (11 + 5 * channel) + x / 31)
        channels.append(128 + wave + drawn.randn(height, width) * (12 if seed % 2 else 3))
        if seed % 3 == 0:
            channels[-1] += 50 * ((x // 13 + y // 17) % 2)
    return Image.fromarray(np.clip(np.stack(channels, -1), 0, 255).astype(np.uint8)).convert(mode)


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def states() -> list[Any]:
    return [
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        np.random.get_state()[2],
    ]


@dataclass
class Compared:
    pipeline: Pipeline
    made: torch.Tensor
    wanted: torch.Tensor
    same_states: bool

    @property
    def difference(self) -> torch.Tensor:
        """In levels of 255 where the output is levels or floats of 0 to 1."""
        unit = 1 if self.wanted.dtype == torch.uint8 else 255
        return (self.made.double() - self.wanted.double()).abs() * unit

    @property
    def largest(self) -> float:
        return float(self.difference.max())

    @property
    def mean(self) -> float:
        return float(self.difference.mean())

    @property
    def deviations(self) -> float:
        unit = 1 if self.wanted.dtype == torch.uint8 else 255
        return self.mean / unit / float(self.wanted.double().std())


def compared(
    transform: Any,
    sizes: Sequence[tuple[int, int]] = PHOTOS,
    seed: int = 5,
    mode: str = "RGB",
    device: str = "cpu",
    pipeline: Pipeline | None = None,
) -> Compared:
    found = pipeline or recognised(transform)
    assert isinstance(found, Pipeline), found
    pictures = [picture(*size, seed=number, mode=mode) for number, size in enumerate(sizes)]
    seed_all(seed)
    wanted = torch.stack([torch.as_tensor(transform(one)) for one in pictures])
    theirs = states()
    seed_all(seed)
    images, recipes = [], []
    for one in pictures:
        given = found.head(one) if found.head is not None else one
        image = torch.as_tensor(pil_to_tensor(given) if isinstance(given, Image.Image) else given)
        recipes.append(found.draw(image.shape[2], image.shape[1]))
        images.append(image.to(device))
    ours = states()
    made = found.run(images, recipes, device).cpu()
    assert (made.shape, made.dtype) == (wanted.shape, wanted.dtype)
    return Compared(found, made, wanted, ours == theirs)


def pipelines(T: Any) -> dict[str, Any]:
    """Whole pipelines as scripts have them, in the version given."""
    end = [T.ToTensor(), T.Normalize(MEAN, STD)]
    simclr = [
        T.RandomResizedCrop(96),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        T.RandomGrayscale(p=0.2),
        T.RandomApply([T.GaussianBlur(9, (0.1, 2.0))], p=0.5),
        *end,
    ]
    return {
        "ImageNet, training": T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), *end]),
        "ImageNet, evaluation": T.Compose([T.Resize(256), T.CenterCrop(224), *end]),
        "CIFAR": T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *end]),
        "SimCLR": T.Compose(simclr),
    }
