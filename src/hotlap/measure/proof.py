"""Proof of a plan: that the training is the same, that the whole is faster, and what each part of it is worth."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hotlap.measure.bench import Bench
from hotlap.measure.candidates import accompanied
from hotlap.measure.caveats import Caveat
from hotlap.measure.culprits import without_culprits
from hotlap.measure.found import BEYOND_NOISE, Found
from hotlap.measure.sameness import Sameness, failure, level_of, passed
from hotlap.measure.stats import LOOKS, Decision, calibration_sd, compare
from hotlap.measure.timed import Timed
from hotlap.observe.run import Run
from hotlap.records import from_json, to_json
from hotlap.report.findings import Ablation, ParityCheck, TrialTimes
from hotlap.technique import Choice, Family, Parity

PARITY_TRIALS = 2  # what the three, shorter, parity runs cost, in timing trials
OVERTIME = 1.5  # budgets, that the proof of a large gain may end after
OTHER_SEEDS = 2  # runs of the script for the band round its losses


@dataclass(frozen=True)
class Verdict:
    """What a parity run came to."""

    checks: list[ParityCheck]
    repeats_itself: bool
    saw_an_epoch_end: bool
    losses_before: list[float]
    losses_after: list[float]


class Proof:
    """Works on what a search found, and takes out of it what does not hold."""

    def __init__(
        self, bench: Bench, found: Found, budget_seconds: float, trial_seconds: float, parity_folder: str
    ) -> None:
        self._bench, self.found, self._budget, self._trial_seconds = bench, found, budget_seconds, trial_seconds
        self._parity_folder = parity_folder
        self._same: Sameness | None = None
        self._is_late = False

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
        checks = self._verdict(same, self.found.plan, "plan")
        if not passed(checks) and len(self.found.plan) > 1:
            checks = self._without_culprits(same, checks)
        self.found.checks = checks
        if self.found.plan and not passed(checks):
            self._drop_all(f"not the same training: {failure(checks)}")

    def _without_culprits(self, same: Sameness, checks: list[ParityCheck]) -> list[ParityCheck]:
        """Who was not looked at when the budget ends has to go: the fault may be there."""
        whole = list(self.found.plan)

        def look(plan: Sequence[Choice]) -> list[ParityCheck]:
            return self._verdict(same, accompanied([one for one in whole if one in plan]), "what is left of it")

        def has_room(plan: Sequence[Choice]) -> bool:
            return self._has_room_for_a_look(same) or self._is_judged(accompanied(plan))

        outcome = without_culprits(sorted(whole, key=lambda one: self._innocence(one, checks)), checks, look, has_room)
        if not self.found.plan:  # the script itself gave nothing to compare with
            return []
        for choice in whole:
            if choice.technique.id in outcome.guilty:
                self._drop(choice, f"not the same training: {outcome.guilty[choice.technique.id]}")
            elif choice in outcome.unseen:
                why = f"the whole was not the same training ({failure(checks)})"
                self._drop(choice, f"{why}, and the budget ended before a look at this")
        for choice in [one for one in self.found.plan if one not in accompanied(self.found.plan)]:
            self._drop(choice, "nothing that it comes with is left in the plan")
        if outcome.unseen:
            count = len(outcome.unseen)
            budget = self._bench.spent + (1 + count) * self._look_seconds(same) + self._for_pairs
            self.found.ask_for(max(budget, 1.2 * self._budget), Caveat.NOT_LOOKED_AT, count=count)
        return outcome.checks

    def _innocence(self, choice: Choice, checks: list[ParityCheck]) -> tuple[bool, bool, bool, float]:
        """What comes with others goes first, or they would be blamed for it. Other batches come from what feeds; what
        promises the same bits keeps the rest, too, more often; and who rounds most is farthest off."""
        feeds = choice.technique.family in (Family.WAIT, Family.COPY)
        batches_differ = not checks[0].passed
        is_identical = self.found.parities[choice.technique.id] is Parity.IDENTICAL
        leads = not choice.technique.comes_with
        return leads, feeds is not batches_differ, is_identical, -choice.technique.rounding

    def _has_room_for_a_look(self, same: Sameness) -> bool:
        """So that the first pairs still fit."""
        return self._bench.spent + self._look_seconds(same) + self._for_pairs <= self._budget

    def _look_seconds(self, same: Sameness) -> float:
        return same.seconds or self._trial_seconds

    @property
    def _for_pairs(self) -> float:
        return 2 * LOOKS[0] * self._trial_seconds

    def _is_judged(self, plan: Sequence[Choice]) -> bool:
        return self._bench.recall(self._kind(plan), plan, is_timed=False) is not None

    def _kind(self, plan: Sequence[Choice]) -> str:
        return f"parity, {level_of(plan, self.found.parities).value}"

    def _verdict(self, same: Sameness, plan: Sequence[Choice], label: str) -> list[ParityCheck]:
        """Judged now, or on record for this very plan. Nothing to judge where the script gives no reference."""
        if not plan:
            return []
        kind = self._kind(plan)
        recalled = self._bench.recall(kind, plan, is_timed=False)
        if recalled is not None:
            self._bench.known.use(recalled)
            verdict = from_json(Verdict, recalled.found)
        else:
            trouble = same.start()
            why = trouble.ending if trouble is not None else same.too_little
            if why:
                self._drop_all(f"parity could not be checked: {why}")
                return []
            self._same = same
            checks = same.checks(plan, label, self.found.parities)
            curves = same.reference_losses, same.losses
            verdict = Verdict(checks, same.repeats_itself, same.saw_an_epoch_end, *curves)
            if len(checks) > 1:  # else it was not judged at all: it may be another time
                self._bench.keep(kind, plan, to_json(verdict))
        for is_so, caveat in (
            (verdict.repeats_itself, Caveat.REPEATS_ITSELF_NOT.text()),
            (verdict.saw_an_epoch_end, Caveat.NO_EPOCH_END.text()),
        ):
            self.found.caveats += [] if is_so or caveat in self.found.caveats else [caveat]
        if verdict.saw_an_epoch_end and Caveat.NO_EPOCH_END.text() in self.found.caveats:
            self.found.caveats.remove(Caveat.NO_EPOCH_END.text())  # said of the timed trials, and now not true
        self.found.losses_before, self.found.losses_after = verdict.losses_before, verdict.losses_after
        return verdict.checks

    def _drop(self, choice: Choice, reason: str) -> None:
        self.found.plan.remove(choice)
        self.found.reject([choice], reason)

    def _drop_all(self, reason: str) -> None:
        for choice in list(self.found.plan):
            self._drop(choice, reason)

    # is it really faster? -----------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Pairs in the order A B B A, judged at the looks. Also gives the A-against-A spread its numbers. Pairs that
        were decided in an earlier tuning are not run again; those it did not finish are."""
        if not self.found.plan:
            return
        if not self._recall_pairs() and not self._run_pairs():
            return
        if not self.found.confirmed:
            assert self.found.comparison is not None
            shown = self.found.comparison.interval
            self._drop_all(
                f"the whole plan's gain was not shown: {shown.ratio:.2f}x ({shown.low:.2f} to {shown.high:.2f})"
            )
            if self.found.comparison.decision is Decision.GO_ON:
                self.found.cut_short = True
                pairs = len(self.found.plans)
                if pairs >= LOOKS[-1]:  # then more time would not have brought more of them
                    self.found.caveats.insert(0, Caveat.NOT_TOLD_APART.text(pairs=pairs))
                else:
                    self.found.ask_for(2 * self._budget, Caveat.NOT_CONFIRMED)

    def _recall_pairs(self) -> bool:
        recalled = self._bench.recall("pairs", self.found.plan)
        if recalled is None or recalled.scale is None:
            return False
        day, pairs = self._bench.known.use(recalled), recalled.found
        self.found.comparison = compare(pairs["baselines"], pairs["plans"], pairs["sd"])
        self.found.baselines += pairs["baselines"]
        self.found.plans, self.found.after = pairs["plans"], from_json(Run, pairs["after"])
        for one in pairs["times"]:
            self._bench.times.append(dataclasses.replace(from_json(TrialTimes, one), reused=day))
        self.found.caveats.append(Caveat.KNOWN_PROOF.text(day=day))
        return True

    def _run_pairs(self) -> bool:
        """False where one of the arms gave no figure."""
        baselines: list[float] = []
        first = len(self._bench.times)
        for pair in range(LOOKS[-1]):
            if pair >= LOOKS[0] and not self._has_time_for_a_pair(baselines):
                break
            arms = ("baseline", "plan") if pair % 2 == 0 else ("plan", "baseline")
            levels = {}
            for arm in arms:
                timing = self._bench.time(self.found.plan if arm == "plan" else [], arm, "confirm")
                if not isinstance(timing, Timed):
                    self._drop_all(f"in confirmation {arm} ended with {timing.ending}")
                    return False
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
        assert self.found.comparison is not None and self.found.after is not None
        if self.found.comparison.decision is not Decision.GO_ON:
            times = [to_json(one) for one in self._bench.times[first:]]
            pairs = {"baselines": baselines, "plans": self.found.plans, "sd": sd, "times": times}
            self._bench.keep("pairs", self.found.plan, pairs | {"after": to_json(self.found.after)})
        return True

    def _has_time_for_a_pair(self, baselines: list[float]) -> bool:
        """Within the budget; and somewhat beyond it where every trial so far tells of a large gain and only their
        spread stands against it: to throw all of them away would cost more."""
        until = self._bench.spent + 2 * self._trial_seconds
        if until <= self._budget:
            return True
        is_large = min(baselines) > BEYOND_NOISE * max(self.found.plans)
        if not is_large or until > OVERTIME * self._budget:
            return False
        if not self._is_late:
            self._bench.say(f"a large gain, but far apart: more pairs, until {OVERTIME * self._budget:.0f} s at most")
            self._is_late = True
        return True

    # what is each worth? --------------------------------------------------------------------------------------------

    def _ablate(self) -> None:
        """Each alone and each left out, by single trials, with what is left of the budget."""
        if not self.found.confirmed:
            return
        for choice in (one for one in self.found.plan if not self._is_between_steps(one)):
            rest = [other for other in self.found.plan if other is not choice]
            left_out = self._ratio(rest, f"without {choice}") if rest else None
            alone = self._ratio([choice], str(choice))
            if alone is not None or left_out is not None:
                self.found.ablation.append(Ablation(choice.technique.id, alone, left_out))

    def _is_between_steps(self, choice: Choice) -> bool:
        """Then no step tells what it is worth."""
        by_epochs = self.found.epoch.techniques if self.found.epoch is not None else ()
        return bool(choice.technique.comes_with) or choice.technique.id in by_epochs

    def _ratio(self, plan: list[Choice], label: str) -> float | None:
        if self._bench.spent + self._trial_seconds > self._budget and not self._bench.knows(plan):
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
