"""Train a small ResNet on a folder of photos, one folder per class."""

import argparse
import math
import os
import random
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)

# colour of the sky, colour of the ground, number of blobs, roughness of the texture
SCENES = {
    "beach": ((120, 180, 230), (225, 205, 160), 3, 6),
    "city": ((150, 155, 165), (95, 90, 95), 14, 14),
    "desert": ((185, 195, 215), (205, 160, 105), 2, 10),
    "forest": ((140, 170, 160), (55, 95, 50), 12, 18),
    "lake": ((150, 190, 215), (60, 110, 140), 4, 5),
    "meadow": ((160, 195, 225), (115, 155, 70), 8, 12),
    "night": ((20, 25, 55), (40, 40, 50), 6, 8),
    "sunset": ((225, 140, 95), (110, 70, 80), 3, 6),
}
PHOTOS = 400


def paint(scene, rng):
    """A made-up photo: a gradient from sky to ground, soft blobs, and grain."""
    sky, ground, blobs, grain = SCENES[scene]
    width = int(rng.integers(760, 841)) // 8 * 8
    height = width * 3 // 4
    light = rng.normal(0, 18, size=3)
    small = np.linspace(np.array(sky) + light, np.array(ground) + light, 30)[:, None, :].repeat(40, axis=1)
    rows, cols = np.mgrid[0:30, 0:40]
    for _ in range(blobs + int(rng.integers(0, 4))):
        y, x, radius = rng.uniform(0, 30), rng.uniform(0, 40), rng.uniform(2, 9)
        blob = np.exp(-((rows - y) ** 2 + (cols - x) ** 2) / (2 * radius**2))
        small = small + blob[:, :, None] * rng.normal(0, 45, size=3)
    image = Image.fromarray(small.clip(0, 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    noise = rng.standard_normal((height, width, 1), dtype=np.float32) * grain
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def make_photos(root):
    """Write the photos beside their final place and move them there in one go."""
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=root.name + ".", dir=root.parent))
    try:
        rng = np.random.default_rng(0)
        names = sorted(SCENES)
        for i in range(PHOTOS):
            scene = names[i % len(names)]
            (unfinished / scene).mkdir(exist_ok=True)
            paint(scene, rng).save(unfinished / scene / f"{i // len(names):04d}.jpg", quality=90)
        os.chmod(unfinished, 0o755)
        try:
            os.rename(unfinished, root)
        except OSError:
            if not root.is_dir():  # otherwise another run was faster
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def random_resized_crop(image, size, scale=(0.35, 1.0), ratio=(3 / 4, 4 / 3)):
    width, height = image.size
    for _ in range(10):
        area = width * height * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if w <= width and h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + w, top + h))
    return image.resize((size, size), Image.Resampling.BILINEAR)


def center_crop(image, size):
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def to_tensor(image):
    array = np.asarray(image, dtype=np.float32) / 255.0
    array = (array - MEAN) / STD
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


class Photos(Dataset):
    def __init__(self, files, classes, train, size=96):
        self.files = files
        self.labels = {name: i for i, name in enumerate(classes)}
        self.train = train
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path = self.files[index]
        image = Image.open(path).convert("RGB")
        if self.train:
            image = random_resized_crop(image, self.size)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            image = center_crop(image, self.size)
        return to_tensor(image), self.labels[path.parent.name]


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + self.shortcut(x))


class SmallResNet(nn.Module):
    def __init__(self, num_classes, width=16):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 5, 4, 2, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        )
        self.layers = nn.Sequential(
            Block(width, width * 2, 2),
            Block(width * 2, width * 4, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(width * 4, num_classes)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.fc(self.pool(x).flatten(1))


def evaluate(model, loader, criterion, device):
    model.eval()
    total, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            outputs = model(images)
            total += criterion(outputs, labels).item() * len(labels)
            correct += (outputs.argmax(1) == labels).sum().item()
            count += len(labels)
    return total / count, correct / count


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data" / "photos", help="folder of class folders")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=PHOTOS, help="use at most this many photos")
    parser.add_argument("--checkpoint", type=Path, default=HERE / "photos.pt")
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    if not args.data.is_dir():
        print(f"making photos in {args.data}")
        make_photos(args.data)
    classes = sorted(folder.name for folder in args.data.iterdir() if folder.is_dir())
    files = sorted(args.data.glob("*/*.jpg"), key=lambda path: (path.name, path.parent.name))[: args.limit]
    train_files = [path for i, path in enumerate(files) if i % 9 != 8]
    val_files = [path for i, path in enumerate(files) if i % 9 == 8]

    train_loader = DataLoader(Photos(train_files, classes, train=True), batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(Photos(val_files, classes, train=False), batch_size=args.batch_size)

    model = SmallResNet(len(classes)).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)

    for epoch in range(args.epochs):
        model.train()
        total = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            outputs = model(images)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        val_loss, accuracy = evaluate(model, val_loader, criterion, device)
        print(
            f"epoch {epoch + 1}/{args.epochs}  loss {total / len(train_loader):.4f}  "
            f"val loss {val_loss:.4f}  val accuracy {accuracy:.3f}"
        )

    torch.save({"model": model.state_dict(), "classes": classes, "epochs": args.epochs}, args.checkpoint)


if __name__ == "__main__":
    main()
