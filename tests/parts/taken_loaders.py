"""Loaders whose images are finished in batches, on the processor, and everything that they and their script draw."""

from __future__ import annotations

import random

import numpy
import torch
from torch.utils.data import DataLoader

from hotlap.parts.device_batches import DeviceBatches

CPU = torch.device("cpu")


class Heard:
    """A judge that remembers."""

    def __init__(self, limit: float = 1.0) -> None:
        self.differences, self.limit = [], limit

    @property
    def failed(self) -> bool:
        return any(not one <= self.limit for one in self.differences)

    def add(self, difference: float) -> None:
        self.differences.append(difference)


class Taken:
    """A process whose loaders are taken over."""

    def __init__(self) -> None:
        self.judge, self.reasons = Heard(), []
        self.batches = DeviceBatches(self.judge, self.reasons.append, place=lambda: CPU)
        self.finished = 0
        original = self.batches._on_device

        def on_device(*args):
            batch = original(*args)
            self.finished += isinstance(batch, list)
            return batch

        self.batches._on_device = on_device


def seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def drawn(dataset, epochs: int = 3, between=None, number: int = 5, **options) -> list:
    """Everything the loader gives, errors included, and what the script would draw afterwards."""
    seed(number)
    options = {"batch_size": 4, "shuffle": True, **options}
    loader = DataLoader(dataset, **options)
    found = []
    for epoch in range(epochs):
        if between is not None:
            between(dataset, epoch)
        iterator = iter(loader)
        while True:
            try:
                images, labels = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                found.append(type(error))
                continue
            found.append((labels.tolist(), numpy.asarray(images).tobytes()))
            images.fill_(-1)
    return [*found, torch.rand(1).item(), random.random(), numpy.random.rand()]
