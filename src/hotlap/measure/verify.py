"""`hotlap verify`: a plan's parity test once more, on the machine, torch and script of today. Changes nothing."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.errors import HotlapError
from hotlap.evidence import Evidence
from hotlap.measure.bench import Bench, Listener
from hotlap.measure.caveats import Caveat
from hotlap.measure.found import Found
from hotlap.measure.proof import Proof
from hotlap.measure.sameness import Sameness
from hotlap.measure.timed import Timed, Untimed
from hotlap.measure.trial import Trials
from hotlap.measure.tune import facts, order_for
from hotlap.measure.verdicts import no_baseline
from hotlap.observe.launch import Target
from hotlap.plan import Plan
from hotlap.report.findings import Interval, Rechecked, VerifyReport
from hotlap.technique import Choice, Parity

_LIMIT_SECONDS = 600.0  # a run that is still there then is ended: there is no budget to share here
_TRIAL_SECONDS = 5.0  # of training, for each process of a pair


@dataclass(frozen=True)
class Wishes:
    """What the user asked of a verification."""

    speed: bool = False
    allow_network: bool = False
    accept_writes: bool = False


def verify(
    target: Target, plan: Plan, choices: Sequence[Choice], evidence: Evidence, wishes: Wishes, listener: Listener
) -> VerifyReport:
    """Hold the plan as it stands in hotlap.toml against the script as it stands. A HotlapError where that cannot be."""
    order = order_for(target, wishes.allow_network, wishes.accept_writes, _LIMIT_SECONDS)
    promised = {kept.technique: Parity(kept.parity) for kept in evidence.plan}
    parities = {one.technique.id: promised.get(one.technique.id, one.technique.weakest_parity) for one in choices}
    with Trials() as trials:
        bench = Bench(trials, order, _TRIAL_SECONDS, listener)
        same = Sameness(bench, trials.exchange("parity"))
        trouble = same.start()
        if trouble is not None:
            raise HotlapError(no_baseline(Untimed(trouble.ending, trouble.run, trouble.log)))
        if same.too_little:
            raise HotlapError(
                f"{same.too_little}: name the script that trains, or give it arguments that train for longer"
            )
        checks = same.checks(choices, "plan", parities)
        speedup, slow = _speed(bench, choices) if wishes.speed else (None, [])
        now = facts(target, 3 + len(bench.times), "verify")
    then = {_name(check.what): check.figure for check in evidence.parity}
    caveats = [] if same.repeats_itself else [Caveat.REPEATS_ITSELF_NOT.text()]
    caveats += [] if same.saw_an_epoch_end else [Caveat.NO_EPOCH_END.text()]
    caveats += {"none": [Caveat.UNPROTECTED.text()], "redirect": [Caveat.REDIRECTED.text()]}.get(order.sandbox, [])
    return VerifyReport(
        script=str(target),
        plan=[str(choice) for choice in choices],
        checks=[Rechecked(one.what, then.get(_name(one.what)), one.figure, one.limit, one.passed) for one in checks],
        changed=evidence.changes(plan, target.path, shlex.join(target.arguments), now),
        speedup_then=evidence.speedup,
        speedup=speedup,
        date_then=evidence.facts.date,
        facts=now,
        caveats=caveats + slow,
    )


def _speed(bench: Bench, choices: Sequence[Choice]) -> tuple[Interval | None, list[str]]:
    """As many pairs as the first look of a proof takes, and no more: enough to see whether the gain is still there."""
    first = bench.time([], "the script, a first look", "baseline")
    if isinstance(first, Timed):
        bench.see_past_an_epoch(first.run)
    found = Found(plan=list(choices))
    Proof(bench, found, budget_seconds=0.0, trial_seconds=0.0, parity_folder="").confirm()
    if found.comparison is None:
        return None, [f"the speed could not be measured: {found.rejected[0].reason}"]
    return found.comparison.interval, []


def _name(what: str) -> str:
    """The figure without how many there were of it, which differs from run to run."""
    return re.sub(r"( \(.*\))?, of \d+$", "", what)
