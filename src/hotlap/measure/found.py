"""What a search knows so far, valid at any moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hotlap.measure.caveats import Caveat
from hotlap.measure.stats import Comparison, Decision, calibration_sd, compare, smallest_gain
from hotlap.observe.run import Run
from hotlap.report.findings import Ablation, EpochTimes, Interval, NotTried, ParityCheck, Rejected
from hotlap.technique import Choice, Parity

KEEP_GAIN = 1.02  # screened: a candidate is taken in when it is faster by more than this, and than the noise
_MORE = 1.2  # times what a tuning took, that a larger budget has at least
BEYOND_NOISE = 1.25  # whatever the noise of the script: a plan may have less of it, and is proven later anyway


@dataclass
class Found:
    """An interrupt at any moment keeps the best so far."""

    plan: list[Choice] = field(default_factory=list)
    gains: dict[str, float | None] = field(default_factory=dict)  # screened; None where it came in with others
    parities: dict[str, Parity] = field(default_factory=dict)
    epoch: EpochTimes | None = None  # by single trials, where what saves between steps was taken in
    rejected: list[Rejected] = field(default_factory=list)
    not_tried: list[NotTried] = field(default_factory=list)
    ablation: list[Ablation] = field(default_factory=list)
    checks: list[ParityCheck] = field(default_factory=list)
    losses_before: list[float] = field(default_factory=list)  # in the parity runs, their randomness lined up
    losses_after: list[float] = field(default_factory=list)
    losses_spread: list[list[float]] = field(default_factory=list)
    comparison: Comparison | None = None
    baselines: list[float] = field(default_factory=list)
    level: float = 0.0  # seconds a step of the plan so far, by a single trial
    plans: list[float] = field(default_factory=list)  # levels of the plan in confirmation
    before: Run | None = None
    after: Run | None = None
    caveats: list[str] = field(default_factory=list)
    cut_short: bool = False  # interrupted, or out of budget: "nothing kept" then says nothing
    asked: dict[str, tuple[float, Caveat, dict[str, object]]] = field(default_factory=dict)  # for more, by its words

    def reject(self, choices: list[Choice], reason: str) -> None:
        for choice in choices:
            others = " + ".join(str(other) for other in choices if other is not choice)
            words = f"{reason}, together with {others}" if others else reason
            self.rejected.append(Rejected(choice.technique.id, dict(choice.setting), words))

    def accept(self, choice: Choice) -> None:
        """What was rejected alone may be worth having together with something else."""
        same = choice.technique.id, dict(choice.setting)
        self.rejected = [one for one in self.rejected if (one.technique, one.setting) != same]

    def ask_for(self, budget_seconds: float, caveat: Caveat, **facts: object) -> None:
        """Says first of all what the budget had no room for, and which one would have."""
        self.cut_short = True
        words = caveat.text(budget=_budget(budget_seconds), **facts)
        self.asked[words] = budget_seconds, caveat, facts
        self.caveats.insert(0, words)

    def ask_for_no_less_than(self, spent: float) -> None:
        """What was asked for on the way may have been overtaken by what came after."""
        for words, (seconds, caveat, facts) in self.asked.items():
            more = caveat.text(budget=_budget(max(seconds, _MORE * spent)), **facts)
            self.caveats = [more if one == words else one for one in self.caveats]

    def epoch_of(self, kept: Sequence[str]) -> EpochTimes | None:
        """What whole epochs took, unless one of those that saved there has been dropped since."""
        return self.epoch if self.epoch is not None and set(self.epoch.techniques) <= set(kept) else None

    @property
    def confirmed(self) -> bool:
        return self.comparison is not None and self.comparison.decision is Decision.CLAIM

    @property
    def a_against_a(self) -> Interval | None:
        """The baseline against itself, judged like any other pair of arms: what no gain looks like here."""
        if len(self.baselines) < 2:
            return None
        end = len(self.baselines) // 2 * 2
        one, other = self.baselines[0:end:2], self.baselines[1:end:2]
        return compare(one, other, calibration_sd(self.baselines)).interval

    @property
    def worth_keeping(self) -> float:
        """The ratio a single trial must show: more than two identical processes differ by chance."""
        return max(KEEP_GAIN, min(BEYOND_NOISE, math.exp(calibration_sd(self.baselines))))

    @property
    def smallest_gain(self) -> float:
        """The least this machine can show, from how far identical processes were apart."""
        return smallest_gain(calibration_sd(self.baselines))


def _budget(seconds: float) -> str:
    return f"{math.ceil(seconds / 10) * 10}s"
