"""CIFAR-10 as an expert writes it by hand, against kuangliu/pytorch-cifar `main.py`: the network that script names,
SGD 0.1 with momentum 0.9 and decay 5e-4, cosine over 200 epochs, batches of 128, random crops and flips, a test after
each epoch and a checkpoint when it was the best.

All images lie on the device as bytes, with their padding; crop, flip and normalisation are one gather there. That is
another implementation of the same augmentation. `--loader` keeps torchvision's, in 14 workers with pinned memory."""

from __future__ import annotations

import argparse
import ast
import importlib
import pickle
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from captured import captured, compiled, in_bf16, resident
from laps import Laps, LateLog, from_public, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

BATCH, PADDING, WORKERS, LOG_EVERY = 128, 4, 14, 10
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def named_network(folder: Path) -> str:
    """The network the script builds: the last `net = Name()` of its main.py."""
    name = "ResNet18"
    for node in ast.parse((folder / "main.py").read_text()).body if (folder / "main.py").exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "net" and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.id if isinstance(called, ast.Name) else name
    return name


def network(given: argparse.Namespace) -> tuple[str, nn.Module]:
    """By the name given, or the script's own. In older commits the models import each other by bare names."""
    from_public(given.public, "pytorch-cifar")
    sys.path.append(str(Path(given.public, "models")))
    name = given.model or named_network(Path(given.public))
    return name, getattr(importlib.import_module("models"), name)()


def read(folder: str | None, names: list[str], made_up: int) -> tuple[Tensor, Tensor]:
    """CIFAR-10's own pickles, images as (n, 32, 32, 3) bytes; without a folder, noise of the same kind."""
    if folder is None:
        return torch.randint(0, 256, (made_up, 32, 32, 3), dtype=torch.uint8), torch.randint(0, 10, (made_up,))
    images, labels = [], []
    for name in names:
        with open(Path(folder) / "cifar-10-batches-py" / name, "rb") as file:
            part = pickle.load(file, encoding="latin1")
        images.append(np.asarray(part["data"]).reshape(-1, 3, 32, 32))
        labels.extend(part["labels"])
    return torch.from_numpy(np.concatenate(images)).permute(0, 2, 3, 1).contiguous(), torch.tensor(labels)


class Pixels:
    """Bytes on the device to normalised images in the layout convolutions want."""

    def __init__(self, device: str) -> None:
        self.scale = 1 / (255 * torch.tensor(STD, device=device))
        self.shift = torch.tensor(MEAN, device=device) / torch.tensor(STD, device=device)
        self.side = torch.arange(32, device=device)

    def __call__(self, images: Tensor) -> Tensor:
        return (images * self.scale - self.shift).permute(0, 3, 1, 2)

    def augmented(self, padded: Tensor, index: Tensor) -> Tensor:
        def chosen(below: int) -> Tensor:
            return torch.randint(0, below, (len(index), 1), device=padded.device)

        across = torch.where(chosen(2).bool(), 31 - self.side, self.side) + chosen(2 * PADDING + 1)
        down = self.side + chosen(2 * PADDING + 1)
        return self(padded[index[:, None, None], down[:, :, None], across[:, None, :]])


def loader(folder: str | None) -> torch.utils.data.DataLoader[tuple[Tensor, Tensor]]:
    try:
        from torchvision import datasets
        from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, ToTensor
    except ImportError:
        raise SystemExit("--loader needs torchvision, which is not installed: leave it out, or install it") from None
    change = Compose([RandomCrop(32, padding=PADDING), RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, STD)])
    dataset = datasets.CIFAR10(folder or ".", train=True, transform=change)
    return torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=WORKERS, pin_memory=True, persistent_workers=True, prefetch_factor=4
    )


def options() -> argparse.Namespace:
    made = parser(__doc__, warmup=900)
    made.add_argument("--public", help="folder of pytorch-cifar, whose networks are used")
    made.add_argument("--data", help="folder that holds cifar-10-batches-py; without it, noise")
    made.add_argument("--model", help="a name in pytorch-cifar's models, instead of the one its main.py names")
    made.add_argument("--batch", type=int, default=BATCH, help="other than the script's for a smoke test only")
    made.add_argument("--loader", action="store_true", help="torchvision's transforms in 14 workers")
    return made.parse_args()


def main() -> None:
    given = options()
    device, is_on_gpu = given.device, torch.device(given.device).type == "cuda"
    name, model = network(given)
    model = model.to(device, memory_format=torch.channels_last)
    torch.backends.cudnn.benchmark = True
    # as a tensor the rate can change between replays of a captured update
    rate = torch.tensor(0.1, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    pixels = Pixels(device)
    tests, test_labels = (one.to(device) for one in read(given.data, ["test_batch"], 10_000 if is_on_gpu else 20))
    fed = loader(given.data) if given.loader else None
    if fed is None:
        names = [f"data_batch_{number}" for number in range(1, 6)]
        images, labels = read(given.data, names, 50_000 if is_on_gpu else 64)
        padded = resident(pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING)), device)
        labels = resident(labels, device)

    def loss_from_images(inputs: Tensor, targets: Tensor) -> Tensor:
        with in_bf16(device):
            return cross_entropy(model(inputs), targets)

    def loss_from_index(index: Tensor) -> Tensor:
        return loss_from_images(pixels.augmented(padded, index), labels[index])

    loss_of = compiled(loss_from_index if fed is None else loss_from_images, device, given.capture)

    def step(*inputs: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(*inputs)
        loss.backward()
        optimizer.step()
        return loss

    def batches() -> Iterator[tuple[Tensor, ...]]:
        if fed is None:
            yield from ((index,) for index in torch.randperm(len(images), device=device).split(given.batch))
            return
        for x, y in fed:
            where = {"device": device, "non_blocking": True}
            yield x.to(memory_format=torch.channels_last, **where), y.to(**where)

    fast_step = captured(step, device, given.capture)
    laps, log, epoch, best = Laps(given), LateLog(device), 0, 0.0
    while True:
        model.train()
        for number, inputs in enumerate(batches()):
            loss = fast_step(*inputs)
            if number % LOG_EVERY == 0:
                log.write(f"epoch {epoch} batch {number}", loss)
            if laps.done(loss):
                laps.report("cifar", model=name, data=given.data is not None, loader=given.loader)
                return
        log.flush()
        right = accuracy(model, pixels, tests, test_labels)
        print(f"epoch {epoch}: test accuracy {right:.4f}")
        if right > best:
            best = right
            with tempfile.TemporaryFile() as file:
                torch.save({"net": model.state_dict(), "acc": right, "epoch": epoch}, file)
        scheduler.step()
        epoch += 1


@torch.no_grad()
def accuracy(model: nn.Module, pixels: Pixels, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with in_bf16(images.device):
        parts = zip(images.split(1000), labels.split(1000), strict=True)
        right = [(model(pixels(x)).argmax(1) == y).sum() for x, y in parts]
    return torch.stack(right).sum().item() / len(labels)


if __name__ == "__main__":
    main()
