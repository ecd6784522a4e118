"""Photos that are cropped and flipped at random, one at a time, by the loader's workers."""

import importlib.util
import tempfile
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_tensor(image):
    return torch.from_numpy(numpy.array(image.resize((16, 16)))).permute(2, 0, 1) / 255


def transform():
    if importlib.util.find_spec("torchvision") is None:
        return to_tensor
    from torchvision import transforms

    crop = transforms.RandomResizedCrop(16)
    return transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor()])


class Photos(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.jpg"))
        self.transform = transform()

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index % 4


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    for number in range(64):
        pixels = numpy.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=numpy.uint8)
        Image.fromarray(pixels).resize((64, 48)).save(Path(folder) / f"{number}.jpg")
    loader = DataLoader(Photos(folder), batch_size=16, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
