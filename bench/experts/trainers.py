"""The training of pytorch-cifar's `main.py` as users of two trainer libraries set it up: what one would pick instead of
writing a loop like cifar.py. The script's network, SGD, cosine, loader and transforms; bf16, and `--compile`.

Accelerate keeps the script's two workers; Lightning gets eight with pinned memory, as its warnings ask for. The
optimizer, the test after each epoch and the loss on the bar are what the libraries make of them."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import torch
from cifar import BATCH, MEAN, PADDING, STD, named_network
from laps import Laps, from_public, parser
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, TensorDataset


def dataset(folder: str | None, is_train: bool) -> Dataset[Any]:
    """CIFAR-10 through torchvision, as the script has it; without a folder, a little noise for a smoke test."""
    if folder is None:
        return TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,)))
    from torchvision import datasets
    from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, ToTensor

    drawn = [RandomCrop(32, padding=PADDING), RandomHorizontalFlip()] if is_train else []
    return datasets.CIFAR10(folder, train=is_train, transform=Compose([*drawn, ToTensor(), Normalize(MEAN, STD)]))


def loaders(given: argparse.Namespace, **settings: Any) -> list[DataLoader[Any]]:
    parts = ((True, given.batch), (False, 100))
    return [DataLoader(dataset(given.data, train), size, shuffle=train, **settings) for train, size in parts]


def sgd(model: nn.Module) -> tuple[torch.optim.Optimizer, CosineAnnealingLR]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    return optimizer, CosineAnnealingLR(optimizer, T_max=200)


def accelerate(given: argparse.Namespace, model: nn.Module, laps: Laps) -> None:
    from accelerate import Accelerator

    is_on_gpu = torch.device(given.device).type == "cuda"
    accelerator = Accelerator(
        mixed_precision="bf16" if is_on_gpu else "no",
        dynamo_backend="inductor" if given.compile else "no",
        cpu=not is_on_gpu,
    )
    optimizer, scheduler = sgd(model)
    model, optimizer, scheduler, train, test = accelerator.prepare(
        model, optimizer, scheduler, *loaders(given, num_workers=2)
    )
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


def lightning(given: argparse.Namespace, model: nn.Module, laps: Laps) -> None:
    import pytorch_lightning as pl

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = torch.compile(model) if given.compile else model

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            loss = cross_entropy(self.model(batch[0]), batch[1])
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
            self.trainer.should_stop = laps.done(outputs["loss"])

        def validation_step(self, batch: list[Tensor], number: int) -> None:
            self.log("accuracy", (self.model(batch[0]).argmax(1) == batch[1]).float().mean(), prog_bar=True)

        def configure_optimizers(self) -> Any:
            optimizer, scheduler = sgd(self)
            return [optimizer], [scheduler]

    is_on_gpu = torch.device(given.device).type == "cuda"
    train, test = (
        loaders(given, num_workers=8, pin_memory=True, persistent_workers=True) if is_on_gpu else loaders(given)
    )
    trainer = pl.Trainer(
        max_epochs=200,
        accelerator="gpu" if is_on_gpu else "cpu",
        devices=1,
        precision="bf16-mixed" if is_on_gpu else "32-true",
        benchmark=True,
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(Classifier(), train, test)


def main() -> None:
    made = parser(__doc__, warmup=450)
    made.add_argument("--trainer", choices=("accelerate", "lightning"), required=True)
    made.add_argument("--compile", action="store_true")
    made.add_argument("--public", help="folder of pytorch-cifar, whose networks are used")
    made.add_argument("--data", help="folder that holds cifar-10-batches-py; without it, noise")
    made.add_argument("--model", help="a name in pytorch-cifar's models, instead of the one its main.py names")
    made.add_argument("--batch", type=int, default=BATCH, help="other than the script's for a smoke test only")
    given = made.parse_args()
    from_public(given.public, "pytorch-cifar")
    name = given.model or named_network(Path(given.public))
    model, laps = getattr(importlib.import_module("models"), name)(), Laps(given)
    {"accelerate": accelerate, "lightning": lightning}[given.trainer](given, model, laps)
    laps.report(given.trainer, model=name, compile=given.compile, data=given.data is not None)


if __name__ == "__main__":
    main()
