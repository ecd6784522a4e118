"""What watching costs a step: the same loop in one process, with and without it, in turns.

Two processes differ by more than watching costs, so the watch is put on and taken off between blocks of steps of one
process, in the order A B B A: twenty alternations, each the median over some turns. `run` is the pulse that
`hotlap run` keeps with an empty plan, `record` the watch of a trial, `profile` all that `hotlap profile` does while it
times; for the last two the shortest step is told of which they take 3 %. With a GPU the loop runs there, and the
host is what limits it. Writes bench/results/overhead-MACHINE.json."""

from __future__ import annotations

import atexit
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from hotlap.drive import Pulse
from hotlap.measure.stats import student_quantile
from hotlap.measure.tune import facts
from hotlap.observe.attach import Attached
from hotlap.observe.launch import Target
from hotlap.observe.scrutiny import Scrutiny
from hotlap.observe.watch import Watch

ALTERNATIONS, BATCHES, UNSETTLED = 20, 64, 24
# From 3.12 on Python gives up caching a class that was patched a thousand times: fewer, longer turns there.
TURNS, EPOCHS = (8, 1) if sys.version_info < (3, 12) else (1, 8)
WIDTHS = {"short steps": 64, "longer steps": 384}
ALLOWED = {"run": (0.01, 20e-6), "record": (0.03, 0.0), "profile": (0.03, 0.0)}  # of a step, or seconds
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def close_watch(patch: Any) -> Watch:
    """As a profile's child does it, with its files in a folder of their own."""
    folder = tempfile.mkdtemp(prefix="hotlap-overhead-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    watch = Watch(patch, lambda count: scrutiny.step(count), closely=True, folder=folder)
    scrutiny = Scrutiny(patch, watch, folder)
    return watch


WATCHES: dict[str, Any] = {"run": Pulse, "record": Watch, "profile": close_watch}


class Loop:
    """A plain training loop that times itself."""

    def __init__(self, width: int) -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(32 * BATCHES, width), torch.randint(0, 10, (32 * BATCHES,)))
        self.model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 10)).to(
            DEVICE
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(data, batch_size=32, shuffle=True)

    def step_seconds(self) -> float:
        """The lower quartile of one epoch's steps, since disturbances only ever add; without the first ones, in which
        roots are looked for and draws are probed."""
        times = []
        for x, y in self.loader:
            x, y = x.to(DEVICE), y.to(DEVICE)
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            times.append(time.perf_counter())
        return statistics.quantiles([b - a for a, b in pairwise(times[UNSETTLED:])], n=4)[0]


@contextmanager
def watched(kind: Any) -> Iterator[None]:
    attached = Attached([], kind)
    try:
        yield
    finally:
        attached.detach()


def measure(loop: Loop, kind: Any) -> list[tuple[float, float]]:
    """Each alternation as (step without, what watching added)."""
    found = []
    for number in range(ALTERNATIONS):
        plain, added = [], []
        for turn in range(TURNS):
            taken = {}
            for on in (False, True) if (number + turn) % 2 == 0 else (True, False):
                with watched(kind) if on else nullcontext():
                    taken[on] = statistics.median(loop.step_seconds() for _ in range(EPOCHS))
            plain.append(taken[False])
            added.append(taken[True] - taken[False])
        found.append((statistics.median(plain), statistics.median(added)))
    return found


def name_of(hardware: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", hardware.split(",")[0].lower()).strip("-")


def pair(name: str, watch: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    loop = Loop(WIDTHS[name])
    loop.step_seconds()
    pairs = measure(loop, WATCHES[watch])
    differences = [added for _, added in pairs]
    plain, mean = statistics.median(step for step, _ in pairs), statistics.fmean(differences)
    reach = student_quantile(0.975, ALTERNATIONS - 1) * statistics.stdev(differences) / math.sqrt(ALTERNATIONS)
    share, least = ALLOWED[watch]
    allowed, shortest = max(share * plain, least), max(0.0, mean + reach) / share
    print(
        f"{name:<13} {1e6 * plain:6.0f} us   {watch:<7} adds {1e6 * mean:5.1f} us "
        f"({1e6 * (mean - reach):.1f} to {1e6 * (mean + reach):.1f}), "
        f"{'within' if mean + reach <= allowed else 'not within'} {1e6 * allowed:.0f} us; "
        f"{100 * share:.0f} % from {1e3 * shortest:.2f} ms on",
        file=sys.stderr,
    )
    figures = {"added_seconds": mean, "low": mean - reach, "high": mean + reach, "allowed": allowed}
    figures["shortest_step_seconds"] = shortest
    return {"loop": name, "watch": watch, "step_seconds": plain, **figures, "alternations": pairs}


def main() -> None:
    """Each pair of loop and watch in a process of its own."""
    results = []
    for name in WIDTHS:
        for watch in WATCHES:
            done = subprocess.run(
                [sys.executable, __file__, name, watch], stdout=subprocess.PIPE, text=True, check=True
            )
            results.append(json.loads(done.stdout))
    about = facts(Target("bench/overhead.py"), len(results) * 2 * ALTERNATIONS, "run")
    folder = Path(__file__).resolve().parent / "results"
    folder.mkdir(exist_ok=True)
    about_overhead = {**vars(about), "command": "make bench"}
    (folder / f"overhead-{name_of(about.hardware)}.json").write_text(
        json.dumps({"facts": about_overhead, "results": results}, indent=1) + "\n"
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(pair(*sys.argv[1:])))
    else:
        main()
