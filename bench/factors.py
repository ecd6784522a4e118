"""Factors over processes that took turns: every trial is held against the script's own trials nearest to it, so that a
machine that drifts takes both along."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hotlap.measure.stats import calibration_sd, student_quantile
from hotlap.report.findings import Interval

SCRIPT = "script"

Session = Sequence[tuple[str, float]]  # which arm, and seconds a step: one entry a trial, in the order they ran


def gains(sessions: Sequence[Session]) -> dict[str, list[float]]:
    """For each arm the logarithms of script / arm, one a trial; against the script before it and after it."""
    found: dict[str, list[float]] = {}
    for session in sessions:
        places = [place for place, (arm, _) in enumerate(session) if arm == SCRIPT]
        for place, (arm, level) in enumerate(session):
            near = [[one for one in places if one < place][-1:], [one for one in places if one > place][:1]]
            beside = [math.log(session[one][1]) for side in near for one in side]
            if arm != SCRIPT and beside:
                found.setdefault(arm, []).append(statistics.fmean(beside) - math.log(level))
    return found


def script_levels(sessions: Sequence[Session]) -> list[list[float]]:
    return [[level for arm, level in session if arm == SCRIPT] for session in sessions]


def factor(logs: Sequence[float], of: Sequence[float], scripts: Sequence[Sequence[float]]) -> Interval:
    """How much faster the first are than the second (the script, where these are none), with a 95 % interval over
    processes. A few trials say little of how far processes differ: what the script's own trials show is pooled in,
    session by session, since sessions may have been hours apart."""
    several = [levels for levels in scripts if len(levels) > 1]
    freedom = sum(len(levels) - 1 for levels in several)
    squares = sum((len(levels) - 1) * calibration_sd(list(levels)) ** 2 for levels in several)
    for arm in (logs, of):
        if len(arm) > 1:
            freedom += len(arm) - 1
            squares += (len(arm) - 1) * statistics.variance(arm)
    middle = statistics.fmean(logs) - (statistics.fmean(of) if of else 0.0)
    if not freedom:
        return Interval(math.exp(middle), 0.0, math.inf)
    error = math.sqrt(squares / freedom * sum(1 / len(arm) for arm in (logs, of) if arm))
    reach = student_quantile(0.975, freedom) * error
    return Interval(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach))
