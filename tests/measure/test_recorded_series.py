"""The decision procedure on step times that were recorded, not made up: see bench/series.py.

Whole processes are drawn from a group of identical ones, so that there is nothing to be found; a gain is planted by
dividing one arm's steps. The unit drawn is the process, since that is what differs: steps of one process agree with
each other far better than two processes do. `-s` prints what was counted."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from planted import DoesNothing

from hotlap.measure import stats
from hotlap.measure.bench import Bench, is_disturbed
from hotlap.measure.found import Found
from hotlap.measure.pace import pace
from hotlap.measure.proof import Proof
from hotlap.measure.stats import LOOKS, Decision, block_means, calibration_sd, compare, smallest_gain, student_quantile
from hotlap.measure.timed import Timed
from hotlap.observe.run import Run
from hotlap.report.findings import TrialTimes
from hotlap.technique import Choice

STATED = 0.01  # false claims a tuning, see stats
ROUNDS = 2000
GROUPS = sorted(path.stem for path in (Path(__file__).parent / "series").glob("*.json"))
QUIET = {
    "quiet-0.003": 0.003,
    "quiet-0.01": 0.01,
    "quiet-0.02": 0.02,
    "quiet-0.05": 0.05,
}  # SD of the logarithm of a level
PLAN = [Choice(DoesNothing(), {})]
RUN = Run(torch="", device="cpu")
NOTED = {hit: TrialTimes("", "confirm", "enough", [], 0, 0.0, hit) for hit in (False, True)}


@cache
def recorded(group: str) -> list[list[float]]:
    """Every process's steps, in seconds."""
    text = (Path(__file__).parent / "series" / f"{group}.json").read_text()
    return [[1e-3 * ms for ms in process["step_ms"]] for process in json.loads(text)["processes"]]


@cache
def levels(group: str) -> list[float]:
    """Every process as the one figure the tool makes of it. No quiet machine was at hand: its groups are all the
    recorded processes, their distances from their group's middle made smaller, so the shape of the noise is real."""
    if group not in QUIET:
        return [pace(Run(torch="", device="cpu", step_seconds=seconds)).level for seconds in recorded(group)]
    logs = [math.log(one / statistics.median(levels(name))) for name in GROUPS for one in levels(name)]
    return [math.exp(value * QUIET[group] / statistics.stdev(logs)) for value in logs]


def process_sd(group: str) -> float:
    return statistics.stdev(map(math.log, levels(group)))


@dataclass(frozen=True)
class Weather:
    """What goes on beside the processes."""

    drift: float = 0.0  # change of the logarithm over `over` pairs
    over: int = 16
    hit: float = 0.0  # share of processes that other work slows down by 5 to 60 %
    noticed: bool = False  # whether the run-queue delay this causes is looked at, and the trial repeated


class Replay(Bench):
    """A bench whose trials are drawn from the record; what it makes of disturbed ones is the real bench's doing."""

    def __init__(self, group: str, gain: float, weather: Weather, seed: int) -> None:
        super().__init__(None, None, 0.0, None)  # type: ignore[arg-type]
        self._levels, self._gain, self._weather, self._random = levels(group), gain, weather, random.Random(seed)
        self._trials_run = 0

    def _once(self, plan: Any, label: str, role: Any) -> Timed:
        weather, disturbed = self._weather, False
        drawn = self._levels[int(self._random.random() * len(self._levels))] / (self._gain if plan else 1.0)
        if weather.drift:
            drawn *= math.exp(weather.drift * self._trials_run / (2 * weather.over))
        if weather.hit and self._random.random() < weather.hit:
            extra = self._random.uniform(0.05, 0.6)
            drawn *= 1 + extra
            delayed = Run(torch="", device="cpu", wall_seconds=1 + extra, queue_seconds=extra, threads=1)
            disturbed = weather.noticed and is_disturbed(delayed)
        self._trials_run += 1
        self.times.append(NOTED[disturbed])
        return Timed(drawn, RUN, "enough", 0.0, True)


CALM = Weather()


def claims(bench: Bench, pairs: int = LOOKS[-1]) -> bool:
    """What Proof does with a plan, without judging between the looks: the order A B B A, until a decision falls."""
    earlier = [bench.time([], "the script", "baseline").level for _ in range(2)]  # type: ignore[union-attr]
    arms: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(pairs):
        for planned in (False, True) if pair % 2 == 0 else (True, False):
            timing = bench.time(PLAN if planned else [], "", "confirm")
            arms[planned].append(timing.level)  # type: ignore[union-attr]
        if pair + 1 in LOOKS:
            decision = compare(arms[False], arms[True], calibration_sd(earlier + arms[False])).decision
            if decision is not Decision.GO_ON:
                return decision is Decision.CLAIM
    return False


def share(group: str, gain: float = 1.0, weather: Weather = CALM, pairs: int = 16, rounds: int = ROUNDS) -> float:
    """How often a gain is claimed."""
    return sum(claims(Replay(group, gain, weather, seed), pairs) for seed in range(rounds)) / rounds


def held(rate: float, rounds: int) -> bool:
    """Seeds are fixed, so one standard error is tolerance enough."""
    return rate <= STATED + math.sqrt(STATED * (1 - STATED) / rounds)


# the simulation stands for the tool -------------------------------------------------------------------------------


def test_this_loop_decides_as_the_proof_does() -> None:
    for seed in range(60):
        gain, weather = (1.0, 1.1, 1.5)[seed % 3], Weather(hit=0.1, noticed=True)
        bench, found = Replay("mlp-cpu", gain, weather, seed), Found(plan=list(PLAN))
        found.baselines = [bench.time([], "the script", "baseline").level for _ in range(2)]  # type: ignore[union-attr]
        Proof(bench, found, math.inf, 0.0, "").confirm()
        assert found.confirmed == claims(Replay("mlp-cpu", gain, weather, seed))


@pytest.mark.parametrize("group", GROUPS)
def test_a_gain_of_every_step_is_that_gain_of_the_level(group: str) -> None:
    """Warm-up included: nothing in how a level is found depends on the unit. So levels may be divided below."""
    for steps, level in zip(recorded(group), levels(group), strict=True):
        faster = Run(torch="", device="cpu", step_seconds=[seconds / 1.1 for seconds in steps])
        assert pace(faster).level == pytest.approx(level / 1.1)


def test_identical_processes_differ_more_than_their_steps_tell() -> None:
    """Why the process is the unit: measured here as it was in the series the procedure was designed with."""
    for group in ("cnn-cpu", "mlp-cpu", "gan-h200-script", "chars-h200-script"):
        errors = []
        for steps in recorded(group):
            blocks = block_means(steps[len(steps) // 3 :])
            errors.append(1.25 * statistics.stdev(map(math.log, blocks)) / math.sqrt(len(blocks)))
        print(f"{group}: SD of a level {process_sd(group):.3f}, told by its own steps {statistics.median(errors):.3f}")
        assert process_sd(group) > 2 * statistics.median(errors)


# no gain is not claimed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [*GROUPS, *QUIET])
def test_a_against_a(group: str) -> None:
    rate = share(group)
    print(f"{group}: SD {process_sd(group):.3f}, false claims {100 * rate:.2f} %")
    assert held(rate, ROUNDS)


WEATHERS = {
    "slowing": Weather(drift=0.05),
    "speeding up": Weather(drift=-0.05),
    "3 % hit": Weather(hit=0.03),
    "10 % hit": Weather(hit=0.10),
    "10 % hit, repeated": Weather(hit=0.10, noticed=True),
}
STEEP = Weather(drift=-0.05, over=3)


@pytest.mark.parametrize("weather", WEATHERS)
@pytest.mark.parametrize(
    "group", ["chars-h200-script", "gan-h200-script", "mlp-cpu", "photos-h200-script", "quiet-0.02"]
)
def test_neither_drift_nor_one_sided_disturbances_are_a_gain(group: str, weather: str) -> None:
    rate = share(group, 1.0, WEATHERS[weather], rounds=ROUNDS // 2)
    print(f"{group}, {weather}: false claims {100 * rate:.2f} %")
    assert held(rate, ROUNDS // 2)


@pytest.mark.parametrize("group", ["quiet-0.003", "photos-h200-script"])
def test_nor_is_a_drift_within_three_pairs(group: str) -> None:
    """The order A B B A leaves a third of what one pair drifts. With few and far processes this is the worst case here:
    the rounds are so many that a rate of 1.5 % shows."""
    rate = share(group, 1.0, STEEP, rounds=2 * ROUNDS)
    print(f"{group}, faster by 5 % within three pairs: false claims {100 * rate:.2f} %")
    assert held(rate, 2 * ROUNDS)


def test_repeating_disturbed_trials_saves_the_power() -> None:
    """With a tenth of the processes hit the rate holds without it as well; what they cost is gains that are there."""
    without = share("quiet-0.01", 1.1, Weather(hit=0.1), pairs=4, rounds=600)
    repeated = share("quiet-0.01", 1.1, Weather(hit=0.1, noticed=True), pairs=4, rounds=600)
    print(f"a gain of 10 % found by 4 pairs: {without:.2f}, disturbed ones repeated {repeated:.2f}")
    assert repeated > without + 0.2


# what is there is found -------------------------------------------------------------------------------------------

# Shares found by 16 pairs as the design states them, for a claim twenty times stricter than today's
DESIGN = {
    "quiet-0.003": {1.03: 0.98, 1.10: 1.00, 1.50: 1.00},
    "quiet-0.01": {1.03: 0.61, 1.10: 1.00, 1.50: 1.00},
    "quiet-0.02": {1.03: 0.12, 1.10: 0.99, 1.50: 1.00},
    "quiet-0.05": {1.03: 0.01, 1.10: 0.48, 1.50: 1.00},
}


@pytest.mark.parametrize("group", [*GROUPS, *QUIET])
def test_power(group: str) -> None:
    gains = (1.03, 1.10, 1.50)
    found = {gain: share(group, gain, rounds=200) for gain in gains}
    early = {gain: share(group, gain, pairs=4, rounds=200) for gain in gains}
    words = ", ".join(f"{100 * (gain - 1):.0f} %: {early[gain]:.2f} by 4, {found[gain]:.2f} by 16" for gain in gains)
    print(f"{group}: SD {process_sd(group):.3f}; {words} pairs")
    assert found[1.03] <= found[1.10] <= found[1.50]
    assert found[1.50] >= 0.99  # even here, where identical processes are up to 1.8 times apart
    assert all(early[gain] <= found[gain] for gain in gains)
    if process_sd(group) <= 0.1:
        assert early[1.50] >= 0.9
    for gain, stated in DESIGN.get(group, {}).items():
        assert found[gain] >= stated - 0.02


@pytest.mark.parametrize("group", [*GROUPS, *QUIET])
def test_the_smallest_gain_printed_is_the_smallest_found(group: str) -> None:
    """Printed after a tuning with some six baselines. Found: what half of the comparisons show by as many pairs."""
    draw = random.Random(1)
    printed = [smallest_gain(calibration_sd(draw.choices(levels(group), k=6))) for _ in range(51)]
    low, high = 0.0, 1.5
    for _ in range(7):
        middle = (low + high) / 2
        enough = share(group, math.exp(middle), pairs=4, rounds=120) >= 0.5
        low, high = (low, middle) if enough else (middle, high)
    print(f"{group}: smallest gain printed {statistics.median(printed):.3f}x, found by half {math.exp(high):.3f}x")
    assert 1 / 1.5 < math.log(statistics.median(printed)) / high < 1.5


# these tests can fail ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["cnn-cpu", "mlp-cpu", "chars-h200-script", "gan-h200-script"])
def test_steps_as_the_unit_would_not_pass(group: str) -> None:
    """The same looks and the same quantile over block means of steps, as if each were a process of its own."""
    blocks = [[math.log(mean) for mean in block_means(steps[len(steps) // 3 :])] for steps in recorded(group)]
    false, rounds = 0, 100
    for seed in range(rounds):
        draw = random.Random(seed)
        arms: list[list[float]] = [[], []]
        for pair in range(1, LOOKS[2] + 1):
            for arm in arms:
                arm += draw.choice(blocks)
            if pair in LOOKS:
                error = math.sqrt(sum(statistics.pvariance(arm) / len(arm) for arm in arms))
                reach = student_quantile(1 - STATED / len(LOOKS), len(arms[0]) - 1) * error
                if statistics.fmean(arms[0]) - statistics.fmean(arms[1]) - reach > stats.LEAST_GAIN:
                    false += 1
                    break
    print(f"{group}: steps as the unit claim falsely in {100 * false / rounds:.0f} %")
    assert not held(false / rounds, rounds)
    assert false / rounds > 10 * STATED


def test_the_spread_pulled_down_to_a_quiet_machine_would_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the procedure did until these series were tried on it: the prior averaged in, for six degrees of freedom."""

    def averaged(baselines: list[float]) -> float:
        freedom = len(baselines) - 1
        spread = 2 * freedom * statistics.variance(map(math.log, baselines))
        return math.sqrt((2 * 0.02**2 + spread) / (2 + freedom))

    monkeypatch.setattr(stats, "_CALIBRATION_WEIGHT", 6)
    monkeypatch.setitem(globals(), "calibration_sd", averaged)
    assert not held(share("photos-h200-script", 1.0, STEEP, rounds=2 * ROUNDS), 2 * ROUNDS)


def test_a_gain_called_none_would_not_pass() -> None:
    assert not held(share("quiet-0.02", 1.03, rounds=300), 300)
