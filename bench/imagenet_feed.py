"""Images a second from JPEG files to a training batch on the device, by several loaders, in one run.

    python bench/imagenet_feed.py --minutes 8
    python bench/imagenet_feed.py --small          # on a processor, in a minute

Photo-like files of 500 x 375, made here, in a folder of ten classes; each becomes a random crop of 224 x 224, flipped
by chance and normalised. Few of the files differ: the others are links to them, so that an epoch is long and all is
read from memory. The plain DataLoader is tried with several numbers of workers, and the best counts; "by hand" is
nvJPEG through torchvision with its v2 transforms on the device. All take turns, in an order drawn anew; a loader is
started for its turn, drawn from until it is warm, and ended after it. What is not installed is listed with the reason.
Nothing is trained: this is how fast each feeds a loop that costs nothing. Writes bench/results/feed-MACHINE.json."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import feeders
import numpy as np
import torch
from decoding import photo
from exhaustive import machine_name
from feeders import Batches, Missing, Wanted

from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.report import figures

HERE = Path(__file__).resolve().parent
CLASSES = 10


@dataclass
class Feeder:
    """One way to feed, and the images a second of each of its turns."""

    name: str
    start: Callable[[Wanted], Batches]
    rates: list[float] = field(default_factory=list)
    missing: str = ""


def make_photos(folder: Path, count: int, different: int) -> None:
    """So many names, for only some files: what is in a picture does not matter here."""
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / f"class{number % CLASSES}"
        place.mkdir(exist_ok=True)
        first = number % different
        if number == first:
            (place / f"{number:06d}.jpg").write_bytes(photo(rng))
        else:
            os.link(folder / f"class{first % CLASSES}" / f"{first:06d}.jpg", place / f"{number:06d}.jpg")


def worker_numbers(cores: int) -> list[int]:
    """A quarter, a half and all of the cores, and one more try in between; at least one."""
    return sorted({max(1, round(cores * share)) for share in (0.25, 0.5, 0.75, 1.0)})


def all_feeders(cores: int) -> list[Feeder]:
    """What the device does needs fewer workers: they only read."""
    ways: list[tuple[str, Callable[..., Batches], list[int]]] = [
        ("DataLoader", feeders.plain, worker_numbers(cores)),
        ("by hand on the device", feeders.by_hand, worker_numbers(cores)[:2]),
        ("hotlap ImageLoader", feeders.hotlap, worker_numbers(cores)[:2]),
    ]
    numbered = [
        Feeder(f"{name}, {figures.plural(number, 'worker')}", partial(start, workers=number))
        for name, start, numbers in ways
        for number in numbers
    ]
    return [*numbered, Feeder("DALI", feeders.dali), Feeder("FFCV", feeders.ffcv)]


def rate(batches: Iterator[Any], device: str, warmup_seconds: float, seconds: float) -> float:
    """Images a second over a window that opens and closes with the device at rest."""
    wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    began = time.perf_counter()
    for _ in range(2):
        next(batches)
    while time.perf_counter() - began < warmup_seconds:
        next(batches)
    wait()
    opened, images = time.perf_counter(), 0
    while time.perf_counter() - opened < seconds:
        images += len(next(batches)[0])
    wait()
    return images / (time.perf_counter() - opened)


def take_turns(all_: Sequence[Feeder], wanted: Wanted, given: argparse.Namespace, until: float) -> None:
    """One that cannot run is out, with the reason; a turn that would end too late is not begun."""
    longest: dict[str, float] = {}
    for turn in range(given.turns):
        for feeder in random.Random(turn).sample(list(all_), len(all_)):
            began = time.monotonic()
            if feeder.missing or began + longest.get(feeder.name, given.warmup + given.seconds) > until:
                continue
            try:
                batches = feeder.start(wanted)
                try:
                    feeder.rates.append(rate(batches, wanted.device, given.warmup, given.seconds))
                finally:
                    batches.close()
            except Missing as missing:
                feeder.missing = str(missing)
            except Exception as error:
                feeder.missing = f"{type(error).__name__}: {error}".split("\n")[0]
            longest[feeder.name] = max(longest.get(feeder.name, 0.0), time.monotonic() - began)
            said = f"{feeder.rates[-1]:.0f} images/s" if not feeder.missing else f"left out: {feeder.missing}"
            print(f"turn {turn + 1}: {feeder.name:<34} {said}", file=sys.stderr, flush=True)


def rows(all_: Sequence[Feeder]) -> list[dict[str, Any]]:
    """The fastest first; `beside_plain` against the best DataLoader, which is picked by the same turns."""
    timed = [one for one in all_ if one.rates]
    plain = max((statistics.median(one.rates) for one in timed if one.name.startswith("DataLoader")), default=math.nan)
    found = []
    for one in sorted(timed, key=lambda one: -statistics.median(one.rates)):
        middle = statistics.median(one.rates)
        beside = middle / plain if math.isfinite(plain) else None
        low, high = min(one.rates), max(one.rates)
        found.append({"feeder": one.name, "images_a_second": middle, "low": low, "high": high})
        found[-1] |= {"beside_plain": beside, "turns": one.rates}
    return found


def show(found: Sequence[dict[str, Any]], missing: dict[str, str]) -> None:
    print(f"{'':<34}{'images/s':>9}  {'lowest to highest':<20}{'x DataLoader':>13}")
    for one in found:
        spread = f"{one['low']:.0f} to {one['high']:.0f}"
        beside = f"{one['beside_plain']:.2f}" if one["beside_plain"] else "-"
        print(f"{one['feeder']:<34}{one['images_a_second']:>9.0f}  {spread:<20}{beside:>13}")
    for name, why in missing.items():
        print(f"{name}: left out ({why})")


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="of photos, one folder a class; else they are made")
    parser.add_argument("--images", type=int, default=51200, help="names to make")
    parser.add_argument("--different", type=int, default=256, help="files behind them")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn that are measured")
    parser.add_argument("--warmup", type=float, default=6.0, help="seconds before them")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf, help="for everything")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true", help="few files and short turns, to try it out")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for the record")
    given = parser.parse_args(arguments)
    if given.small:
        given.images, given.different, given.batch, given.seconds, given.warmup, given.turns = 60, 6, 8, 1.0, 0.5, 2
    given.words = list(arguments)
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    given = options(sys.argv[1:] if arguments is None else arguments)
    until = time.monotonic() + 60 * given.minutes
    cores = len(os.sched_getaffinity(0))
    found = all_feeders(cores)
    with tempfile.TemporaryDirectory(prefix="hotlap-feed-") as made:
        if given.folder is None:
            make_photos(Path(made), given.images, given.different)
        wanted = Wanted(given.folder or Path(made), given.batch, given.device, cores)
        take_turns(found, wanted, given, until)
    missing = {one.name: one.missing or "no time was left" for one in found if not one.rates}
    show(rows(found), missing)
    about = vars(facts(Target("bench/imagenet_feed.py"), sum(len(one.rates) for one in found), "run"))
    words = [os.path.basename(word) if os.path.isabs(word) else word for word in given.words]
    about |= {"command": shlex.join(["python", "bench/imagenet_feed.py", *words])}
    result = {"kind": "feed", "facts": about, "cores": cores, "batch": given.batch, "transform": feeders.pictured_by()}
    path = given.results / f"feed-{machine_name()}{'-small' if given.small else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result | {"results": rows(found), "missing": missing}, indent=1) + "\n")
    print(f"wrote {path.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
