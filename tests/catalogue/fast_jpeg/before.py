"""A folder of JPEG files, decoded in full for every sample."""

import os
import tempfile

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_images(folder, count):
    random = np.random.default_rng(0)
    for index in range(count):
        pixels = random.integers(0, 100, (24, 24, 3), dtype=np.uint8)
        pixels[:, :, index % 3] += 100
        Image.fromarray(pixels).save(os.path.join(folder, f"{index:03}.jpg"))


class Photos(Dataset):
    def __init__(self, folder):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        pixels = torch.from_numpy(np.array(image)).float() / 255
        return pixels.flatten(), index % 3


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        write_images(folder, 24)
        loader = DataLoader(Photos(folder), batch_size=4, shuffle=True)
        model = nn.Sequential(nn.Linear(24 * 24 * 3, 16), nn.ReLU(), nn.Linear(16, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for epoch in range(3):
            for pixels, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(pixels), labels)
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
