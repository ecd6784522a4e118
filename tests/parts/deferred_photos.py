"""A small data set of photos, a random transform, and a pipeline that stands for the transform: torchvision is not
needed to see whether samples are accounted for."""

from __future__ import annotations

import random

import numpy
import torch
from PIL import Image
from torch.utils.data import Dataset

from hotlap.parts import batched_transforms
from hotlap.parts.packed_images import Images

COUNT, SIZE = 22, 8


class Cut:
    """A random crop, sometimes flipped, as a tensor of floats."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def draw(self, width: int, height: int) -> tuple[int, int, int, bool]:
        left = int(torch.randint(0, width - self.size + 1, (1,)))
        top = random.randrange(height - self.size + 1)
        return left, top, self.size, bool(numpy.random.rand() < 0.5)

    def __call__(self, image):
        left, top, _, is_flipped = self.draw(*image.size)
        array = numpy.array(image)[top : top + self.size, left : left + self.size]
        made = torch.from_numpy(array).permute(2, 0, 1).float().div(255)
        return made.flip(-1) if is_flipped else made

    def __setstate__(self, state) -> None:
        vars(self).update(state)
        if batched_transforms.recognised.__module__ != __name__:
            stand_in()  # a spawned worker knows of it by this alone


class Pipeline:
    """What `recognised` would give for it. `fault` is planted."""

    head, tolerance, expects = None, 1e-6, "picture"

    def __init__(self, cut: Cut, fault=None) -> None:
        self.cut, self.fault = cut, fault
        self.runs = 0

    def draw(self, width: int, height: int):
        if self.fault == "draws otherwise":
            torch.rand(1)
        return (self.cut.draw(width, height),)

    def run(self, images, recipes, device):
        self.runs += 1
        if self.fault == "raises" or self.fault == f"raises at {self.runs}":
            raise RuntimeError("planted")
        made = []
        if isinstance(images, Images):
            sizes = zip(images.starts, images.heights, images.widths, strict=True)
            images = [images.flat[at : at + 3 * high * wide].view(3, high, wide) for at, high, wide in sizes]
        for image, (left, top, size, is_flipped) in zip(images, recipes.stages[0].tolist(), strict=True):
            part = image[:, top : top + size, left : left + size].float().div(255)
            made.append(part.flip(-1) if is_flipped != (self.fault == "flips") else part)
        return torch.stack(made)


def stand_in(fault=None):
    """Recognises `Cut`, and nothing else."""
    batched_transforms.recognised = lambda transform: (
        Pipeline(transform, fault) if isinstance(transform, Cut) else "it is not one that can be run in batches"
    )


class Photos(Dataset):
    def __init__(self, folder, transform=None, kinds=("jpg",)) -> None:
        self.paths = [str(folder / f"{number}.{kinds[number % len(kinds)]}") for number in range(COUNT)]
        self.transform = Cut() if transform is None else transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def write_photos(folder) -> None:
    for number in range(COUNT):
        noise = numpy.random.default_rng(number).integers(0, 256, (12, 16, 3), dtype=numpy.uint8)
        image = Image.fromarray(noise).resize((40 + number, 30))
        image.save(folder / f"{number}.jpg", quality=90, progressive=number % 2 == 0)
        image.save(folder / f"{number}.png")
        image.convert("CMYK").save(folder / f"{number}.cmyk.jpg")
        image.convert("L").save(folder / f"{number}.grey.jpg")
