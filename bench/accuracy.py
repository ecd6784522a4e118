"""Does a training that runs faster learn as well? A script as it is and under `hotlap run`, with several seeds each.

    python bench/accuracy.py flowers --script imagenet/main.py --with device-transforms,mixed-precision \\
        --reads 'Acc@1 +([0-9.]+) Acc@5' -- -a resnet18 --epochs 20 --seed {seed} photos

Every training is a process in an empty folder of its own, so that what it saves collides with nothing; the data's path
must therefore be absolute. `{seed}` in the script's arguments becomes the seed. The score of a training is the mean of
the last values that --reads finds in what it prints. The two ways take turns, a seed each, --parallel at a time.
Writes bench/results/accuracy/NAME-MACHINE.json."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import unedited
from terminal import watched

from hotlap.errors import HotlapError
from hotlap.measure.stats import student_quantile
from hotlap.measure.tune import facts
from hotlap.observe.launch import Target

RESULTS = Path(__file__).resolve().parent / "results" / "accuracy"
SCRIPT, RUN = WAYS = ("script", "hotlap run")


@dataclass(frozen=True)
class Training:
    """One process, to its end."""

    way: str
    seed: int
    score: float
    seconds: float
    said: list[str]  # by hotlap: what it applied, and what it withdrew


def command(given: argparse.Namespace, way: str, seed: int) -> list[str]:
    script = [str(Path(given.script).resolve()), *(word.replace("{seed}", str(seed)) for word in given.arguments)]
    return unedited.command(script, way == RUN, given.with_)


def train(given: argparse.Namespace, way: str, seed: int) -> Training:
    with tempfile.TemporaryDirectory(prefix="hotlap-accuracy-") as folder:
        never = Path(folder, "nobody-writes-this")
        ending = watched(command(given, way, seed), Path(folder), os.environ, never, given.limit)
    if ending.code != 0:
        how = "was ended at the limit" if ending.code is None else f"ended with {ending.code}"
        raise HotlapError(f"{way}, seed {seed}, {how}; its last lines:\n" + "\n".join(ending.lines[-12:]))
    return Training(way, seed, score(ending.lines, given.reads, given.last), ending.seconds, unedited.said(ending))


def score(lines: Sequence[str], reads: str, last: int) -> float:
    values = [float(match[1]) for line in lines for match in re.finditer(reads, line)]
    if len(values) < last:
        raise HotlapError(f"{reads!r} was found {len(values)} times in what the script printed: {last} are wanted")
    return statistics.fmean(values[-last:])


@dataclass(frozen=True)
class Compared:
    """Means and spreads over seeds, and the second way's lead with its 95 % interval (Welch)."""

    means: dict[str, float]
    spreads: dict[str, float]
    lead: float
    low: float
    high: float

    @property
    def is_within_the_spread(self) -> bool:
        """Zero is possible, and the lead is none that another seed would not bring as well."""
        return self.low <= 0 <= self.high and abs(self.lead) <= max(self.spreads.values())


def compare(trainings: Sequence[Training]) -> Compared:
    scores = {way: [one.score for one in trainings if one.way == way] for way in WAYS}
    means = {way: statistics.fmean(values) for way, values in scores.items()}
    spreads = {way: statistics.stdev(values) for way, values in scores.items()}
    parts = [spreads[way] ** 2 / len(scores[way]) for way in WAYS]
    error = math.sqrt(sum(parts))
    lead = means[RUN] - means[SCRIPT]
    if not error:
        return Compared(means, spreads, lead, lead, lead)
    freedom = error**4 / sum(part**2 / (len(scores[way]) - 1) for part, way in zip(parts, WAYS, strict=True))
    reach = student_quantile(0.975, max(1, int(freedom))) * error
    return Compared(means, spreads, lead, lead - reach, lead + reach)


def verdict(compared: Compared, seeds: int) -> str:
    ways = "; ".join(f"{way} {compared.means[way]:.2f} (sd {compared.spreads[way]:.2f})" for way in WAYS)
    same = "within" if compared.is_within_the_spread else "NOT within"
    lead = f"{compared.lead:+.2f} ({compared.low:+.2f} to {compared.high:+.2f})"
    return f"{ways}; hotlap run leads by {lead}, {same} the spread of {seeds} seeds"


def record(given: argparse.Namespace, trainings: Sequence[Training]) -> Path:
    """No path of this machine goes into it."""
    about = asdict(facts(Target(Path(given.script).name, ()), len(trainings), "run"))
    about["command"] = unedited.named("accuracy.py", given.words)
    machine = re.sub(r"[^a-z0-9]+", "-", about["hardware"].split(",")[0].lower()).strip("-")
    compared = compare(trainings)
    data: dict[str, Any] = {
        "kind": "accuracy",
        "name": given.name,
        "facts": about,
        "result": verdict(compared, given.seeds),
        "compared": asdict(compared),
        "trainings": [asdict(one) for one in trainings],
    }
    path = Path(given.results) / f"{given.name}-{machine}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def options(arguments: Sequence[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("name", help="of the record")
    made.add_argument("--script", required=True)
    made.add_argument("--with", dest="with_", default="", help="techniques; otherwise the plan beside the script")
    made.add_argument("--reads", required=True, help="what finds a score in the output, with one group")
    made.add_argument("--last", type=int, default=1, help="so many scores at the end are averaged")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--parallel", type=int, default=1, help="trainings at a time; their seconds are then no timing")
    made.add_argument("--limit", type=float, default=600.0, help="seconds for one training")
    made.add_argument("--results", default=str(RESULTS), help="folder for the record")
    ours, own = unedited.parted(arguments)
    given = made.parse_args(ours)
    given.arguments, given.words = own, list(arguments)
    if given.seeds < 2:
        made.error("a spread needs --seeds 2 at least")
    if not any("{seed}" in word for word in own):
        made.error("no argument of the script holds {seed}: all trainings would be the same")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(sys.argv[1:] if arguments is None else arguments)
    trainings: list[Training] = []
    wanted = [(way, seed) for seed in range(1, given.seeds + 1) for way in WAYS]
    pool = ThreadPoolExecutor(given.parallel)
    try:
        for one in pool.map(lambda each: train(given, *each), wanted):
            trainings.append(one)
            print(f"{one.way:<10} seed {one.seed}: {one.score:.2f} after {one.seconds:.0f} s", file=sys.stderr)
    except HotlapError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        pool.shutdown(cancel_futures=True)
    path = record(given, trainings)
    print(f"wrote {path}", file=sys.stderr)
    print(verdict(compare(trainings), given.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
