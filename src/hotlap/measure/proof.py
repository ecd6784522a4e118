"""Proof of a plan: that the training is the same, that the whole is faster, and what each part of it is worth."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from hotlap.measure.bench import Bench, Timed
from hotlap.measure.caveats import Caveat
from hotlap.measure.found import Found
from hotlap.measure.sameness import Sameness, failure, passed
from hotlap.measure.stats import LOOKS, Decision, calibration_sd, compare
from hotlap.report.findings import Ablation
from hotlap.technique import Choice

PARITY_TRIALS = 2  # what the three, shorter, parity runs cost, in timing trials
OTHER_SEEDS = 2  # runs of the script for the band round its losses


class Proof:
    """Works on what a search found, and takes out of it what does not hold."""

    def __init__(
        self, bench: Bench, found: Found, budget_seconds: float, trial_seconds: float, parity_folder: str,
        alone: Mapping[str, float],
    ) -> None:  # fmt: skip
        self._bench, self.found, self._budget, self._trial_seconds = bench, found, budget_seconds, trial_seconds
        self._parity_folder, self._alone = parity_folder, alone
        self._same: Sameness | None = None

    def run(self) -> None:
        self._check_parity()
        self.confirm()
        self._ablate()
        self._spread()

    # is it the same training? ---------------------------------------------------------------------------------------

    def _check_parity(self) -> None:
        if not self.found.plan:
            return
        same = Sameness(self._bench, self._parity_folder)
        trouble = same.start()
        if trouble is not None:
            self._drop_all(f"parity could not be checked: {trouble.ending}")
            return
        self._same = same
        if not same.repeats_itself:
            self.found.caveats.append(Caveat.REPEATS_ITSELF_NOT.text())
        if not same.saw_an_epoch_end and Caveat.NO_EPOCH_END.text() not in self.found.caveats:
            self.found.caveats.append(Caveat.NO_EPOCH_END.text())
        checks = same.checks(self.found.plan, "plan", self.found.parities)
        if not passed(checks) and len(self.found.plan) > 1:
            for choice in list(self.found.plan):
                alone = same.checks([choice], str(choice), self.found.parities)
                if not passed(alone):
                    self._drop(choice, f"not the same training: {failure(alone)}")
            if self.found.plan:
                checks = same.checks(self.found.plan, "plan", self.found.parities)
        self.found.checks = checks
        self.found.losses_before, self.found.losses_after = same.reference_losses, same.losses
        if self.found.plan and not passed(checks):
            self._drop_all(f"not the same training: {failure(checks)}")

    def _drop(self, choice: Choice, reason: str) -> None:
        self.found.plan.remove(choice)
        self.found.reject([choice], reason)

    def _drop_all(self, reason: str) -> None:
        for choice in list(self.found.plan):
            self._drop(choice, reason)

    # is it really faster? -----------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Pairs in the order A B B A, judged at the looks. Also gives the A-against-A spread its numbers."""
        if not self.found.plan:
            return
        baselines: list[float] = []
        for pair in range(LOOKS[-1]):
            if pair >= LOOKS[0] and self._bench.spent + 2 * self._trial_seconds > self._budget:
                break
            arms = ("baseline", "plan") if pair % 2 == 0 else ("plan", "baseline")
            levels = {}
            for arm in arms:
                timing = self._bench.time(self.found.plan if arm == "plan" else [], arm, "confirm")
                if not isinstance(timing, Timed):
                    self._drop_all(f"in confirmation {arm} ended with {timing.ending}")
                    return
                levels[arm] = timing.level
                if arm == "plan":
                    self.found.after = timing.run
            baselines.append(levels["baseline"])
            self.found.plans.append(levels["plan"])
            sd = calibration_sd(self.found.baselines + baselines)
            self.found.comparison = compare(baselines, self.found.plans, sd)
            if len(baselines) in LOOKS and self.found.comparison.decision is not Decision.GO_ON:
                break
        self.found.baselines += baselines
        if not self.found.confirmed:
            assert self.found.comparison is not None
            shown = self.found.comparison.interval
            self._drop_all(
                f"the whole plan's gain was not shown: {shown.ratio:.2f}x ({shown.low:.2f} to {shown.high:.2f})"
            )
            if self.found.comparison.decision is Decision.GO_ON:
                self.found.cut_short = True
                self.found.caveats.insert(0, Caveat.NOT_CONFIRMED.text(budget=f"{2 * self._budget:.0f}s"))

    # what is each worth? --------------------------------------------------------------------------------------------

    def _ablate(self) -> None:
        """Each alone and each left out, by single trials, with what is left of the budget."""
        if not self.found.confirmed:
            return
        for choice in self.found.plan:
            name = choice.technique.id
            alone, left_out = self._alone.get(name), None
            if len(self.found.plan) > 1:
                rest = [other for other in self.found.plan if other is not choice]
                left_out = self._ratio(rest, f"without {choice}")
                alone = alone if alone is not None else self._ratio([choice], f"{choice} alone")
            self.found.ablation.append(Ablation(name, alone, left_out))

    def _ratio(self, plan: list[Choice], label: str) -> float | None:
        if self._bench.spent + self._trial_seconds > self._budget:
            return None
        timing = self._bench.time(plan, label, "ablation")
        return statistics.median(self.found.baselines) / timing.level if isinstance(timing, Timed) else None

    # how far are losses apart by chance? ----------------------------------------------------------------------------

    def _spread(self) -> None:
        """A band for the picture, only with what is left of the budget."""
        if not self.found.confirmed or self._same is None:
            return
        if self._bench.spent + OTHER_SEEDS * self._same.seconds <= self._budget:
            self.found.losses_spread = self._same.spread(OTHER_SEEDS)
