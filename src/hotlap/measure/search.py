"""Which trials, in what order: from the baseline's shares to a plan whose total gain is proven and whose training is
the same. Screening is by single trials; only the confirmed total is a claim."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hotlap.errors import HotlapError
from hotlap.measure.bench import Bench, Listener, Timed, Untimed
from hotlap.measure.candidates import Candidate, Skipped, clash, consider, partners
from hotlap.measure.caveats import Caveat
from hotlap.measure.found import Found
from hotlap.measure.parity import STEPS, judge
from hotlap.measure.stats import LOOKS, Decision, calibration_sd, compare
from hotlap.report.findings import Ablation, NotTried, ParityCheck, Rejected
from hotlap.technique import Choice, Parity, Technique

KEEP_GAIN = 1.02  # screened: a candidate is taken in when it is faster by more than this, and than the noise
CONFIRM_SHARE = 0.35  # of the budget, kept back for proof
_PARITY_TRIALS = 2  # what the three, shorter, parity runs cost, in timing trials


class Search:
    def __init__(
        self,
        bench: Bench,
        techniques: Sequence[Technique],
        budget_seconds: float,
        parity_folder: str,
        listener: Listener,
        allow_different: bool = False,
    ) -> None:
        self._bench, self._techniques, self._budget = bench, techniques, budget_seconds
        self._parity_folder, self._listener, self._allow_different = parity_folder, listener, allow_different
        self._trial_seconds = 0.0  # what one trial costs, start-up included
        self._best = 0.0
        self._alone: dict[str, float] = {}
        self.found = Found()

    def run(self) -> Found:
        try:
            self._baseline()
            self._screen()
            self._check_parity()
            self._confirm()
            self._ablate()
        except KeyboardInterrupt:
            self.found.cut_short = True
            self.found.caveats.append(Caveat.INTERRUPTED.text())
        if self._bench.disturbed_share > 1 / 3:
            self.found.caveats.append(Caveat.NOISY.text())
        return self.found

    # 1. where does it stand? ----------------------------------------------------------------------------------------

    def _baseline(self) -> None:
        """A first trial, cold and short, for the record; then two that count."""
        first = self._timed_baseline("the script, a first look")
        if not self._bench.see_past_an_epoch(first.run):
            self.found.caveats.append(Caveat.NO_EPOCH_END.text())
        timings = [self._timed_baseline("the script"), self._timed_baseline("the script")]
        last = timings[-1]
        if last.ending == "finished":
            self.found.caveats.append(Caveat.SHORT.text(steps=last.run.steps))
        if not last.settled:
            self.found.caveats.append(Caveat.UNSETTLED.text())
        self.found.before = last.run
        self.found.baselines = [timing.level for timing in timings]
        self._best = statistics.fmean(self.found.baselines)
        self._trial_seconds = max(timing.seconds for timing in timings)

    def _timed_baseline(self, label: str) -> Timed:
        timing = self._bench.time([], label, "baseline")
        if not isinstance(timing, Timed):
            raise HotlapError(_no_baseline(timing))
        return timing

    # 2. what helps? -------------------------------------------------------------------------------------------------

    def _screen(self) -> None:
        """Family by family, largest current share first. Within one, each is tried from the same start and the best
        taken in; the others that gained are tried again on top of it, with bounds renewed: once the wait is gone,
        compute matters."""
        waiting = self._candidates()
        fit = int(max(0.0, self._until_proof) / self._trial_seconds)
        self._listener.said(
            f"a trial takes {self._trial_seconds:.1f} s; {len(waiting)} candidates, room for {fit} trials beside the"
            f" proof in {self._budget:.0f} s"
        )
        if waiting and not fit:
            wanted = self._bench.spent + (_PARITY_TRIALS + 2 * LOOKS[0] + 2 * len(waiting)) * self._trial_seconds
            self.found.cut_short = True
            self.found.caveats.append(Caveat.NO_ROOM.text(budget=f"{math.ceil(wanted / 10) * 10}s"))
        idle: list[Candidate] = []
        while waiting:
            family = max(waiting, key=lambda candidate: candidate.most).technique.family
            group = [candidate for candidate in waiting if candidate.technique.family is family]
            rest = [candidate for candidate in waiting if candidate not in group]
            better: list[tuple[float, Timed, Candidate]] = []
            for candidate in group:
                timing = self._trial([candidate.choice()])
                if timing is None:
                    continue
                ratio = self._best / timing.level
                if ratio >= self._worth_keeping:
                    better.append((ratio, timing, candidate))
                else:
                    self._reject([candidate.choice()], _no_gain(ratio))
                    idle.append(candidate)
            waiting = rest
            if better:
                ratio, timing, best = max(better, key=lambda entry: entry[0])
                self._keep([best.choice()], timing)
                self._refine(best)
                waiting = self._renewed([*rest, *(entry[2] for entry in better if entry[2] is not best)])
        self._try_partners(idle)

    def _candidates(self) -> list[Candidate]:
        assert self.found.before is not None
        found = []
        for technique in self._techniques:
            verdict = consider(technique, self.found.before, self._allow_different)
            if isinstance(verdict, Skipped):
                self.found.not_tried.append(NotTried(technique.id, verdict.reason))
            else:
                self.found.parities[technique.id] = verdict.parity
                found.append(verdict)
        return found

    def _renewed(self, waiting: list[Candidate]) -> list[Candidate]:
        """Bounds from where the steps go with the plan so far."""
        assert self.found.after is not None
        renewed = []
        for candidate in waiting:
            verdict = consider(candidate.technique, self.found.after, self._allow_different)
            if isinstance(verdict, Candidate):
                renewed.append(verdict)
            else:
                self.found.not_tried.append(NotTried(candidate.technique.id, f"with the plan so far: {verdict.reason}"))
        return renewed

    def _trial(self, choices: list[Choice]) -> Timed | None:
        """Time the plan so far plus these. None when that was not possible; the reason is on record."""
        enemy = next((enemy for choice in choices if (enemy := clash(choice, self.found.plan))), None)
        if enemy is not None:
            self._reject(choices, f"cannot live with {enemy.technique.id}, which is already in the plan")
            return None
        if self._until_proof < self._trial_seconds:
            for choice in choices:
                self.found.not_tried.append(NotTried(choice.technique.id, "the budget ended: try a larger --budget"))
            return None
        timing = self._bench.time([*self.found.plan, *choices], " + ".join(map(str, choices)), "screen")
        if not isinstance(timing, Timed):
            self._reject(choices, timing.ending)
            return None
        if not self.found.plan and len(choices) == 1:
            self._alone[choices[0].technique.id] = self._best / timing.level
        return timing

    def _keep(self, choices: list[Choice], timing: Timed) -> None:
        for choice in choices:
            self.found.gains[choice.technique.id] = self._best / timing.level
        self.found.plan += choices
        self._best, self.found.after = timing.level, timing.run

    def _refine(self, candidate: Candidate) -> None:
        """Other settings of a winner, while there is room for them."""
        for number in range(1, len(candidate.tries)):
            if self._until_proof < 2 * self._trial_seconds:
                return
            choice = candidate.choice(number)
            rest = [kept for kept in self.found.plan if kept.technique is not candidate.technique]
            timing = self._bench.time([*rest, choice], str(choice), "screen")
            if not isinstance(timing, Timed):
                self._reject([choice], timing.ending)
                continue
            ratio = self._best / timing.level
            if ratio < self._worth_keeping:
                self._reject([choice], f"{ratio:.2f}x against the setting kept")
                continue
            self.found.gains[candidate.technique.id] *= ratio
            self.found.plan = [*rest, choice]
            self._best, self.found.after = timing.level, timing.run

    def _try_partners(self, idle: list[Candidate]) -> None:
        """Two that did nothing alone may gain together, such as a layout and the precision it was made for."""
        for number, candidate in enumerate(idle):
            for partner in partners(candidate, idle[number + 1 :]):
                both = [candidate.choice(), partner.choice()]
                timing = self._trial(both)
                if timing is not None and self._best / timing.level >= self._worth_keeping:
                    self._keep(both, timing)
                elif timing is not None:
                    self._reject(both, _no_gain(self._best / timing.level))

    def _reject(self, choices: list[Choice], reason: str) -> None:
        for choice in choices:
            others = " + ".join(str(other) for other in choices if other is not choice)
            words = f"{reason}, together with {others}" if others else reason
            self.found.rejected.append(Rejected(choice.technique.id, dict(choice.setting), words))

    # 3. is it the same training? ------------------------------------------------------------------------------------

    def _check_parity(self) -> None:
        if not self.found.plan:
            return
        reference = self._bench.parity([], "reference", "reference", self._parity_folder, STEPS)
        repeat = self._bench.parity([], "reference again", "candidate", self._parity_folder, STEPS)
        if reference.parity is None or repeat.parity is None:
            self._drop_all(f"parity could not be checked: {reference.ending}")
            return
        if any(figure.get("gradient", 0) for figure in repeat.parity["figures"]):
            self.found.caveats.append(Caveat.REPEATS_ITSELF_NOT.text())
        checks = self._judged(self.found.plan, "plan", reference.parity, repeat.parity)
        if not _passed(checks) and len(self.found.plan) > 1:
            for choice in list(self.found.plan):
                alone = self._judged([choice], str(choice), reference.parity, repeat.parity)
                if not _passed(alone):
                    self._drop(choice, f"not the same training: {_failure(alone)}")
            if self.found.plan:
                checks = self._judged(self.found.plan, "plan", reference.parity, repeat.parity)
        self.found.checks = checks
        if self.found.plan and not _passed(checks):
            self._drop_all(f"not the same training: {_failure(checks)}")

    def _judged(self, plan: list[Choice], label: str, reference: dict, repeat: dict) -> list[ParityCheck]:  # type: ignore[type-arg]
        trial = self._bench.parity(plan, f"parity of {label}", "candidate", self._parity_folder, STEPS)
        if trial.parity is None or not trial.good:
            return [ParityCheck(f"ended with {trial.ending}", 1.0, "= 0", False)]
        levels = {self.found.parities[choice.technique.id] for choice in plan}
        level = Parity.IDENTICAL if levels == {Parity.IDENTICAL} else Parity.EQUIVALENT
        return judge(level, reference, repeat, trial.parity)

    def _drop(self, choice: Choice, reason: str) -> None:
        self.found.plan.remove(choice)
        self._reject([choice], reason)

    def _drop_all(self, reason: str) -> None:
        for choice in list(self.found.plan):
            self._drop(choice, reason)

    # 4. is it really faster? --------------------------------------------------------------------------------------

    def _confirm(self) -> None:
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
                self.found.caveats.append(Caveat.NOT_CONFIRMED.text(budget=f"{2 * self._budget:.0f}s"))

    # 5. what is each worth? -----------------------------------------------------------------------------------------

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

    @property
    def _worth_keeping(self) -> float:
        """The ratio a single trial must show: more than two identical processes differ by chance."""
        return max(KEEP_GAIN, math.exp(calibration_sd(self.found.baselines)))

    @property
    def _until_proof(self) -> float:
        """Seconds left before the part of the budget that belongs to parity and to the proof by pairs."""
        needed = (_PARITY_TRIALS + 2 * LOOKS[0]) * self._trial_seconds
        return self._budget - max(CONFIRM_SHARE * self._budget, needed) - self._bench.spent


def _passed(checks: list[ParityCheck]) -> bool:
    return all(check.passed for check in checks)


def _failure(checks: list[ParityCheck]) -> str:
    failed = next(check for check in checks if not check.passed)
    return f"{failed.what} {failed.figure:.3g}, allowed {failed.limit}"


def _no_gain(ratio: float) -> str:
    words = (
        "slower in a trial" if ratio < 0.98 else "no gain in a trial" if ratio < KEEP_GAIN else "within the noise here"
    )
    return f"{ratio:.2f}x: {words}"


def _no_baseline(timing: Untimed) -> str:
    if timing.run is None and timing.ending in ("finished", "enough"):
        return "the script ended without importing torch: name the script that trains"
    if timing.run is not None and timing.ending.startswith("only "):
        return f"{timing.ending}: name the script that trains, or give it arguments that train for longer"
    last = timing.log.strip().split("\n")[-1][:200]
    return f"the script does not run by itself ({timing.ending}{'; ' + last if last else ''}): mend that first"
