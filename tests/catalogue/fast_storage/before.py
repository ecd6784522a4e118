"""A data set of image files, read from wherever the temporary folder lies."""

import tempfile
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*/*.png"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with Image.open(self.paths[index]) as image:
            return torch.from_numpy(numpy.array(image, dtype=numpy.float32)).flatten()


def main():
    with tempfile.TemporaryDirectory() as folder:
        for number in range(32):
            path = Path(folder) / str(number % 2) / f"{number}.png"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
        model = nn.Linear(48, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for batch in DataLoader(Photos(folder), batch_size=4):
            optimizer.zero_grad()
            model(batch).mean().backward()
            optimizer.step()


if __name__ == "__main__":
    main()
