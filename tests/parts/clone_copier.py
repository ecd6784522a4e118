"""A copier for machines without a device: it clones, and remembers what it was asked. It stands for "meta", the one
device besides the CPU that every torch can move to; a tensor that torch itself moved there has no values."""

from __future__ import annotations

import threading
from typing import Any

import torch

META = torch.device("meta")


class CloneCopier:
    device = META

    def __init__(self, room_bytes: int = 1 << 30) -> None:
        self.room_bytes = room_bytes
        self.copied: list[torch.Tensor] = []
        self.handed: list[torch.Tensor] = []
        self.threads: set[str] = set()

    def __call__(self, device: torch.device) -> CloneCopier | None:
        """As `copiers` of the parts: for every device of its kind."""
        return self if device == self.device else None

    def copy(self, tensors: Any) -> list[Any]:
        self.threads.add(threading.current_thread().name)
        clones = [tensor.clone() for tensor in tensors]
        self.copied += clones
        return clones

    def hand_over(self, made: Any, blocking: bool) -> torch.Tensor:
        self.handed.append(made)
        return made
