"""The budget of a tuning: what a trial costs, and what has to be left for the proof."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hotlap.measure.bench import Bench
from hotlap.measure.proof import OVERTIME, PARITY_TRIALS
from hotlap.measure.stats import LOOKS
from hotlap.measure.timed import Timed
from hotlap.technique import Choice

CONFIRM_SHARE = 0.35  # of the budget, kept back for proof


class Purse:
    def __init__(self, bench: Bench, seconds: float) -> None:
        self._bench, self.seconds = bench, seconds
        self.trial_seconds = 0.0  # what a trial of the script costs, start-up included
        self.plan_seconds = 0.0  # and one of the plan so far
        self.once_seconds = 0.0  # what its first trial took beyond that: as much more is kept back for its parity run
        self.start_up_seconds = 0.0  # what no plan makes shorter
        self.reserved = 0.0  # of what is left for trials
        self.for_epochs: Callable[[], float] = float  # the same for whole epochs with the plan so far

    def learn(self, timing: Timed) -> None:
        """A plan was taken in. Most of what one that compiles has made is there by now, but that takes long to load."""
        self.plan_seconds = timing.seconds_again
        self.once_seconds = timing.seconds - timing.seconds_again

    def has_room_for(self, plan: Sequence[Choice], trials: int = 1, start_up_seconds: float = 0.0) -> bool:
        return self.has_room(trials, start_up_seconds) or self._bench.knows(plan)

    def has_room(self, trials: int, start_up_seconds: float = 0.0) -> bool:
        wanted = trials * self.plan_seconds + start_up_seconds
        return self.until_proof >= wanted + self.reserved + self.for_epochs()

    @property
    def until_proven(self) -> float:
        """When one look at a plan and all that has to follow would be over, if its trials take no longer than the
        script's."""
        return self._bench.spent + self.trial_seconds + self._proof_seconds(self.plan_seconds)

    def may_look(self, plan: Sequence[Choice]) -> bool:
        """Whether one look is worth it although the budget has no room for a proof, while nothing else was tried: a
        plan that is much faster makes its own proof shorter. Not where each trial takes long to get going."""
        shortest = self._proof_seconds(min(self.start_up_seconds, self.plan_seconds))
        until = self._bench.spent + self.trial_seconds + shortest
        return until <= OVERTIME * self.seconds and not any(choice.start_up_seconds for choice in plan)

    @property
    def until_proof(self) -> float:
        """Seconds left before the part of the budget that belongs to parity and to the proof by pairs."""
        needed = self._proof_seconds(self.plan_seconds)
        return self.seconds - max(CONFIRM_SHARE * self.seconds, needed) - self._bench.spent

    def _proof_seconds(self, plan_seconds: float) -> float:
        return (PARITY_TRIALS + LOOKS[0]) * self.trial_seconds + LOOKS[0] * plan_seconds + self.once_seconds

    def for_all(self, unfit: int, start_up_seconds: float) -> float:
        """The budget that would have held so many trials more, which take so long to get going, and still had left
        what is kept back for proof."""
        trials = self._bench.spent + 2 * unfit * self.trial_seconds + start_up_seconds
        proof = (PARITY_TRIALS + 2 * LOOKS[0]) * self.trial_seconds
        return max(trials + proof, trials / (1 - CONFIRM_SHARE), 1.2 * self.seconds)
