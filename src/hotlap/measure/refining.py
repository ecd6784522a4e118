"""Other settings of what is in the plan: more workers, another kind of fused update."""

from __future__ import annotations

from collections.abc import Iterable

from hotlap.measure.attempts import Attempts
from hotlap.measure.candidates import LEAST_SHARE, Candidate, able
from hotlap.measure.found import Found
from hotlap.measure.purse import Purse
from hotlap.technique import Choice


class Refining:
    def __init__(self, attempts: Attempts, purse: Purse, found: Found, allow_different: bool) -> None:
        self._attempts, self._purse, self.found, self._allow_different = attempts, purse, found, allow_different

    def run(self, candidates: Iterable[Candidate]) -> None:
        """Those that are still in the plan, first who could save most of a step as it is with that."""
        for candidate in sorted(candidates, key=self._most_now, reverse=True):
            if any(kept.technique is candidate.technique for kept in self.found.plan):
                self.refine(candidate)

    def refine(self, candidate: Candidate) -> None:
        """While there is room for it."""
        for choice in _others(candidate):
            rest = self._rest(candidate)
            if self._has_room_in_place(choice, rest):
                self._attempts.replace(choice, rest)
            else:
                self._attempts.had_no_room([choice])

    def has_room_for(self, candidate: Candidate) -> bool:
        """Beside what is kept for those that start slowly, if only for the first of its settings."""
        others = _others(candidate)
        return bool(others) and self._has_room_in_place(others[0], self._rest(candidate))

    def _rest(self, candidate: Candidate) -> list[Choice]:
        return [kept for kept in self.found.plan if kept.technique is not candidate.technique]

    def _has_room_in_place(self, choice: Choice, rest: list[Choice]) -> bool:
        starting = sum(kept.start_up_seconds for kept in rest)
        return self._purse.has_room_for([*rest, choice], trials=2, start_up_seconds=starting)

    def _most_now(self, candidate: Candidate) -> float:
        after = self.found.after
        verdict = able(candidate.technique, after, self._allow_different) if after is not None else candidate
        return verdict.most if isinstance(verdict, Candidate) else 0.0


def _others(candidate: Candidate) -> list[Choice]:
    """But for those that no step shows."""
    numbers = [number for number, one in enumerate(candidate.tries) if number and one.most >= LEAST_SHARE]
    return [candidate.choice(number) for number in numbers]
