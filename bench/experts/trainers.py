"""Two trainings as users of two trainer libraries set them up: what one would pick instead of writing a loop like
cifar.py or resnet50.py. bf16, and `--compile`; the optimizer, the test after each epoch and the loss on the bar are
what the libraries make of them.

`--course cifar` is pytorch-cifar's `main.py`: the network it names, SGD, cosine, loader and transforms. Accelerate
keeps the script's two workers; Lightning gets eight with pinned memory, as its warnings ask for. `--course resnet50` is
bench/courses/resnet50.py, whose images already lie on the device."""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import cifar
import torch
from laps import Laps, course, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset

PACKAGES = {"accelerate": "accelerate", "lightning": "pytorch_lightning"}
Batches = Iterable[Any]


@dataclass(frozen=True)
class Training:
    """What is to be trained, whoever trains it."""

    name: str
    model: nn.Module
    update: Callable[[nn.Module], tuple[torch.optim.Optimizer, LRScheduler]]
    batches: Callable[..., list[Batches]]  # to train on and to test on, by a loader's settings
    is_resident: bool = False  # nothing is left to be moved


def on_cifar(given: argparse.Namespace) -> Training:
    def update(model: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
        return optimizer, CosineAnnealingLR(optimizer, T_max=200)

    def batches(**settings: Any) -> list[Batches]:
        parts = ((True, given.batch or cifar.BATCH), (False, 100))
        return [DataLoader(pictures(given.data, train), size, shuffle=train, **settings) for train, size in parts]

    return Training(*cifar.network(given), update, batches)


def pictures(folder: str | None, is_train: bool) -> Dataset[Any]:
    """CIFAR-10 through torchvision, as the script has it; without a folder, a little noise for a smoke test."""
    if folder is None:
        return TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
    from torchvision import datasets
    from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, ToTensor

    drawn = [RandomCrop(32, padding=cifar.PADDING), RandomHorizontalFlip()] if is_train else []
    change = Compose([*drawn, ToTensor(), Normalize(cifar.MEAN, cifar.STD)])
    return datasets.CIFAR10(folder, train=is_train, transform=change)


def on_resnet50(given: argparse.Namespace) -> Training:
    def update(model: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return optimizer, ConstantLR(optimizer, factor=1.0)

    def batches(**settings: Any) -> list[Batches]:
        size, side = given.batch or (4 if given.small else 256), 32 if given.small else 224
        images = torch.randn(size, 3, side, side, device=given.device)
        return [itertools.repeat((images, torch.randint(0, 1000, (size,), device=given.device))), []]

    return Training("resnet50", course("resnet50").network(given.small), update, batches, is_resident=True)


def accelerate(given: argparse.Namespace, training: Training, laps: Laps, library: ModuleType) -> None:
    is_on_gpu = torch.device(given.device).type == "cuda"
    accelerator = library.Accelerator(
        mixed_precision="bf16" if is_on_gpu else "no",
        dynamo_backend="inductor" if given.compile else "no",
        cpu=not is_on_gpu,
    )
    model, (optimizer, scheduler) = training.model, training.update(training.model)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    train, test = training.batches(num_workers=2)
    if not training.is_resident:
        train, test = accelerator.prepare(train, test)
    while True:
        model.train()
        for inputs, targets in train:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            if laps.done(loss):
                return
        model.eval()
        with torch.no_grad():
            right = sum((model(inputs).argmax(1) == targets).sum().item() for inputs, targets in test)
        accelerator.print(f"right: {right}")
        scheduler.step()


def lightning(given: argparse.Namespace, training: Training, laps: Laps, library: ModuleType) -> None:
    class Classifier(library.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.compile(training.model) if given.compile else training.model

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            loss = cross_entropy(self.model(batch[0]), batch[1])
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            self.trainer.should_stop = laps.done(outputs["loss"])

        def validation_step(self, batch: list[Tensor], number: int) -> None:
            self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean(), prog_bar=True)

        def configure_optimizers(self) -> Any:
            optimizer, scheduler = training.update(self)
            return [optimizer], [scheduler]

    is_on_gpu = torch.device(given.device).type == "cuda"
    workers = {"num_workers": 8, "pin_memory": True, "persistent_workers": True} if is_on_gpu else {}
    train, test = training.batches(**workers)
    trainer = library.Trainer(
        max_epochs=200,
        accelerator="gpu" if is_on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed" if is_on_gpu else "32-true",
        benchmark=True,
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(), train, test or None)


def installed(trainer: str) -> ModuleType:
    try:
        return importlib.import_module(PACKAGES[trainer])
    except ImportError:
        package = PACKAGES[trainer].replace("_", "-")
        raise SystemExit(
            f"--trainer {trainer} needs {package}, which is not installed: pip install {package}"
        ) from None


def main() -> None:
    made = parser(__doc__, warmup=450)
    made.add_argument("--trainer", choices=tuple(PACKAGES), required=True)
    made.add_argument("--course", choices=("cifar", "resnet50"), default="cifar")
    made.add_argument("--compile", action="store_true")
    made.add_argument("--public", help="folder of pytorch-cifar, whose networks are used")
    made.add_argument("--data", help="folder that holds cifar-10-batches-py; without it, noise")
    made.add_argument("--model", help="a name in pytorch-cifar's models, instead of the one its main.py names")
    made.add_argument("--batch", type=int, help="other than the script's for a smoke test only")
    made.add_argument("--small", action="store_true", help="resnet50 as its course has it with --small")
    given = made.parse_args()
    library = installed(given.trainer)
    training = {"cifar": on_cifar, "resnet50": on_resnet50}[given.course](given)
    laps = Laps(given)
    {"accelerate": accelerate, "lightning": lightning}[given.trainer](given, training, laps, library)
    laps.report(given.trainer, model=training.name, compile=given.compile, data=given.data is not None)


if __name__ == "__main__":
    main()
