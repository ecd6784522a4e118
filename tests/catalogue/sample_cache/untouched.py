"""Images opened elsewhere, by something else, or cached already."""

import torch
from PIL import Image
from torch.utils.data import Dataset
from hotlap.parts.image_cache import cached_open
from mylib import Image as OtherImage


def load(path):
    return Image.open(path)


class Cached(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return cached_open(self.paths[index]).convert("RGB")


class InMemory(Dataset):
    def __init__(self, paths):
        self.images = [Image.open(path).convert("RGB") for path in paths]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index]


class Other(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return OtherImage.open(self.paths[index])


class Shadowed(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index, Image=None):
        return Image.open(self.paths[index])


class NotADataset:
    def __getitem__(self, key):
        return Image.open(key)


class Silenced(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return Image.open(self.paths[index])  # hotlap: ignore[sample-cache]
