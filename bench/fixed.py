"""Plain `python` on the script that `fix --plan` wrote, against `hotlap run` on the script as it was.

A bundled example is copied with a plan as `tune` keeps one. `hotlap fix --plan` writes the plan into a second copy, and
the two are run in turns, A B B A: the whole run from outside, and the step, from the time between the first line an
epoch prints and the last one's. A ratio below 1 says that the fixed script is slower than `hotlap run`. A round in
which either took half as long again as the median of all runs is disturbed: it stays on record, and does not count,
whichever of the two it hit. Writes bench/results/fixed-MACHINE.json.

    python bench/fixed.py [--rounds 8] [--epochs 12] [--plan hotlap.toml]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hotlap import plan as plans
from hotlap.measure.stats import student_quantile
from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.plan import Entry, Plan

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "photos.py"
ENOUGH, DISTURBED = 0.95, 1.5
CORES = os.cpu_count() or 1
KEPT = [
    Entry("sample-cache", {}, 1.0),
    Entry("loader-workers", {"num_workers": CORES, "persistent_workers": True}, 1.0),
    Entry("channels-last", {}, 1.0),
    Entry("fused-optimizer", {}, 1.0),
]


def two_copies(folder: Path, given: str) -> tuple[Path, Path, list[Entry]]:
    """The script beside its plan, and the same with the plan written into it and no plan beside it."""
    original, fixed = folder / "original" / SCRIPT, folder / "fixed" / SCRIPT
    for path in (original, fixed):
        path.parent.mkdir()
        shutil.copy(ROOT / "examples" / SCRIPT, path)
    entries = next(one.entries for one in plans.read_file(given) if one.script == SCRIPT) if given else KEPT
    about = facts(Target(str(original)), 0, "run")
    words = (about.date, about.hardware, about.torch, "")
    plan = Plan(SCRIPT, plans.fingerprint(str(original)), "", *words, 1.0, 1.0, 1.0, entries)
    written = plans.write(str(fixed), plan)
    hotlap("fix", "--plan", written, str(fixed))
    os.unlink(written)
    plans.write(str(original), plan)
    return original, fixed, entries


def hotlap(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "hotlap", *arguments], check=True)


def processor_seconds() -> float:
    """What ended children used of the processors, their workers included: less moved by other programs than time is."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: list[str], epochs: int) -> dict[str, Any]:
    """One whole run: its seconds from outside, and those of one epoch, the first left out."""
    used, started, lines = processor_seconds(), time.perf_counter(), []
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            lines.append((time.perf_counter(), line))
        said = process.stderr.read()
    seconds = time.perf_counter() - started
    printed = [at for at, line in lines if line.startswith("epoch ")]
    if process.returncode or len(printed) != epochs:
        raise SystemExit(f"{command} ended with {process.returncode}: {said}")
    updates = re.search(r"(\d+) updates", said)
    return {
        "seconds": seconds,
        "processor_seconds": processor_seconds() - used,
        "epoch_seconds": (printed[-1] - printed[0]) / (epochs - 1),
        "updates": int(updates[1]) if updates else None,
    }


def undisturbed(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    usual = statistics.median(one["seconds"] for pair in pairs for one in pair)
    return [pair for pair in pairs if max(one["seconds"] for one in pair) <= DISTURBED * usual]


def ratio(pairs: list[tuple[dict[str, Any], dict[str, Any]]], figure: str) -> dict[str, float]:
    """How fast the fixed script is beside `hotlap run`: the mean of paired logarithms, with its 95 % interval."""
    logs = [math.log(run[figure] / fixed[figure]) for run, fixed in pairs]
    mean = statistics.fmean(logs)
    reach = student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return {name: math.exp(value) for name, value in (("ratio", mean), ("low", mean - reach), ("high", mean + reach))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--plan", default="", help="a hotlap.toml that `tune` wrote for the example")
    given = parser.parse_args()
    os.environ["PYTHONUNBUFFERED"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # more would spin, and be what is measured where cores are shared
    pairs = []
    with tempfile.TemporaryDirectory(prefix="hotlap-fixed-") as place:
        original, fixed, entries = two_copies(Path(place), given.plan)
        options = ["--data", str(Path(place, "photos")), "--epochs", str(given.epochs)]
        commands = {"run": ["-m", "hotlap", "run", str(original), *options], "fixed": [str(fixed), *options]}
        subprocess.run([sys.executable, str(original), *options[:2], "--epochs", "0"], check=True)  # makes the photos
        for command in commands.values():  # the first of each also compiles and fills caches of files
            timed(command, given.epochs)
        for number in range(given.rounds):
            order = ("run", "fixed") if number % 2 == 0 else ("fixed", "run")
            done = {name: timed(commands[name], given.epochs) for name in order}
            pairs.append((done["run"], done["fixed"]))
            for name, one in done.items():
                print(f"{name:<5} {one['seconds']:.2f} s, {one['epoch_seconds']:.3f} s an epoch", file=sys.stderr)
    calm = undisturbed(pairs)
    if len(calm) < 3:
        raise SystemExit(
            f"only {len(calm)} of {given.rounds} rounds were undisturbed: run it again on a calmer machine"
        )
    figures = {"end_to_end": "seconds", "step": "epoch_seconds", "processors": "processor_seconds"}
    found = {name: ratio(calm, figure) for name, figure in figures.items()}
    print(f"{len(calm)} of {given.rounds} rounds were undisturbed")
    for name, one in found.items():
        print(f"{name}: {one['ratio']:.3f} ({one['low']:.3f} to {one['high']:.3f}) of `hotlap run`")
    about = facts(Target(f"examples/{SCRIPT}"), 2 * given.rounds, "run")
    command = f"python bench/fixed.py --rounds {given.rounds} --epochs {given.epochs}"
    record = {
        "facts": {**vars(about), "command": command},
        "plan": [{"technique": one.technique, "setting": one.setting} for one in entries],
        **found,
        "undisturbed": len(calm),
        "rounds": [{"run": run, "fixed": fixed} for run, fixed in pairs],
    }
    machine = re.sub(r"[^a-z0-9]+", "-", about.hardware.split(",")[0].lower()).strip("-")
    (ROOT / "bench" / "results" / f"fixed-{machine}.json").write_text(json.dumps(record, indent=1) + "\n")
    return int(found["end_to_end"]["ratio"] < ENOUGH or found["step"]["ratio"] < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
