"""What it costs the training thread to receive a batch from its workers: torch's way, and in memory that is used again.

    python bench/handing_over.py

Two workers make batches of three shapes, nothing is computed from them, and the two ways take turns, each in a process
of its own. Processor time of the thread that draws, and time between batches, a batch. Writes
bench/results/handing-over-MACHINE.json."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from overhead import name_of
from torch.utils.data import DataLoader, Dataset

from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.parts.recycled_batches import recycled_batches

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = {
    "64 x 128 numbers": (64, (128,), torch.int64, 400),
    "128 images of 32 x 32": (128, (3, 32, 32), torch.float32, 300),
    "64 images of 224 x 224": (64, (3, 224, 224), torch.float32, 60),
}
TURNS, WARMUP = 5, 30
WAYS = ("torch", "recycled")


class Made(Dataset):
    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = shape, dtype

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full(self.shape, index % 100, dtype=self.dtype), index


def lap(name: str, way: str) -> dict[str, float]:
    """Microseconds a batch, in this very process."""
    batch, shape, dtype, count = SHAPES[name]
    with recycled_batches() if way == "recycled" else contextlib.nullcontext():
        batches = iter(DataLoader(Made(shape, dtype), batch, num_workers=2))
        for _ in range(WARMUP):
            next(batches)
    busy, began = time.thread_time(), time.perf_counter()
    for _ in range(count):
        values, numbers = next(batches)
        assert values[0].flatten()[0] == numbers[0] % 100
    took = time.thread_time() - busy, time.perf_counter() - began
    return {key: 1e6 * seconds / count for key, seconds in zip(("thread", "between"), took, strict=True)}


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(lap(*sys.argv[1:])), flush=True)
        os._exit(0)  # the workers end with it
    laps: list[dict[str, Any]] = []
    for name in SHAPES:
        for turn in range(TURNS):
            for way in WAYS if turn % 2 else reversed(WAYS):
                made = subprocess.run([sys.executable, __file__, name, way], capture_output=True, text=True, check=True)
                laps.append({"batch": name, "way": way, "turn": turn, **json.loads(made.stdout)})
        told = {way: [one for one in laps if one["batch"] == name and one["way"] == way] for way in WAYS}
        for key in ("thread", "between"):
            plain, ours = (statistics.median(one[key] for one in told[way]) for way in WAYS)
            print(f"{name:24} {key:8} torch {plain:7.0f} us   recycled {ours:7.0f} us   {plain / ours:.1f}x")
    about = vars(facts(Target("bench/handing_over.py"), len(laps), "run")) | {"command": "python bench/handing_over.py"}
    path = RESULTS / f"handing-over-{name_of(about['hardware'])}.json"
    rounded = [{key: round(value) if isinstance(value, float) else value for key, value in one.items()} for one in laps]
    path.write_text(json.dumps({"kind": "handing over", "facts": about, "laps": rounded}, indent=1) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
