"""Train a convolutional network on small pictures held in memory."""

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HERE = Path(__file__).resolve().parent
CLASSES = 16
TRAIN, VAL = 4000, 640


def make_pictures(root):
    """Write the pictures beside their final place and move them there in one go."""
    root.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=root.name + ".", dir=root.parent))
    try:
        rng = np.random.default_rng(0)
        patterns = rng.normal(0, 1, (CLASSES, 3, 8, 8))
        labels = np.arange(TRAIN + VAL) % CLASSES
        coarse = 0.6 * patterns[labels] + rng.normal(0, 1, (len(labels), 3, 8, 8))
        fine = coarse.repeat(4, axis=2).repeat(4, axis=3) + rng.normal(0, 0.5, (len(labels), 3, 32, 32))
        images = (128 + 40 * fine).clip(0, 255).astype(np.uint8)
        torch.save({"images": torch.from_numpy(images), "labels": torch.from_numpy(labels)}, unfinished / "pictures.pt")
        os.chmod(unfinished, 0o755)
        try:
            os.rename(unfinished, root)
        except OSError:
            if not root.is_dir():  # otherwise another run was faster
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


class Pictures(Dataset):
    """uint8 pictures in memory; a whole batch is gathered at once."""

    def __init__(self, images, labels):
        self.images = images
        self.labels = labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __getitems__(self, indices):
        indices = torch.as_tensor(indices)
        return self.images[indices], self.labels[indices]


def as_is(batch):
    return batch


def loader_of(dataset, args, device, train):
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=train,
        drop_last=train,
        collate_fn=as_is,
        num_workers=args.workers,
        persistent_workers=args.workers > 0,
        pin_memory=device.type == "cuda",
    )


def conv(inside, outside, stride):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class Network(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(
            conv(3, width, 1),
            conv(width, width * 2, 2),
            conv(width * 2, width * 4, 2),
            conv(width * 4, width * 4, 1),
            conv(width * 4, width * 8, 2),
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(width * 8, CLASSES)
        # pictures arrive as bytes and are normalised on the device, a batch at a time
        self.register_buffer("mean", torch.tensor(128.0), persistent=False)
        self.register_buffer("std", torch.tensor(60.0), persistent=False)

    def forward(self, images):
        x = (images.float() - self.mean) / self.std
        return self.head(self.pool(self.features(x)).flatten(1))


def to_device(batch, device):
    images, labels = batch
    images = images.to(device, non_blocking=True, memory_format=torch.channels_last)
    return images, labels.to(device, non_blocking=True)


@torch.no_grad()
def evaluate(model, loader, device, autocast):
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=device)
    for batch in loader:
        images, labels = to_device(batch, device)
        with autocast():
            outputs = model(images)
        correct += (outputs.argmax(1) == labels).sum()
    return correct.item() / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data" / "good", help="folder with pictures.pt")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--accumulate", type=int, default=4, help="batches per update")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=0, help="the pictures are in memory: none is fastest")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=TRAIN, help="use at most this many pictures")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # every batch has the same size

    precision = args.precision
    if precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.get_device_capability()[0] >= 8
        precision = "bf16" if bf16 else "fp16" if device.type == "cuda" else "fp32"
    half = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    def autocast():
        return torch.autocast(device.type, dtype=half, enabled=half is not torch.float32)

    if not args.data.is_dir():
        print(f"making pictures in {args.data}")
        make_pictures(args.data)
    saved = torch.load(args.data / "pictures.pt")
    images, labels = saved["images"], saved["labels"]
    train_set = Pictures(images[:TRAIN][: args.limit], labels[:TRAIN][: args.limit])
    val_set = Pictures(images[TRAIN:][: args.limit], labels[TRAIN:][: args.limit])
    train_loader = loader_of(train_set, args, device, train=True)
    val_loader = loader_of(val_set, args, device, train=False)

    model = Network().to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda" and half is torch.float16)

    batches = len(train_loader)
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros((), device=device)
        for i, batch in enumerate(train_loader):
            pictures, targets = to_device(batch, device)
            with autocast():
                loss = criterion(model(pictures), targets)
            first = i - i % args.accumulate
            group = min(args.accumulate, batches - first)  # the last group may be smaller
            scaler.scale(loss / group).backward()
            total += loss.detach()
            if i + 1 == first + group:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
        accuracy = evaluate(model, val_loader, device, autocast)
        print(f"epoch {epoch + 1}/{args.epochs}  loss {total.item() / batches:.4f}  val accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
