"""Is it faster? Decisions over paired processes, by a sequential test whose constants were simulated beforehand.

The unit is the process: identical processes differ by 1 to 10 %, and a bootstrap over steps understates that several
times. Ratios are before / after, so 2.0 is twice as fast."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise

from hotlap.report.findings import Interval

LOOKS = (3, 4, 6, 8, 12, 16)  # pairs after which a decision may fall
LEAST_GAIN = math.log(1.01)  # a claim needs its lower bound above this
HOPELESS = math.log(1.02)  # given up when even the upper bound is below this
_ALPHA = 0.01 / len(LOOKS)  # 1 % a tuning: the plan's total is its only claim, shared between the looks
_CALIBRATION_WEIGHT = 4  # degrees of freedom: at the first look five baselines are known, two from before the pairs
_PRIOR_SD, _PRIOR_WEIGHT = 0.02, 2  # what machines show before anything is known of this one
_LONG, _LONGEST_RHYTHM = 3.0, 64  # times a usual step; steps from one to the next
_BEATS, _REGULAR = 4, 0.8  # how often it must be seen, and what share of them must be equally far apart


class Decision(Enum):
    CLAIM = "claim"
    GIVE_UP = "give up"
    GO_ON = "go on"


@dataclass(frozen=True)
class Comparison:
    decision: Decision
    interval: Interval


def block_means(seconds: list[float], size: int = 8) -> list[float]:
    """Means over blocks of steps: loaders with workers deliver in bursts, which a median of single steps misreads."""
    size = max(1, min(size, len(seconds) // 3))
    return [statistics.fmean(seconds[i : i + size]) for i in range(0, len(seconds) - size + 1, size)]


def evened(seconds: list[float]) -> list[float]:
    """Each step with its share of a wait that comes regularly; what has no such rhythm, and far longer waits, stay as
    they are. A host that runs ahead of its device pays for all of its steps at the one that waits, such as every tenth,
    which prints: four in five blocks of eight would hold that one, and their median be a quarter too long."""
    least = _LONG * statistics.median(seconds)
    usual = statistics.median([value for value in seconds if value > least] or [math.inf])
    least = max(least, usual / 2)  # of a wait, a little may fall to the step before
    ends = [number for number, value in enumerate(seconds) if value > least]
    gaps = [b - a for a, b in pairwise(ends)]
    if len(gaps) < _BEATS:
        return seconds
    gap = statistics.mode(gaps)
    if gap > _LONGEST_RHYTHM or gaps.count(gap) < _REGULAR * len(gaps):
        return seconds
    made = list(seconds)
    for before, end in pairwise([ends[0] - gap, *ends]):
        first = max(0, before + 1)
        if end - first < 2 * gap and seconds[end] < 2 * usual:
            made[first : end + 1] = [statistics.fmean(seconds[first : end + 1])] * (end + 1 - first)
    return made


def level(seconds: list[float]) -> float:
    """The figure of one trial: the median of its block means after warm-up. A lone spike does not move it."""
    return statistics.median(block_means(evened(seconds)))


def calibration_sd(baselines: list[float]) -> float:
    """Standard deviation of the log-ratio of two identical processes, from all baseline levels so far. What machines
    usually show may only raise it: lowering a noisy machine's spread by it gave more false gains than are stated."""
    logs = [math.log(value) for value in baselines]
    freedom = max(0, len(logs) - 1)
    seen = 2 * _variance(logs) if freedom else 0.0
    usual = (_PRIOR_WEIGHT * _PRIOR_SD**2 + freedom * seen) / (_PRIOR_WEIGHT + freedom)
    return math.sqrt(max(seen, usual))


def process_sd(groups: Sequence[Sequence[float]]) -> float:
    """Standard deviation of the log level of identical processes, from groups of logs, each of one plan. What machines
    usually show counts as a little more of the same."""
    squares = math.fsum((len(logs) - 1) * _variance(logs) for logs in groups if len(logs) > 1)
    freedom = sum(len(logs) - 1 for logs in groups if len(logs) > 1)
    return math.sqrt((_PRIOR_WEIGHT * _PRIOR_SD**2 / 2 + squares) / (_PRIOR_WEIGHT + freedom))


def compare(baselines: list[float], candidates: list[float], sd: float) -> Comparison:
    """Judge pairs (baseline i against candidate i), at any number of pairs; claims fall only at the looks."""
    differences = sorted(math.log(a / b) for a, b in zip(baselines, candidates, strict=True))
    n = len(differences)
    trimmed = 0 if n < 6 else max(1, n // 5)
    kept = differences[trimmed : n - trimmed] if trimmed else differences
    mean, h = statistics.fmean(kept), n - 2 * trimmed
    if h > 1 and trimmed:
        winsorised = [min(max(d, kept[0]), kept[-1]) for d in differences]
        variance = _variance(winsorised) * (n - 1) / (h * (h - 1)) * n
    else:
        variance = _variance(differences) if n > 1 else 0.0
    pooled = ((h - 1) * variance + _CALIBRATION_WEIGHT * sd**2) / (h - 1 + _CALIBRATION_WEIGHT)
    error, freedom = math.sqrt(pooled / n), h - 1 + _CALIBRATION_WEIGHT
    reach = student_quantile(1 - _ALPHA, freedom) * error
    interval = Interval(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))
    if n in LOOKS and mean - reach > LEAST_GAIN and _consistent(baselines, candidates, differences, trimmed):
        return Comparison(Decision.CLAIM, interval)
    if n >= LOOKS[0] and mean + 1.28 * error < HOPELESS:
        return Comparison(Decision.GIVE_UP, interval)
    return Comparison(Decision.GO_ON, interval)


def smallest_gain(sd: float, pairs: int = 4) -> float:
    """The least ratio that so many pairs could show on this machine."""
    freedom = pairs - 1 + _CALIBRATION_WEIGHT
    return math.exp(LEAST_GAIN + student_quantile(1 - _ALPHA, freedom) * sd / math.sqrt(pairs))


def _consistent(baselines: list[float], candidates: list[float], differences: list[float], trimmed: int) -> bool:
    if len(differences) <= 4:
        return min(baselines) > max(candidates)
    if len(differences) <= 8:
        return differences[trimmed] > 0
    return True


def _variance(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


@cache
def student_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for whole degrees of freedom, by bisection of its closed form."""
    low, high = 0.0, 1e4
    while high - low > 1e-9 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_within(middle, freedom) < 2 * p - 1 else (low, middle)
    return (low + high) / 2


def _student_within(t: float, freedom: int) -> float:
    """P(|T| < t): a finite trigonometric sum, after Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    cos2, sine = math.cos(angle) ** 2, math.sin(angle)
    if freedom % 2:
        term = total = math.cos(angle) if freedom > 1 else 0.0
        for k in range(3, freedom - 1, 2):
            term *= cos2 * (k - 1) / k
            total += term
        return 2 / math.pi * (angle + sine * total)
    term = total = 1.0
    for k in range(2, freedom - 1, 2):
        term *= cos2 * (k - 1) / k
        total += term
    return sine * total
