"""What data costs a step: the script under `hotlap run` (or as it is), with the batches it draws and with some that lie
on the device already, in blocks of steps that take turns within one process.

    python bench/without_data.py chargpt --script projects/chargpt/chargpt.py
    python bench/without_data.py imagenet --script imagenet/main.py --block 64 -- -a resnet50 photos

With --as-it-is there is no plan. The unit of the interval is one turn of four blocks, A B B A; the arguments after `--`
are the script's. A block counts by the median of means over eight steps, so that tests after an epoch, which only come
where batches are drawn, are not taken for a cost of data. Writes bench/results/data/NAME-MACHINE.json."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import unedited
from exhaustive import machine_name
from frozen_batches import ORDER, PATTERN
from terminal import watched

from hotlap import plan
from hotlap.measure.stats import level, student_quantile
from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.report import figures

HERE = Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Cost:
    """A step with its data and without, in seconds; how many times as long it takes for them, 95 % over turns."""

    drawn_seconds: float
    frozen_seconds: float
    ratio: float
    low: float | None
    high: float | None


def blocks_of(given: argparse.Namespace) -> dict[str, Any]:
    """One process, until all its turns are over."""
    script = Path(given.script).resolve()
    command = unedited.command([script.name, *given.arguments], not given.as_it_is, given.with_)
    with tempfile.TemporaryDirectory(prefix="hotlap-data-") as folder:
        shutil.copy(HERE / "frozen_batches.py", Path(folder, "sitecustomize.py"))
        shutil.copy(HERE / "step_clock.py", folder)
        wanted = Path(folder, "figures.json")
        order = {
            "path": str(wanted),
            "warmup_steps": given.warmup_steps,
            "block_steps": given.block,
            "untimed_steps": given.block // 4,
            "turns": given.turns,
        }
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, ORDER: json.dumps(order)}
        ending = watched(command, script.parent, environment, wanted, given.limit)
        if not wanted.exists():
            raise SystemExit(unedited.ended(script.name, ending, "its turns were over"))
        found: dict[str, Any] = json.loads(wanted.read_text())
    if not found["handed_again"]:
        raise SystemExit(f"no loader of {script.name} could be kept from drawing: it has none, or trains on none")
    found["blocks"] = [(is_frozen, float(f"{level(steps):.4g}")) for is_frozen, steps in found["blocks"]]
    for name in ("next_seconds", "waited_seconds"):
        found[name] = _quartiles(found[name])
    found["said"] = unedited.said(ending)
    return found


def _quartiles(seconds: Sequence[float]) -> list[float]:
    """Of what the script's own thread spends on a batch, or waits for it: asleep, or held up by another thread."""
    return [float(f"{one:.4g}") for one in statistics.quantiles(seconds, n=4)]


def cost(blocks: Sequence[tuple[bool, float]]) -> Cost:
    """From whole turns, in each of which both kinds come first and last."""
    logs = []
    for first in range(0, len(blocks), len(PATTERN)):
        turn = [(math.log(seconds), is_frozen) for is_frozen, seconds in blocks[first : first + len(PATTERN)]]
        means = [statistics.fmean(one for one, frozen in turn if frozen is kind) for kind in (False, True)]
        logs.append(means[0] - means[1])
    mean, reach = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        reach = student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    bounds = (math.exp(mean - reach), math.exp(mean + reach)) if math.isfinite(reach) else (None, None)
    medians = [statistics.median(one for frozen, one in blocks if frozen is kind) for kind in (False, True)]
    return Cost(medians[0], medians[1], math.exp(mean), *bounds)


def techniques_of(given: argparse.Namespace) -> list[str]:
    if given.as_it_is or given.with_:
        return given.with_.split(",") if given.with_ else []
    found = plan.read(given.script)
    if found is None:
        raise SystemExit(f"there is no plan for {given.script}: run `hotlap tune` first, or give --with or --as-it-is")
    return [entry.technique for entry in found.entries]


def record(given: argparse.Namespace, techniques: list[str], found: dict[str, Any], made: Cost) -> Path:
    """No path of this machine goes into it."""
    about = dataclasses.asdict(facts(Target(Path(given.script).name, tuple(given.arguments)), 1, "run"))
    about["command"] = unedited.named("without_data.py", sys.argv[1:])
    path = Path(given.results) / f"{given.name}-{machine_name()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"kind": "data", "name": given.name, "facts": about, "techniques": techniques}
    path.write_text(json.dumps(data | dataclasses.asdict(made) | found, indent=1) + "\n")
    return path


def options(arguments: Sequence[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("name", help="of the record")
    made.add_argument("--script", required=True, help="run in its own folder, with the plan beside it")
    made.add_argument(
        "--with", dest="with_", default="", help="techniques instead of a plan, as `hotlap run` takes them"
    )
    made.add_argument("--as-it-is", action="store_true", help="without hotlap")
    made.add_argument("--warmup-steps", type=int, default=500, help="before the first block")
    made.add_argument("--block", type=int, default=200, help="steps; the first quarter of them is not timed")
    made.add_argument("--turns", type=int, default=4, help="of four blocks each")
    made.add_argument("--limit", type=float, default=600.0, help="seconds for the whole run")
    made.add_argument("--results", default=str(HERE / "results" / "data"), help="folder for the record")
    ours, own = unedited.parted(arguments)
    given = made.parse_args(ours)
    given.arguments = own
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(sys.argv[1:] if arguments is None else arguments)
    techniques = techniques_of(given)
    found = blocks_of(given)
    made = cost(found["blocks"])
    path = record(given, techniques, found, made)
    bounds = f"{made.low:.3f} to {made.high:.3f}" if made.low is not None else "one turn"
    print(
        f"{figures.seconds(made.drawn_seconds)} a step with its data, {figures.seconds(made.frozen_seconds)} without:"
        f" {made.ratio:.3f} ({bounds}) times as long for them; the script's thread has a batch after"
        f" {figures.seconds(found['next_seconds'][1])} (median),"
        f" {figures.seconds(found['waited_seconds'][1])} of them waited for"
    )
    print(f"wrote {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
