"""How far is tune's plan from the best there is, by simulation: the real search, made-up trials, seconds to run.

    python bench/searching.py [--tunings 200] [--budgets 60,120,300,900] [--noise cnn-cpu]

Six techniques make 64 plans, less those that clash. Landscapes are drawn at random, each with its own shares of the
step, effects, a pair that does each other's work, a pair that gains together, one that harms the other, now and then
one that breaks; and one comes from the record of every plan, bench/results/exhaustive-*.json. A trial is what the
landscape says times what one of the recorded, identical processes showed (tests/measure/series). Screening, second
looks and the proof by pairs are the tool's own code; parity takes its time and passes. For each budget it says how
far the plan is from the true best before the proof (median, 90 %), how often within 3 %, how often a member was kept
without which the plan is truly faster by more than 1 %, how many trials it took, and how often the gain was proven."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from hotlap.measure.bench import Bench, Role
from hotlap.measure.candidates import clash
from hotlap.measure.pace import pace
from hotlap.measure.proof import PARITY_TRIALS, Proof
from hotlap.measure.search import Search
from hotlap.measure.settling import Settling
from hotlap.measure.timed import Timed, Untimed
from hotlap.observe.run import SHARES, Run
from hotlap.technique import CannotHelp, Choice, Family, Parity, Technique, Try

HOME = Path(__file__).resolve().parent
TRIAL_SECONDS = 6.0  # start-up included, as for a small script on this machine
NEAR = 0.03
HARM = 1.01


class Simulated(Technique):
    """Could save at most its share of the step, as the techniques' own bounds say."""

    options: Sequence[dict[str, Any]] = ({},)

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        share = run.share(*self.family.shares)
        return [Try(option, 0.9 * share) for option in self.options] if share else CannotHelp("no such share")

    def apply(self, patch: Any, setting: Any) -> None: ...


class Feeder(Simulated):
    family = Family.WAIT


class Cache(Simulated):
    family = Family.WAIT


class Layout(Simulated):
    family = Family.COMPUTE
    traits = frozenset({"layout"})


class Precision(Simulated):
    family = Family.COMPUTE
    helps_with = frozenset({"layout"})


class Graphs(Simulated):
    family = Family.COMPUTE
    excludes = frozenset({"layout"})


class Update(Simulated):
    family = Family.UPDATE


class Workers(Simulated):
    """With the settings of the record."""

    family = Family.WAIT
    options = ({"num_workers": 2}, {"num_workers": 1}, {"num_workers": 2, "prefetch_factor": 4})


KINDS: tuple[type[Simulated], ...] = (Feeder, Cache, Layout, Precision, Graphs, Update)
Plan = tuple[Choice, ...]


@dataclass(frozen=True)
class Landscape:
    """What every plan truly takes, by share of the step; None where it breaks."""

    techniques: tuple[Simulated, ...]
    parts: Callable[[Plan], dict[str, float] | None]

    def level(self, plan: Sequence[Choice]) -> float:
        parts = self.parts(tuple(plan))
        return math.inf if parts is None else sum(parts.values())

    def plans(self) -> Iterator[Plan]:
        choices = [[None, *(Choice(one, option) for option in one.options)] for one in self.techniques]
        for combined in itertools.product(*choices):
            plan = tuple(one for one in combined if one is not None)
            if not any(clash(choice, plan) for choice in plan):
                yield plan

    @property
    def best(self) -> float:
        return min(map(self.level, self.plans()))


def drawn(dice: random.Random) -> Landscape:
    """One at random. Effects multiply the share they work on."""
    shares = {"wait": dice.uniform(0, 2), "forward": dice.uniform(0.3, 1.5), "update": dice.uniform(0.02, 0.3)}
    whole = sum(shares.values()) + 0.3
    shares = {name: 0.1 * value / whole for name, value in shares.items()} | {"other": 0.03 / whole}
    effects = {}
    for kind in KINDS:
        helps = dice.random() < 0.6
        effects[kind] = dice.uniform(0.3, 0.97) if helps else dice.choice([1.0, dice.uniform(1.02, 1.3)])
    together = dice.uniform(0.7, 1.0)  # layout and precision
    harm = dice.choice([1.0, 1.0, dice.uniform(1.05, 1.5)])  # of precision to the update
    broken = dice.choice([*KINDS, *[None] * 54])

    def parts(plan: Plan) -> dict[str, float] | None:
        kinds = {type(choice.technique) for choice in plan}
        if broken in kinds:
            return None
        factors = dict.fromkeys(shares, 1.0)
        feeding = [effects[kind] for kind in kinds if kind in (Feeder, Cache)]
        if feeding:  # each does the other's work
            factors["wait"] = min(feeding) if min(feeding) < 1 else math.prod(feeding)
        factors["forward"] = math.prod(effects[kind] for kind in kinds if kind.family is Family.COMPUTE)
        factors["forward"] *= together if {Layout, Precision} <= kinds else 1.0
        factors["update"] = (effects[Update] if Update in kinds else 1.0) * (harm if Precision in kinds else 1.0)
        return {name: shares[name] * factor for name, factor in factors.items()}

    return Landscape(tuple(kind() for kind in KINDS), parts)


def of_the_record(path: Path) -> Landscape:
    """What single trials of all plans showed, smoothed: workers with the cache as they are, the others by themselves.
    What broke there breaks here."""
    record = json.loads(path.read_text())["plans"]
    kinds = {"LoaderWorkers": Workers, "SampleCache": Cache, "ChannelsLast": Layout, "FusedOptimizer": Update}
    rows = []
    for entry in record:
        members = {one["technique"].split(":")[1]: one["setting"] for one in entry["plan"]}
        if "MixedPrecision" not in members and entry["screened"]:
            rows.append((members, statistics.fmean(map(math.log, entry["screened"] + entry["again"]))))
    middle = statistics.fmean(value for _, value in rows)

    def effect(name: str) -> float:
        sides = [[value for members, value in rows if (name in members) is there] for there in (True, False)]
        return math.exp(statistics.fmean(sides[0]) - statistics.fmean(sides[1]))

    def cell(members: dict[str, Any]) -> tuple[Any, bool]:
        setting = members.get("LoaderWorkers")
        return setting and (setting["num_workers"], setting.get("prefetch_factor")), "SampleCache" in members

    cells: dict[Any, list[float]] = {}
    for members, value in rows:
        cells.setdefault(cell(members), []).append(value - middle)
    feeding = {key: math.exp(statistics.fmean(values)) for key, values in cells.items()}
    rest = {Layout: effect("ChannelsLast"), Update: effect("FusedOptimizer")}
    names = {kind: name for name, kind in kinds.items()}

    def parts(plan: Plan) -> dict[str, float] | None:
        if any(type(choice.technique) is Precision for choice in plan):
            return None
        members = {names[type(choice.technique)]: choice.setting for choice in plan}  # type: ignore[index]
        step = 0.07 * feeding[cell(members)] / feeding[cell({})]
        step *= math.prod(rest.get(type(choice.technique), 1.0) for choice in plan)
        return {"wait": 0.6 * step, "forward": 0.3 * step, "update": 0.1 * step}

    return Landscape((Workers(), Cache(), Precision(), Layout(), Update()), parts)


@cache
def noise(group: str) -> list[float]:
    """What identical processes of one group came to, over their median."""
    text = (HOME.parent / "tests" / "measure" / "series" / f"{group}.json").read_text()
    series = [[1e-3 * ms for ms in process["step_ms"]] for process in json.loads(text)["processes"]]
    levels = [pace(Run(torch="", device="cpu", step_seconds=seconds)).level for seconds in series]
    return [level / statistics.median(levels) for level in levels]


class Silent:
    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class SimulatedBench(Bench):
    """Trials of a landscape, on a clock of its own."""

    def __init__(self, landscape: Landscape, deviations: Sequence[float], dice: random.Random) -> None:
        super().__init__(None, None, TRIAL_SECONDS, Silent())  # type: ignore[arg-type]
        self._landscape, self._deviations, self._dice = landscape, deviations, dice
        self.clock = 0.0

    @property
    def spent(self) -> float:
        return self.clock

    def longest(self, trials: int) -> str:
        return ""

    def see_past_an_epoch(self, run: Run) -> bool:
        return True

    def _measured(self, plan: Sequence[Choice], label: str, role: Role) -> Timed | Untimed:
        self.measured += 1
        self.clock += TRIAL_SECONDS
        parts = self._landscape.parts(tuple(plan))
        if parts is None:
            return Untimed("died of signal 4", None, "")
        run = Run(torch="2.13.0", device="cpu", step_parts=[[parts.get(name, 0.0) for name in SHARES]])
        return Timed(sum(parts.values()) * self._dice.choice(self._deviations), run, "enough", TRIAL_SECONDS, True)


@dataclass
class Outcome:
    away: list[float] = field(default_factory=list)  # how much slower than the best there is
    harmful: int = 0
    trials: list[int] = field(default_factory=list)
    proven: int = 0

    def take_in(self, landscape: Landscape, budget: float, deviations: Sequence[float], dice: random.Random) -> None:
        """One tuning."""
        bench = SimulatedBench(landscape, deviations, dice)
        search = Search(bench, landscape.techniques, budget, "", bench._listener)
        search._baseline()
        search.screening.run()
        Settling(bench, search.purse, search.found).run(search.screening.passed_over)
        plan, level = list(search.found.plan), landscape.level(search.found.plan)
        self.away.append(level / landscape.best - 1)
        self.harmful += any(landscape.level([o for o in plan if o is not one]) * HARM < level for one in plan)
        self.trials.append(bench.measured)
        bench.clock += PARITY_TRIALS * TRIAL_SECONDS
        Proof(bench, search.found, budget, TRIAL_SECONDS, "").confirm()
        self.proven += search.found.confirmed

    def __str__(self) -> str:
        count, away = len(self.away), sorted(self.away)
        near = sum(one <= NEAR for one in away)
        shares = [100 * statistics.median(away), 100 * away[int(0.9 * count)]]
        shares += [100 * times / count for times in (near, self.harmful, self.proven)]
        return f"{' '.join(f'{one:8.1f} %' for one in shares)} {statistics.fmean(self.trials):8.1f}"


def tunings(landscapes: Sequence[Landscape], budget: float, deviations: Sequence[float], seed: int = 0) -> Outcome:
    outcome, dice = Outcome(), random.Random(seed)
    for landscape in landscapes:
        outcome.take_in(landscape, budget, deviations, dice)
    return outcome


def main() -> None:
    wishes = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wishes.add_argument("--tunings", type=int, default=200)
    wishes.add_argument("--budgets", default="60,120,300,900", help="seconds, comma-separated")
    wishes.add_argument("--noise", default="cnn-cpu", help="a group of tests/measure/series, or a standard deviation")
    wish = wishes.parse_args()
    try:
        dice, wide = random.Random(1), float(wish.noise)
        deviations = [math.exp(dice.gauss(0, wide)) for _ in range(1000)]
    except ValueError:
        deviations = noise(wish.noise)
    record = of_the_record(next((HOME / "results").glob("exhaustive-*-photos.json")))
    kinds = {
        "at random": [drawn(random.Random(seed)) for seed in range(wish.tunings)],
        "of the record": [record] * wish.tunings,
    }
    sd = statistics.stdev(map(math.log, deviations))
    print(f"{wish.tunings} tunings each, trials of {TRIAL_SECONDS:g} s, processes differ by {100 * sd:.1f} %")
    columns = ("median", "90 %", "within 3 %", "harmful", "proven")
    print(f"{'landscape':14} {'budget':>8} {' '.join(f'{one:>10}' for one in columns)} {'trials':>8}")
    for name, landscapes in kinds.items():
        for budget in map(float, wish.budgets.split(",")):
            print(f"{name:14} {budget:6.0f} s {tunings(landscapes, budget, deviations)}", flush=True)


if __name__ == "__main__":
    main()
