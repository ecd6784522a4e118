"""Which number formats a chip computes fast, by compute capability: Volta to Blackwell, and AMD's by name."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.observe.machine import Gpu


@dataclass(frozen=True)
class Chip:
    family: str
    dtypes: tuple[str, ...]  # those with matrix units of their own, the most useful for training first


# highest first: the first row not above the device's capability is its chip
NVIDIA: tuple[tuple[tuple[int, int], Chip], ...] = (
    ((12, 0), Chip("Blackwell", ("bf16", "fp16", "tf32", "fp8", "fp4"))),
    ((10, 0), Chip("Blackwell", ("bf16", "fp16", "tf32", "fp8", "fp4"))),
    ((9, 0), Chip("Hopper", ("bf16", "fp16", "tf32", "fp8"))),
    ((8, 9), Chip("Ada", ("bf16", "fp16", "tf32", "fp8"))),
    ((8, 0), Chip("Ampere", ("bf16", "fp16", "tf32"))),
    ((7, 5), Chip("Turing", ("fp16",))),
    ((7, 0), Chip("Volta", ("fp16",))),
    ((0, 0), Chip("older than Volta", ())),
)
AMD: dict[str, Chip] = {
    "gfx908": Chip("CDNA 1", ("fp16", "bf16")),
    "gfx90a": Chip("CDNA 2", ("bf16", "fp16")),
    "gfx942": Chip("CDNA 3", ("bf16", "fp16", "tf32", "fp8")),
    "gfx950": Chip("CDNA 4", ("bf16", "fp16", "fp8", "fp4")),
    "gfx11": Chip("RDNA 3", ("bf16", "fp16")),
    "gfx12": Chip("RDNA 4", ("bf16", "fp16", "fp8")),
}


def chip_of(gpu: Gpu) -> Chip | None:
    """The chip's row, or None for one the table does not know."""
    if gpu.capability is not None:
        return next(chip for lowest, chip in NVIDIA if gpu.capability >= lowest)
    return next((chip for name, chip in AMD.items() if name in gpu.name), None)
