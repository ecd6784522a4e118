"""MNIST as an expert writes it by hand, against pytorch/examples `mnist/main.py`: the same network, Adadelta at 1.0,
StepLR 0.7, batches of 64, every image once an epoch, a line every 10 batches, a test after each epoch.

All images lie on the device, normalised once, in bf16; a batch is gathered there by index."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import torch
from captured import captured, compiled, in_bf16, resident
from laps import Laps, LateLog, from_public, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

BATCH, LOG_EVERY, MEAN, STD = 64, 10, 0.1307, 0.3081


def read(folder: str | None, part: str, made_up: int) -> tuple[Tensor, Tensor]:
    """MNIST's own files below a folder; without one, noise of the same kind."""
    if folder is None:
        return torch.randint(0, 256, (made_up, 28, 28), dtype=torch.uint8), torch.randint(0, 10, (made_up,))
    raw = Path(folder) / "MNIST" / "raw"
    images = np.fromfile(raw / f"{part}-images-idx3-ubyte", dtype=np.uint8, offset=16).reshape(-1, 28, 28)
    labels = np.fromfile(raw / f"{part}-labels-idx1-ubyte", dtype=np.uint8, offset=8)
    return torch.from_numpy(images), torch.from_numpy(labels).long()


def network(public: str | None) -> nn.Module:
    """The script's own ends in log-probabilities, which cross entropy leaves as they are."""
    if public is not None:
        from_public(public, "examples/mnist")
        return importlib.import_module("main").Net()
    features = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    classes = [nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    return nn.Sequential(*features, *classes)


def main() -> None:
    options = parser(__doc__, warmup=2000)
    options.add_argument("--public", help="folder of examples/mnist: its own network instead of an equal one")
    options.add_argument("--data", help="folder that holds MNIST/raw; without it, noise")
    given = options.parse_args()
    device, is_on_gpu = given.device, torch.device(given.device).type == "cuda"
    torch.backends.cudnn.benchmark = True

    def prepared(part: str, made_up: int) -> tuple[Tensor, Tensor]:
        images, labels = read(given.data, part, made_up)
        normal = (images.to(device).unsqueeze(1).float() / 255 - MEAN) / STD
        return resident(normal.bfloat16() if is_on_gpu else normal, device), resident(labels, device)

    images, labels = prepared("train", 60_000 if is_on_gpu else 640)
    test_images, test_labels = prepared("t10k", 10_000 if is_on_gpu else 100)
    model = network(given.public).to(device, memory_format=torch.channels_last)
    # as a tensor the rate can change between replays of a captured update
    optimizer = torch.optim.Adadelta(model.parameters(), lr=torch.tensor(1.0, device=device), capturable=is_on_gpu)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    def loss_of(index: Tensor) -> Tensor:
        with in_bf16(device):
            return cross_entropy(model(images[index]), labels[index])

    fast_loss_of = compiled(loss_of, device, given.capture)

    def step(index: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = fast_loss_of(index)
        loss.backward()
        optimizer.step()
        return loss

    fast_step = captured(step, device, given.capture)
    laps, log, epoch = Laps(given), LateLog(device), 0
    while True:
        epoch += 1
        model.train()
        for number, index in enumerate(torch.randperm(len(images), device=device).split(BATCH)):
            loss = fast_step(index)
            if number % LOG_EVERY == 0:
                log.write(f"epoch {epoch} batch {number}", loss)
            if laps.done(loss):
                laps.report("mnist", data=given.data is not None)
                return
        scheduler.step()
        log.flush()
        print(f"epoch {epoch}: test accuracy {accuracy(model, test_images, test_labels):.4f}")


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with in_bf16(images.device):
        right = [(model(x).argmax(1) == y).sum() for x, y in zip(images.split(5000), labels.split(5000), strict=True)]
    return torch.stack(right).sum().item() / len(labels)


if __name__ == "__main__":
    main()
