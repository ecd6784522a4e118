"""Which techniques are worth a trial here: what the baseline's record says of each."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hotlap.observe.run import Run
from hotlap.technique import CannotHelp, Choice, Needs, Parity, Technique, Try

LEAST_SHARE = 0.02  # a technique that could save less of the step is not tried


@dataclass(frozen=True)
class Candidate:
    technique: Technique
    tries: tuple[Try, ...]  # most promising first
    parity: Parity

    @property
    def most(self) -> float:
        return max(attempt.most for attempt in self.tries)

    def choice(self, number: int = 0) -> Choice:
        return Choice(self.technique, self.tries[number].setting)


@dataclass(frozen=True)
class Skipped:
    technique: Technique
    reason: str
    in_use: bool = False
    is_small: bool = False  # a part of the step that may grow when others shrink


def consider(technique: Technique, run: Run, allow_different: bool = False) -> Candidate | Skipped:
    """One technique against one run: worth trying, already in use, or of no help, with the reason."""
    if technique.comes_with:
        return Skipped(technique, "no step shows what it saves: it comes with others")
    verdict = able(technique, run, allow_different)
    if isinstance(verdict, Candidate) and verdict.most < LEAST_SHARE:
        reason = f"could save at most {100 * verdict.most:.1f} % of a step"
        return Skipped(technique, reason, bool(technique.seen(run)), True)
    return verdict


def able(technique: Technique, run: Run, allow_different: bool = False) -> Candidate | Skipped:
    """The same, however little it could save of a step."""
    in_use = bool(technique.seen(run))
    if in_use and not technique.adjustable:
        return Skipped(technique, "already in use", in_use=True)
    if "apply" not in technique.verbs and not {"rewrite", "settings"} <= set(technique.verbs):
        told = technique.settings(run) if "settings" in technique.verbs else None  # advice with figures
        reason = told.reason if isinstance(told, CannotHelp) else "can only be written into source: see `hotlap check`"
        return Skipped(technique, reason)
    missing = _missing(technique.needs, run)
    if missing:
        return Skipped(technique, missing)
    parity = technique.parity(run)
    if parity is Parity.DIFFERENT and not allow_different:
        return Skipped(technique, "makes it another training: ask for it with --allow different")
    tries = technique.settings(run)
    if isinstance(tries, CannotHelp):
        return Skipped(technique, tries.reason, in_use)
    return Candidate(technique, tuple(tries), parity)


Member = TypeVar("Member", Candidate, Choice)


def partners(candidate: Member, others: Iterable[Member]) -> list[Member]:
    """Those whose traits make this one worth more, or the other way round."""
    return [
        other
        for other in others
        if other.technique is not candidate.technique
        and (
            candidate.technique.helps_with & other.technique.traits
            or other.technique.helps_with & candidate.technique.traits
        )
    ]


def clash(choice: Choice, plan: Sequence[Choice]) -> Choice | None:
    """The member of a plan this choice cannot live with."""
    for other in plan:
        if choice.technique.excludes & other.traits or other.technique.excludes & choice.traits:
            return other
    return None


def accompanied(plan: Sequence[Choice]) -> list[Choice]:
    """A plan without what comes with others, where none of those is in it."""
    return [one for one in plan if not one.technique.comes_with or has_company(one.technique, plan)]


def has_company(technique: Technique, plan: Sequence[Choice]) -> bool:
    return any(technique.comes_with & choice.traits for choice in plan)


def _missing(needs: Needs, run: Run) -> str | None:
    if needs.device and needs.device != run.device:
        return f"needs {needs.device}; this run was on {run.device}"
    if needs.torch and _version(run.torch) < _version(needs.torch):
        return f"needs torch {needs.torch} or newer; this is {run.torch}"
    if needs.package and importlib.util.find_spec(needs.package) is None:
        return f"needs the package {needs.package}: pip install {needs.install or needs.package}"
    return None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("+")[0].split(".")[:2])
