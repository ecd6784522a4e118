"""The loaders that bench/imagenet_feed.py compares: each from a folder of JPEG files to (images, labels) on the device,
without end. One that cannot run here raises `Missing` with the reason."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Batches = Generator[tuple[Tensor, Tensor], None, None]


class Missing(Exception):
    """Why a loader cannot run here."""


@dataclass(frozen=True)
class Wanted:
    folder: Path
    batch: int
    device: str
    cores: int

    @property
    def is_on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"


def needed(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise Missing(f"{name} is not installed ({error})") from None


class Photos(Dataset[tuple[Any, int]]):
    """Files in a folder for each class, opened by `read`."""

    def __init__(self, folder: Path, read: Callable[[str], Any]) -> None:
        classes = sorted(path for path in folder.iterdir() if path.is_dir())
        self.files = [(str(file), label) for label, path in enumerate(classes) for file in sorted(path.iterdir())]
        self.read = read

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        file, label = self.files[index]
        return self.read(file), label


def pictured_by() -> str:
    """Who makes the plain loader's crops."""
    try:
        return f"torchvision {import_module('torchvision').__version__}"
    except ImportError:
        return "Pillow, by hand: torchvision is not installed"


def training_transform() -> Callable[[Any], Tensor]:
    """What pytorch/examples `imagenet/main.py` does to a picture."""
    try:
        transforms = import_module("torchvision.transforms")
    except ImportError:
        return cropped
    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    return transforms.Compose([*steps, transforms.Normalize(MEAN, STD)])  # type: ignore[no-any-return]


def cropped(image: Any) -> Tensor:
    """The same work where torchvision is not there: a crop of 8 to 100 % of the area, resized, flipped, normalised."""
    scale = random.uniform(0.08, 1.0) ** 0.5
    width, height = max(1, int(image.width * scale)), max(1, int(image.height * scale))
    left, top = random.randint(0, image.width - width), random.randint(0, image.height - height)
    box = (left, top, left + width, top + height)
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image, dtype=np.float32)).permute(2, 0, 1) / 255
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


class Opened:
    """A file as a picture, changed; an object, since workers may have to pickle it."""

    def __init__(self, transform: Callable[[Any], Tensor]) -> None:
        self.transform = transform

    def __call__(self, file: str) -> Tensor:
        with Image.open(file) as image:
            return self.transform(image.convert("RGB"))


def plain(wanted: Wanted, workers: int) -> Batches:
    photos = Photos(wanted.folder, Opened(training_transform()))
    loader = DataLoader(
        photos, wanted.batch, shuffle=True, num_workers=workers, pin_memory=wanted.is_on_gpu, persistent_workers=True
    )
    while True:
        for images, labels in loader:
            yield images.to(wanted.device, non_blocking=True), labels.to(wanted.device, non_blocking=True)


def as_bytes(file: str) -> Tensor:
    return torch.from_numpy(np.fromfile(file, dtype=np.uint8))


def as_lists(batch: Sequence[tuple[Any, int]]) -> tuple[list[Any], Tensor]:
    return [data for data, _ in batch], torch.tensor([label for _, label in batch])


def by_hand(wanted: Wanted, workers: int) -> Batches:
    """Workers read files; nvJPEG decodes a batch, then torchvision's v2 transforms run on the device."""
    io, v2 = needed("torchvision.io"), needed("torchvision.transforms.v2")
    if not wanted.is_on_gpu:
        raise Missing("nvJPEG needs a CUDA device")
    loader = DataLoader(
        Photos(wanted.folder, as_bytes),
        wanted.batch,
        True,
        num_workers=workers,
        collate_fn=as_lists,
        persistent_workers=True,
    )
    one = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip()])
    all_ = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    while True:
        for files, labels in loader:
            images = io.decode_jpeg(files, mode=io.ImageReadMode.RGB, device=wanted.device)
            yield all_(torch.stack([one(image) for image in images])), labels.to(wanted.device)


def hotlap(wanted: Wanted, workers: int) -> Batches:
    loader = needed("hotlap.parts.image_loader").ImageLoader(
        wanted.folder, training_transform(), wanted.batch, wanted.device, workers=workers, shuffle=True
    )
    while True:
        yield from loader


def dali(wanted: Wanted) -> Batches:
    needed("nvidia.dali")
    if not wanted.is_on_gpu:
        raise Missing("its decoder is wanted on a CUDA device")
    fn, types = import_module("nvidia.dali.fn"), import_module("nvidia.dali.types")
    torch_side = import_module("nvidia.dali.plugin.pytorch")

    def graph() -> tuple[Any, Any]:
        files, labels = fn.readers.file(file_root=str(wanted.folder), random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(files, device="mixed", output_type=types.RGB)
        images = fn.resize(images, size=[SIDE, SIDE])
        mean, std = [255 * one for one in MEAN], [255 * one for one in STD]
        flipped = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, mean=mean, std=std, mirror=flipped), labels.gpu()

    made = import_module("nvidia.dali").pipeline_def(graph)(
        batch_size=wanted.batch, num_threads=max(1, wanted.cores - 1), device_id=0
    )
    made.build()
    loader = torch_side.DALIGenericIterator([made], ["images", "labels"], reader_name="files", auto_reset=True)
    while True:
        for (batch,) in loader:
            yield batch["images"], batch["labels"]


def ffcv(wanted: Wanted) -> Batches:
    """From a file of its own, which is written first and not timed."""
    needed("ffcv")
    fields, writer = import_module("ffcv.fields"), import_module("ffcv.writer")
    steps, decoders = import_module("ffcv.transforms"), import_module("ffcv.fields.decoders")
    loaders = import_module("ffcv.loader")
    path = wanted.folder.with_name(f"{wanted.folder.name}.beton")
    try:
        if not path.exists():
            kinds = {"image": fields.RGBImageField(write_mode="jpg"), "label": fields.IntField()}
            writer.DatasetWriter(str(path), kinds).from_indexed_dataset(Photos(wanted.folder, rgb))
        there = steps.ToDevice(torch.device(wanted.device), non_blocking=True)
        mean, std = (255 * np.array(one) for one in (MEAN, STD))
        picture = [decoders.RandomResizedCropRGBImageDecoder((SIDE, SIDE)), steps.RandomHorizontalFlip()]
        picture += [steps.ToTensor(), there, steps.ToTorchImage(), steps.NormalizeImage(mean, std, np.float32)]
        number = [decoders.IntDecoder(), steps.ToTensor(), steps.Squeeze(), there]
        loader = loaders.Loader(
            str(path),
            batch_size=wanted.batch,
            num_workers=wanted.cores,
            order=loaders.OrderOption.RANDOM,
            pipelines={"image": picture, "label": number},
        )
        while True:
            yield from loader
    finally:
        path.unlink(missing_ok=True)


def rgb(file: str) -> Any:
    with Image.open(file) as image:
        return image.convert("RGB")
