"""Step times of many identical processes, for the simulation in tests/measure/test_recorded_series.py.

    python bench/series.py            record two kinds of loop here: 24 short processes each, one thread, in turns
    python bench/series.py reports    take the identical processes out of the tune reports in bench/results

What else the machine does meanwhile is part of what is recorded: its load is noted beside each process, and how long
the process stood waiting for a core, from which the tool tells a disturbed trial. Writes
tests/measure/series/*.json."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.observe.meters import queue_seconds

PROCESSES, SECONDS = 24, 1.8
HERE = Path(__file__).resolve().parent
SERIES = HERE.parent / "tests" / "measure" / "series"


def cnn() -> tuple[nn.Module, torch.Tensor]:
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), torch.randn(56, 3, 32, 32)


def mlp() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(384, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)), (
        torch.randn(128, 384)
    )


KINDS = {"cnn": cnn, "mlp": mlp}


def train(kind: str) -> dict[str, Any]:
    """One process: a plain loop that notes when each step ended."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, x = KINDS[kind]()
    y = torch.randint(0, 10, (len(x),))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    queued, load = queue_seconds(), os.getloadavg()[0]
    ends = [time.perf_counter()]
    while ends[-1] - ends[0] < SECONDS:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        ends.append(time.perf_counter())
    return {
        "step_ms": [figure(1e3 * (b - a)) for a, b in pairwise(ends)],
        "queue_seconds": figure(queue_seconds() - queued),
        "wall_seconds": figure(ends[-1] - ends[0]),
        "threads": 1,
        "load": load,
    }


def figure(value: float) -> float:
    return float(f"{value:.4g}")


def record() -> None:
    """Kinds in turns, each process forked from one that holds torch imported and nothing else, as trials are."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    context = multiprocessing.get_context("fork")
    for _ in range(PROCESSES):
        for kind in KINDS:
            with context.Pool(1) as pool:
                found[kind].append(pool.apply(train, (kind,)))
    about = vars(facts(Target("bench/series.py"), PROCESSES)) | {"command": "python bench/series.py"}
    for kind, processes in found.items():
        write(f"{kind}-cpu", about, processes)


def extract() -> None:
    """The script itself and the confirmed plan are two groups of each report; what was tried once is none."""
    for path in sorted((HERE / "results").glob("*-h200.json")):
        report = json.loads(path.read_text())
        trials = report.get("trials", [])
        plain = [t for t in trials if t["role"] in ("baseline", "confirm") and t["label"] != "plan"]
        for name, group in (("script", plain), ("plan", [t for t in trials if t["label"] == "plan"])):
            if len(group) < 6:  # too few processes to draw from
                continue
            processes = [{"step_ms": [figure(1e3 * s) for s in trial["step_seconds"]]} for trial in group]
            write(f"{path.stem}-{name}", report["facts"], processes)


def write(name: str, about: dict[str, Any], processes: list[dict[str, Any]]) -> None:
    SERIES.mkdir(exist_ok=True)
    rows = ",\n".join(json.dumps(process, separators=(",", ":")) for process in processes)
    (SERIES / f"{name}.json").write_text(f'{{"facts": {json.dumps(about)},\n"processes": [\n{rows}\n]}}\n')
    print(f"{name}: {len(processes)} processes")


if __name__ == "__main__":
    extract() if sys.argv[1:] == ["reports"] else record()
