"""Who is at fault in a plan that is not the same training: members are left out, the likeliest first, until the rest
is. Those that went on the way and may be innocent are tried again, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hotlap.measure.sameness import failure, passed
from hotlap.report.findings import ParityCheck
from hotlap.technique import Choice

Look = Callable[[Sequence[Choice]], list[ParityCheck]]


@dataclass
class Outcome:
    plan: list[Choice]  # the same training, by `checks`; empty where that was found of none
    checks: list[ParityCheck]
    guilty: dict[str, str] = field(default_factory=dict)  # by technique what failed with it
    unseen: list[Choice] = field(default_factory=list)  # the budget ended before it was clear


def without_culprits(
    suspects: Sequence[Choice], checks: list[ParityCheck], look: Look, has_room: Callable[[Sequence[Choice]], bool]
) -> Outcome:
    """`suspects`: a whole plan that failed by these checks, the likeliest to be at fault first. One is left out, then
    two more, then four more: mostly it is the first, and no plan takes many looks."""
    out: list[Choice] = []
    latest: list[Choice] = []
    rest, size = list(suspects), 1
    while rest and not passed(checks):
        if not has_room(rest[size:]):
            return Outcome([], [], {}, list(suspects))
        out += latest
        latest, rest, size = rest[:size], rest[size:], 2 * size
        failed, checks = failure(checks), look(rest) if rest else []
    found = Outcome(rest, checks)
    for choice in out:
        _try_again(choice, found, look, has_room)
    is_alone = len(latest) == 1 and not found.unseen  # with it the plan failed, and without it it did not
    for choice in latest:
        if is_alone:
            found.guilty[choice.technique.id] = failed
        else:
            _try_again(choice, found, look, has_room)
    return found


def _try_again(choice: Choice, found: Outcome, look: Look, has_room: Callable[[Sequence[Choice]], bool]) -> None:
    plan = [*found.plan, choice]
    if not has_room(plan):
        found.unseen.append(choice)
        return
    checks = look(plan)
    if passed(checks):
        found.plan, found.checks = plan, checks
    else:
        found.guilty[choice.technique.id] = failure(checks)
