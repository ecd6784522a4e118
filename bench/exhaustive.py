"""How far is tune's plan from the best there is? Every plan of a small space is timed, and the best are timed again.

    python bench/exhaustive.py --script examples/photos.py --budget 90 --seconds 1 --minutes 8

A real tuning chooses its plan first. Then every combination of the same techniques, each off or at one of its settings,
64 in all where there are so many, is timed by a single trial as tune's screening does it, in random order with the
script as it is in between. The fastest of many single trials was lucky: so the best five that are the same training,
tune's plan and the script are timed again in turns, and only these figures are compared. With --minutes the timing of
plans stops early enough for that, and the record says how many were left out. Writes
bench/results/exhaustive-MACHINE-SCRIPT.json."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import re
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotlap.catalogue import find
from hotlap.errors import HotlapError
from hotlap.measure.bench import Bench, Role
from hotlap.measure.candidates import clash
from hotlap.measure.sameness import Sameness, failure, passed
from hotlap.measure.stats import student_quantile
from hotlap.measure.timed import Timed
from hotlap.measure.trial import Trials
from hotlap.measure.tune import Wishes, facts, order_for, tune
from hotlap.observe.launch import Target
from hotlap.observe.machine import Machine
from hotlap.observe.run import Run
from hotlap.records import to_json
from hotlap.report.findings import TuneReport
from hotlap.technique import CannotHelp, Choice, Setting, Technique

RESULTS = Path(__file__).resolve().parent / "results"
TECHNIQUES = "loader-workers,sample-cache,mixed-precision,channels-last,fused-optimizer"
FINALISTS, BASELINE_EVERY = 5, 8
LEAST_ROUNDS = 3
# Settings beyond those tune tries, so that the space is larger than what the search could have thought of.
WIDER: dict[str, Sequence[dict[str, int]]] = {"num_workers": [{"prefetch_factor": 4}, {"prefetch_factor": 8}]}

Plan = tuple[Choice, ...]


@dataclass
class Entry:
    """One plan, with what its trials gave."""

    plan: Plan
    screened: list[float] = field(default_factory=list)  # seconds a step, one trial each
    again: list[float] = field(default_factory=list)  # the same in the final rounds
    trouble: str = ""

    @property
    def name(self) -> str:
        return " + ".join(map(_short, self.plan)) or "the script"

    @property
    def level(self) -> float:
        return statistics.median(self.screened) if self.screened else math.inf


class Progress:
    """Prints one line a trial, with the time since the start."""

    def __init__(self) -> None:
        self.began, self.ahead = time.monotonic(), ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def started(self, label: str, role: str) -> None: ...
    def stepped(self, steps: int) -> None: ...
    def stopped(self) -> None: ...

    def ended(self, label: str, role: str, verdict: str) -> None:
        print(f"{self.seconds:5.0f} s  {self.ahead}{role:<9} {label:<70.70} {verdict}", flush=True)

    def said(self, sentence: str) -> None:
        print(f"{self.seconds:5.0f} s  {sentence}", flush=True)


def options(technique: Technique, run: Run) -> list[Setting]:
    """The settings it could have here, tune's first; none where it cannot help or is in use."""
    tries = [] if technique.seen(run) else technique.settings(run)
    if isinstance(tries, CannotHelp) or not tries:
        return []
    own = [attempt.setting for attempt in tries]
    return [*own, *({**own[0], **more} for key in own[0] for more in WIDER.get(key, ()))]


def space(techniques: Sequence[Technique], run: Run, most: int) -> list[Plan]:
    """All combinations; settings are left out, from the end and where there are most of them, until so many remain."""
    choices: list[list[Choice | None]]
    choices = [[None, *(Choice(one, setting) for setting in options(one, run))] for one in techniques]
    while math.prod(map(len, choices)) > most:
        longest = max(choices, key=len)
        if len(longest) == 2:
            raise HotlapError(f"{len(techniques)} techniques make more than {most} plans: name fewer with --only")
        longest.pop()
    plans = [tuple(one for one in combined if one is not None) for combined in itertools.product(*choices)]
    return [plan for plan in plans if not any(clash(choice, plan) for choice in plan)]


class Exhaustive:
    def __init__(self, bench: Bench, progress: Progress, dice: random.Random, until_seconds: float) -> None:
        self._bench, self._progress, self._dice, self._until = bench, progress, dice, until_seconds
        self._trial_seconds = 0.0  # the longest so far
        self.script = Entry(())
        self.entries: list[Entry] = []

    def look(self) -> Run:
        """The script as it is: what could be tried, and how long trials must be."""
        first = self._time(self.script, "baseline", ignore=True)
        if first is None:
            raise HotlapError(f"the script cannot be timed: {self.script.trouble}")
        self._bench.see_past_an_epoch(first.run)
        self._time(self.script, "baseline")
        return first.run

    def screen(self, plans: Sequence[Plan], rounds: int) -> None:
        """Single trials in random order; a plan that failed once is not tried again."""
        self.entries = [Entry(plan) for plan in plans if plan]
        for number in range(rounds):
            waiting = self._dice.sample(self.entries, len(self.entries))
            for place, entry in enumerate(waiting):
                self._progress.ahead = f"{number * len(waiting) + place + 1:>3}/{rounds * len(waiting)}  "
                if self._progress.seconds + self._for_the_end > self._until:
                    self._progress.said("the time is up: the rest is not timed")
                    return
                if place % BASELINE_EVERY == 0:
                    self._time(self.script, "baseline")
                if not entry.trouble:
                    self._time(entry, "screen")

    def finalists(self, folder: str, run: Run) -> list[Entry]:
        """The fastest whose training is the same."""
        self._progress.ahead = ""
        same, found = Sameness(self._bench, folder), []
        if (trouble := same.start()) is not None:
            raise HotlapError(f"parity could not be checked: {trouble.ending}")
        for entry in sorted(self.entries, key=lambda entry: entry.level):
            if len(found) == FINALISTS or not entry.screened:
                break
            parities = {choice.technique.id: choice.technique.parity(run) for choice in entry.plan}
            checks = same.checks(entry.plan, entry.name, parities)
            if passed(checks):
                found.append(entry)
            else:
                entry.trouble = f"not the same training: {failure(checks)}"
        return found

    def time_again(self, arms: Sequence[Entry], rounds: int) -> None:
        """Each arm once a round, in an order drawn anew; whole rounds only, so that they stay pairs."""
        for number in range(rounds):
            enough = number >= LEAST_ROUNDS
            if enough and self._progress.seconds + len(arms) * self._trial_seconds > self._until:
                break
            self._progress.ahead = f"round {number + 1}/{rounds}  "
            taken = [(arm, self._time(arm, "confirm", ignore=True)) for arm in self._dice.sample(arms, len(arms))]
            if all(timing is not None for _, timing in taken):
                for arm, timing in taken:
                    arm.again.append(timing.level)  # type: ignore[union-attr]

    @property
    def _for_the_end(self) -> float:
        return (LEAST_ROUNDS * (FINALISTS + 2) + FINALISTS + 2) * self._trial_seconds

    def _time(self, entry: Entry, role: Role, ignore: bool = False) -> Timed | None:
        timing = self._bench.time(entry.plan, entry.name, role)
        self._trial_seconds = max(self._trial_seconds, timing.seconds if isinstance(timing, Timed) else 0.0)
        if not isinstance(timing, Timed):
            entry.trouble = timing.ending
            return None
        if not ignore:
            entry.screened.append(timing.level)
        return timing


@dataclass(frozen=True)
class Compared:
    """Ratios (before / after) by rounds, with a 95 % interval over them."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, slow: Sequence[float], fast: Sequence[float]) -> Compared:
        logs = [math.log(a / b) for a, b in zip(slow, fast, strict=True)]
        mean, reach = statistics.fmean(logs), 0.0
        if len(logs) > 1:
            reach = student_quantile(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return cls(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))

    def __str__(self) -> str:
        return f"{self.ratio:.2f}x ({self.low:.2f} to {self.high:.2f})"


def verdict(script: Entry, chosen: Entry, arms: Sequence[Entry], plans: int) -> tuple[str, dict[str, Any]]:
    """The sentence this bench is for. The best is picked by the same rounds, which favours it a little."""
    best = min(arms, key=lambda arm: statistics.fmean(map(math.log, arm.again)))
    mine, top = Compared.of(script.again, chosen.again), Compared.of(script.again, best.again)
    away = Compared.of(chosen.again, best.again)
    far = [100 * (value - 1) for value in (away.ratio, away.low, away.high)]
    words = f"tune's plan {mine.ratio:.2f}x ({chosen.name}), best of {plans} {top.ratio:.2f}x ({best.name}), "
    words += "the same plan" if best is chosen else f"{far[0]:.1f} % away ({far[1]:.1f} to {far[2]:.1f})"
    if best is not chosen and far[1] <= 0:
        words += ", which these rounds cannot tell from none"
    figures = {"tune": vars(mine), "best": vars(top), "best_plan": best.name, "percent_away": far}
    return f"{words}, over {len(script.again)} rounds", figures


def show(script: Entry, chosen: Entry, arms: Sequence[Entry], entries: Sequence[Entry]) -> None:
    usable = [entry for entry in entries if entry.screened and not entry.trouble]
    dead = [entry for entry in entries if entry.trouble]
    spread = statistics.stdev(map(math.log, script.screened)) if len(script.screened) > 1 else math.nan
    print(f"\n{len(usable)} of {len(entries) + 1} plans usable beside the script, {len(dead)} not, ", end="")
    print(f"{len(entries) - len(usable) - len(dead)} not timed; the script differs from itself by {100 * spread:.1f} %")
    for reason in sorted({entry.trouble for entry in dead}):
        print(f"  not usable, {sum(entry.trouble == reason for entry in dead)} plans: {reason}")
    print(f"\n{'plan':<72} {'screened':>10}  timed again")
    for arm in sorted(arms, key=lambda arm: statistics.fmean(arm.again)):
        mark = "  <- tune" if arm is chosen else ""
        print(f"{arm.name:<72.72} {1e3 * arm.level:7.2f} ms  {Compared.of(script.again, arm.again)}{mark}")


def record(path: Path, given: argparse.Namespace, target: Target, bench: Bench, parts: dict[str, Any]) -> None:
    about = facts(target, len(bench.times), "tune")
    threads = [f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"] if "OMP_NUM_THREADS" in os.environ else []
    command = shlex.join([*threads, "python", "bench/exhaustive.py", *given.words])
    times = [{**to_json(one), "step_seconds": [round(s, 7) for s in one.step_seconds]} for one in bench.times]
    data = {"facts": to_json(replace(about, command=command)), **parts, "trials": times}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    print(f"\nwrote {os.path.relpath(path)}")


def machine_name() -> str:
    machine = Machine.read()
    name = machine.gpus[0].name.removeprefix("NVIDIA ") if machine.gpus else machine.cpu
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def tuned(
    target: Target, techniques: Sequence[Technique], budget: float, progress: Progress
) -> tuple[Plan, TuneReport]:
    progress.ahead = "tune  "
    report, plan, _ = tune(target, techniques, [], Wishes(budget_seconds=budget), progress)
    progress.said(f"tune kept {', '.join(kept.technique for kept in report.kept) or 'nothing'}")
    return tuple(plan.choices(find)) if plan is not None else (), report


def _short(choice: Choice) -> str:
    shown = [value for value in choice.setting.values() if not isinstance(value, bool)]
    return " ".join([choice.technique.id, *map(str, shown)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", default="examples/photos.py")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for tune")
    parser.add_argument("--seconds", type=float, default=1.5, help="of training, for each trial")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for everything, tune included")
    parser.add_argument("--plans", type=int, default=64, help="size of the space")
    parser.add_argument("--rounds", type=int, default=6, help="in which the best are timed again")
    parser.add_argument("--only", default=TECHNIQUES, help="techniques, comma-separated")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("arguments", nargs="*", help="the script's own, after --")
    return parser.parse_args(namespace=argparse.Namespace(words=sys.argv[1:]))


def main() -> None:
    given, progress = _options(), Progress()
    target = Target(given.script, tuple(given.arguments))
    techniques = [find(name) for name in given.only.split(",")]
    order = order_for(target, False, False, 120.0)
    chosen_plan, report = tuned(target, techniques, given.budget, progress)
    with Trials() as trials:
        bench = Bench(trials, order, given.seconds, progress)
        work = Exhaustive(bench, progress, random.Random(given.seed), 60 * given.minutes)
        progress.ahead = ""
        run = work.look()
        plans = space(techniques, run, given.plans)
        progress.said(f"{len(plans)} plans of {', '.join(one.id for one in techniques)}")
        work.screen(plans, max(1, given.plans // len(plans)))
        finalists = work.finalists(trials.exchange("parity"), run)
        chosen = _entry_of(chosen_plan, [work.script, *work.entries])
        arms = list({id(arm): arm for arm in [work.script, chosen, *finalists]}.values())
        work.time_again(arms, given.rounds)
    if not work.script.again:
        raise HotlapError("no round was whole: run it again with more --minutes")
    timed = 1 + sum(bool(entry.screened or entry.trouble) for entry in work.entries)
    words, figures = verdict(work.script, chosen, arms, timed)
    show(work.script, chosen, arms, work.entries)
    every = [work.script, *work.entries, *([] if chosen in [work.script, *work.entries] else [chosen])]
    listed = [
        {"plan": [choice.to_json() for choice in entry.plan], **{k: v for k, v in vars(entry).items() if k != "plan"}}
        for entry in every
    ]
    tuning = {"plan": chosen.name, "speedup": vars(report.speedup) if report.speedup else None}
    tuning |= {"cost_seconds": report.cost_seconds, "trials": report.facts.trials, "cut_short": report.cut_short}
    if report.cut_short:
        words += "; tune ran out of budget, so this says little of its search"
    figures["load"] = os.getloadavg()  # what else kept the machine busy
    parts = {"result": words, "figures": figures, "tune": tuning, "plans": listed}
    record(RESULTS / f"exhaustive-{machine_name()}-{Path(given.script).stem}.json", given, target, bench, parts)
    print(words)


def _entry_of(plan: Plan, entries: Sequence[Entry]) -> Entry:
    """The entry for tune's plan: one of the space, if it is in there, whatever the order."""
    wanted = sorted(map(str, plan))
    return next((entry for entry in entries if sorted(map(str, entry.plan)) == wanted), Entry(plan))


if __name__ == "__main__":
    try:
        main()
    except HotlapError as error:
        sys.exit(f"exhaustive: {error}")
