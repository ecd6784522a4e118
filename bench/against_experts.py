"""A public script as it is, the same script under `hotlap run`, and an expert's hand-written loop, in turns.

    python bench/against_experts.py mnist --script examples/mnist/main.py --data examples/data
    python bench/against_experts.py resnet50 --script bench/courses/resnet50.py --with mixed-precision --beside trainers

All are timed by bench/step_clock.py, from outside and alike: after a warm-up, the time of a window that holds whole
epochs (tests, checkpoints and the start of the next one included) divided by its steps; and, without those, the median
of means over blocks of eight steps. With --beside, trainer libraries as their users set them up take turns as well, in
bf16. Every round runs each variant once, in a process with a terminal of its own.
Ratios are taken within a round; the unit of the interval is the round. Arguments after `--` are the script's.
Writes bench/results/experts/NAME-MACHINE.json."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import unedited
from step_clock import ORDER
from terminal import watched

from hotlap import plan
from hotlap.measure.stats import block_means, level, student_quantile
from hotlap.measure.tune import facts
from hotlap.observe.launch import Target
from hotlap.report import figures
from hotlap.report.findings import Interval

HERE = Path(__file__).resolve().parent
SCRIPT, RUN, EXPERT = "script", "hotlap run", "expert"
TRAINERS = {
    "accelerate": ("--trainer", "accelerate"),
    "accelerate-compile": ("--trainer", "accelerate", "--compile"),
    "lightning": ("--trainer", "lightning"),
    "lightning-compile": ("--trainer", "lightning", "--compile"),
}
TRAINED = ("cifar", "resnet50")  # the courses they know
FIGURES = {"mean": "whole window", "level": "training steps only"}


@dataclass(frozen=True)
class Course:
    """How long to wait and how much comes round: caches fill in the first epoch, and a window holds whole ones."""

    warmup_steps: int
    period: int


COURSES = {
    "mnist": Course(1000, 938),  # an epoch of 60,000 by 64
    "cifar": Course(450, 391),  # an epoch of 50,000 by 128
    "chargpt": Course(520, 500),  # a sample is drawn every 500
    "resnet50": Course(45, 1),
}


class Failed(Exception):
    """A variant gave no figures."""


@dataclass(frozen=True)
class Variant:
    name: str
    command: Sequence[str]
    folder: Path
    is_needed: bool = True  # without it there is no comparison at all


@dataclass(frozen=True)
class Lap:
    """One process of one variant."""

    variant: str
    round: int
    mean: float  # seconds a step over the whole window
    level: float  # median of means over blocks of eight steps
    steps: int
    start_seconds: float
    warmup_seconds: float
    warmup_steps: int
    optimizer: str
    weights: int
    said: list[str]  # by hotlap: what it applied, and what it withdrew
    blocks: list[float]


def lap(variant: Variant, number: int, order: dict[str, Any], limit_seconds: float) -> Lap:
    """Run one process until the clock has its figures."""
    with tempfile.TemporaryDirectory(prefix="hotlap-experts-") as folder:
        shutil.copy(HERE / "step_clock.py", Path(folder, "sitecustomize.py"))
        wanted = Path(folder, "figures.json")
        path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, ORDER: json.dumps({**order, "path": str(wanted)})}
        ending = watched(variant.command, variant.folder, environment, wanted, limit_seconds)
        if not wanted.exists():
            raise Failed(unedited.ended(variant.name, ending, "its window was over"))
        found = json.loads(wanted.read_text())
    steps = found.pop("step_seconds")
    blocks = [float(f"{value:.4g}") for value in block_means(steps)]
    said = unedited.said(ending)
    mean = found.pop("mean_seconds")
    return Lap(variant.name, number, mean, level(steps), len(steps), **found, said=said, blocks=blocks)


def compete(
    variants: Sequence[Variant], order: dict[str, Any], rounds: int, limit_seconds: float, say: Callable[[str], None]
) -> tuple[list[list[Lap]], str]:
    """Whole rounds only, and why there are fewer than wanted. The first must succeed; an interrupt in it keeps what can
    be compared."""
    began, done, longest, silent = time.monotonic(), [], 0.0, []

    def ended(why: str = "") -> tuple[list[list[Lap]], str]:
        return done, "; ".join(filter(None, [why, f"no figures from {', '.join(silent)}" if silent else ""]))

    for number in range(rounds):
        laps: list[Lap] = []
        round_began = time.monotonic()
        left = limit_seconds - (round_began - began)
        if number and longest > left:
            return ended(f"the limit of {limit_seconds:.0f} s left no room for round {number + 1}")
        for variant in (one for one in variants if one.name not in silent):
            try:
                made = lap(variant, number, order, limit_seconds - (time.monotonic() - began))
                if variant.name not in (SCRIPT, RUN) and laps:
                    _same_network(laps[0], made)
            except KeyboardInterrupt:
                if not done and {one.name for one in variants if one.is_needed} <= {one.variant for one in laps}:
                    done.append(laps)
                if not done:
                    raise
                return ended("it was interrupted")
            except Failed as failed:
                if not done and variant.is_needed:
                    raise
                say(str(failed))
                if done:
                    return ended(str(failed).splitlines()[0])  # a traceback names paths
                silent.append(variant.name)
                continue
            laps.append(made)
            say(f"round {number + 1}: {variant.name:<18} {_both(made)}, {time.monotonic() - began:.0f} s so far")
        longest = max(longest, time.monotonic() - round_began)
        done.append(laps)
    return ended()


def _same_network(first: Lap, other: Lap) -> None:
    """`first` trains the script's own."""
    if (first.weights, first.optimizer) != (other.weights, other.optimizer):
        raise Failed(
            f"the {other.variant} trains {other.weights:,} weights by {other.optimizer}, the script {first.weights:,} "
            f"by {first.optimizer}: they cannot be compared"
        )


def _both(lap: Lap) -> str:
    return f"{figures.seconds(lap.mean)} a step, {figures.seconds(lap.level)} without epochs' ends"


def ratio(rounds: Sequence[Sequence[Lap]], slower: str, faster: str, figure: str) -> Interval:
    """slower / faster, as a geometric mean over rounds with its 95 % interval; unbounded after one round."""
    logs = []
    for laps in rounds:
        by_name = {lap.variant: getattr(lap, figure) for lap in laps}
        logs.append(math.log(by_name[slower] / by_name[faster]))
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(mean), 0.0, math.inf)
    reach = student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def comparisons(rounds: Sequence[Sequence[Lap]]) -> list[dict[str, Any]]:
    """Each pair of variants by each figure, the slower by intent first."""
    names = [lap.variant for lap in rounds[0]]
    pairs = [(SCRIPT, RUN), (SCRIPT, EXPERT), (EXPERT, RUN)]
    pairs += [pair for name in names if name in TRAINERS for pair in ((SCRIPT, name), (name, RUN))]
    pairs = [pair for pair in pairs if set(pair) <= set(names)]
    found = []
    for slower, faster in pairs:
        for figure in FIGURES:
            made = ratio(rounds, slower, faster, figure)
            bounds = {"low": made.low, "high": made.high} if len(rounds) > 1 else {"low": None, "high": None}
            found.append({"of": slower, "to": faster, "figure": figure, "ratio": made.ratio, **bounds})
    return found


def table(rounds: Sequence[Sequence[Lap]], compared: Sequence[dict[str, Any]]) -> str:
    lines = [f"{'':<18} {FIGURES['mean']:>20} {FIGURES['level']:>20}"]
    for position, first in enumerate(rounds[0]):
        means = [statistics.fmean(getattr(laps[position], figure) for laps in rounds) for figure in FIGURES]
        lines.append(f"{first.variant:<18} " + " ".join(f"{figures.seconds(value):>20}" for value in means))
    for one in compared:
        bounds = Interval(one["ratio"], one["low"], one["high"]) if one["low"] is not None else None
        words = f"{figures.ratio(one['ratio'])} ({figures.bounds(bounds, ' to ') if bounds else 'one round'})"
        lines.append(f"{one['of']} / {one['to']}, {FIGURES[one['figure']]}: {words}")
    return "\n".join(lines)


def variants(given: argparse.Namespace) -> list[Variant]:
    script = Path(given.script).resolve()
    own = [script.name, *given.arguments]
    shared = ["--steps", "0"]
    for option in ("public", "data"):
        if getattr(given, option):
            shared += [f"--{option}", str(Path(getattr(given, option)).resolve())]
    expert = [str(Path(given.expert).resolve()), *shared, *shlex.split(given.expert_arguments)]
    trainers = [str(HERE / "experts" / "trainers.py"), "--course", _kind(given.name), *shared]
    trainers += shlex.split(given.beside_arguments)
    return [
        *([] if given.no_script else [Variant(SCRIPT, unedited.command(own, False), script.parent)]),
        Variant(RUN, unedited.command(own, True, given.with_), script.parent),
        Variant(EXPERT, [sys.executable, *expert], script.parent),
        *(
            Variant(name, [sys.executable, *trainers, *TRAINERS[name]], script.parent, is_needed=False)
            for name in given.beside
        ),
    ]


@contextmanager
def planned(given: argparse.Namespace) -> Iterator[list[str]]:
    """The techniques that `hotlap run` will apply. A plan from elsewhere lies beside the script for this long only."""
    if given.with_:
        yield given.with_.split(",")
        return
    beside = Path(plan.path_for(given.script))
    is_borrowed = bool(given.plan) and Path(given.plan).resolve() != beside.resolve()
    if is_borrowed:
        if beside.exists():
            raise Failed(f"{beside} is there already: move it away, or leave out --plan")
        shutil.copy(given.plan, beside)
    try:
        found = plan.read(given.script)
        if found is None:
            raise Failed(
                f"there is no plan for {given.script}: run `hotlap tune` on it first, or give --plan or --with"
            )
        yield [entry.technique for entry in found.entries]
    finally:
        if is_borrowed:
            beside.unlink(missing_ok=True)


def record(given: argparse.Namespace, techniques: list[str], rounds: list[list[Lap]], why_fewer: str) -> Path:
    """No path of this machine goes into it."""
    trials = sum(map(len, rounds))
    about = dataclasses.asdict(facts(Target(Path(given.script).name, tuple(given.arguments)), trials, "run"))
    about["command"] = unedited.named("against_experts.py", sys.argv[1:])
    machine = re.sub(r"[^a-z0-9]+", "-", about["hardware"].split(",")[0].lower()).strip("-")
    path = Path(given.results) / f"{given.name}-{machine}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "kind": "experts",
        "name": given.name,
        "facts": about,
        "techniques": techniques,
        "rounds": len(rounds),
        "why_fewer": why_fewer,
        "comparisons": comparisons(rounds),
        "laps": [dataclasses.asdict(lap) for laps in rounds for lap in laps],
    }
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def options(arguments: Sequence[str]) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("name", help=f"{', '.join(COURSES)}; `cifar-anything` names another record")
    made.add_argument("--script", required=True, help="the public script, which is run in its own folder")
    made.add_argument("--public", help="for the expert: folder to take the network from")
    made.add_argument("--data", help="for the expert: where the script's data lies")
    made.add_argument("--expert", help="another file than bench/experts/NAME.py")
    made.add_argument("--expert-arguments", default="", help="for the expert, in quotes: '--loader'")
    made.add_argument(
        "--beside", default="", help=f"trainer libraries: {', '.join(TRAINERS)}; `trainers` for all; comma-separated"
    )
    made.add_argument("--beside-arguments", default="", help="for them, in quotes: '--small'")
    made.add_argument("--plan", help="a hotlap.toml that does not lie beside the script")
    made.add_argument(
        "--with", dest="with_", default="", help="techniques instead of a plan, as `hotlap run` takes them"
    )
    made.add_argument("--no-script", action="store_true", help="leave out the script as it is, which takes longest")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--limit", type=float, default=1800.0, help="seconds for the whole run")
    made.add_argument("--window", type=float, default=10.0, help="seconds that are measured, at least")
    made.add_argument("--warmup", type=float, default=5.0, help="seconds after the first step, at least")
    made.add_argument("--warmup-steps", type=int, help="steps before the window, at least")
    made.add_argument("--period", type=int, help="steps in an epoch: the window holds whole ones")
    made.add_argument("--results", default=str(HERE / "results" / "experts"), help="folder for the record")
    ours, own = unedited.parted(arguments)
    given = made.parse_args(ours)
    given.arguments = own
    given.beside = list(TRAINERS) if given.beside == "trainers" else list(filter(None, given.beside.split(",")))
    if unknown := [name for name in given.beside if name not in TRAINERS]:
        made.error(f"--beside takes {', '.join(TRAINERS)}, not {unknown[0]}")
    if given.beside and _kind(given.name) not in TRAINED:
        made.error(f"--beside knows {' and '.join(TRAINED)}, not {given.name}")
    given.expert = given.expert or HERE / "experts" / f"{_kind(given.name)}.py"
    return given


def _kind(name: str) -> str:
    """`cifar-lightning` is a record of its own, of the training that is called cifar."""
    return name.partition("-")[0]


def main(arguments: Sequence[str] | None = None) -> int:
    given = options(sys.argv[1:] if arguments is None else arguments)
    course = COURSES.get(_kind(given.name), Course(50, 1))
    order = {
        "warmup_steps": given.warmup_steps or course.warmup_steps,
        "warmup_seconds": given.warmup,
        "window_seconds": given.window,
        "period": given.period or course.period,
    }

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        with planned(given) as techniques:
            rounds, why_fewer = compete(variants(given), order, given.rounds, given.limit, say)
    except Failed as failed:
        say(str(failed))
        return 1
    path = record(given, techniques, rounds, why_fewer)
    say(f"{why_fewer}\n" * bool(why_fewer) + f"wrote {path}")
    print(table(rounds, comparisons(rounds)))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what `timeout` sends: keep what is there
    sys.exit(main())
