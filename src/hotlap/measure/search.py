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
from hotlap.measure.proof import PARITY_TRIALS, Proof
from hotlap.measure.stats import LOOKS, calibration_sd
from hotlap.observe.run import Run
from hotlap.report import figures
from hotlap.report.findings import NotTried
from hotlap.technique import Choice, Technique

KEEP_GAIN = 1.02  # screened: a candidate is taken in when it is faster by more than this, and than the noise
CONFIRM_SHARE = 0.35  # of the budget, kept back for proof
BASELINES = 3  # a first look, and two that count
TRIALS = 20  # that a budget should hold: a longer epoch is not waited for, unless something gains only after it
SLOW_SHARE = 0.5  # of what is left for trials, kept for what takes long to get going


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
        self._trial_seconds = 0.0  # what a trial of the script costs, start-up included
        self._plan_seconds = 0.0  # and one of the plan so far
        self._reserved = 0.0  # of what is left for trials
        self._best = 0.0
        self._unfit: list[str] = []  # what the budget had no room for
        self.found = Found()

    def run(self) -> Found:
        try:
            self._baseline()
            self._screen()
            self._weed()
            Proof(self._bench, self.found, self._budget, self._trial_seconds, self._parity_folder).run()
        except KeyboardInterrupt:
            self.found.cut_short = True
            self.found.caveats.insert(0, Caveat.INTERRUPTED.text())
            self._listener.stopped()
        if self._bench.disturbed_share > 1 / 3:
            self.found.caveats.append(Caveat.NOISY.text())
        return self.found

    # 1. where does it stand? ----------------------------------------------------------------------------------------

    def _baseline(self) -> None:
        """A first trial, cold and short, for the record; then two that count."""
        self._listener.said(f"first the script as it is, {self._bench.longest(BASELINES)}")
        first = self._timed_baseline("the script, a first look")
        affordable = self._budget / TRIALS
        is_needed = any(one.fills_in_an_epoch and self._may_help(one, first.run) for one in self._techniques)
        if not is_needed:
            beside = first.seconds - sum(first.run.step_seconds)
            self._bench.epoch_allowance = min(self._bench.epoch_allowance, affordable - beside)
        sees_an_end = self._bench.see_past_an_epoch(first.run)
        timings = [self._timed_baseline("the script")]
        if sees_an_end and not is_needed and timings[0].seconds > 2 * affordable:
            self._bench.stay_within_an_epoch()
            sees_an_end = False
        if not sees_an_end:
            self.found.caveats.append(Caveat.NO_EPOCH_END.text())
        timings.append(self._timed_baseline("the script"))
        last = timings[-1]
        if last.ending == "finished":
            self.found.caveats.append(Caveat.SHORT.text(steps=last.run.steps))
        if not last.settled:
            self.found.caveats.append(Caveat.UNSETTLED.text())
        if self._bench.storm:
            self.found.caveats.append(Caveat.RECOMPILES.text(storm=self._bench.storm))
        self.found.before = last.run
        self.found.baselines = [timing.level for timing in timings]
        self._best = statistics.fmean(self.found.baselines)
        self._trial_seconds = self._plan_seconds = last.seconds
        self._bench.begin(last.run, self.found.baselines)

    def _may_help(self, technique: Technique, run: Run) -> bool:
        return isinstance(consider(technique, run, self._allow_different), Candidate)

    def _timed_baseline(self, label: str) -> Timed:
        timing = self._bench.time([], label, "baseline")
        if not isinstance(timing, Timed):
            raise HotlapError(no_baseline(timing))
        return timing

    # 2. what helps? -------------------------------------------------------------------------------------------------

    def _screen(self) -> None:
        """Family by family, largest current share first. Within one, each is tried from the same start and the best
        taken in; the others that gained are tried again on top of it, with bounds renewed: once the wait is gone,
        compute matters."""
        candidates = self._candidates()
        self._say_what_fits(candidates)
        slow = [candidate for candidate in candidates if candidate.technique.start_up_seconds]
        self._reserved = self._kept_for(slow)
        waiting = [candidate for candidate in candidates if candidate not in slow]
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
                    self.found.reject([candidate.choice()], _no_gain(ratio, [candidate.choice()], timing.run))
                    idle.append(candidate)
            waiting = rest
            if better:
                ratio, timing, best = max(better, key=lambda entry: entry[0])
                self._keep([best.choice()], timing)
                self._refine(best)
                waiting = self._renewed([*rest, *(entry[2] for entry in better if entry[2] is not best)])
        self._reserved = 0.0
        self._try_slow_starters(slow, idle)
        self._try_partners(idle)
        self._say_what_did_not_fit()

    def _kept_for(self, slow: list[Candidate]) -> float:
        """Time for the first start of each slow starter, where that leaves enough for the others."""
        wanted = sum(candidate.technique.start_up_seconds + self._trial_seconds for candidate in slow)
        return wanted if wanted <= SLOW_SHARE * self._until_proof else 0.0

    def _say_what_fits(self, waiting: list[Candidate]) -> None:
        """The arithmetic of the budget, before it is spent."""
        assert self.found.before is not None
        attempts = sum(len(candidate.tries) for candidate in waiting)
        known = sum(self._bench.knows([candidate.choice()]) for candidate in waiting)
        words = f", {known} known" if known else ""
        fit = int(max(0.0, self._until_proof) / self._trial_seconds)
        start_up, trial = self.found.before.startup_seconds, self._trial_seconds
        self._listener.said(
            f"start-up {start_up:.1f} s, {1e3 * self._best:.1f} ms a step, {trial:.1f} s a trial;"
            f" {figures.plural(len(waiting), 'candidate')} ({attempts} with all settings{words}),"
            f" {min(fit, attempts) if waiting else 0} fit in {self._budget:.0f} s beside parity and proof"
        )

    def _say_what_did_not_fit(self) -> None:
        """Then finding nothing says nothing."""
        if self._unfit:
            wanted = self._bench.spent + (PARITY_TRIALS + 2 * LOOKS[0] + 2 * len(self._unfit)) * self._trial_seconds
            budget = max(wanted, 1.2 * self._budget)
            words = {"count": len(self._unfit), "budget": f"{math.ceil(budget / 10) * 10}s"}
            self.found.cut_short = True
            self.found.caveats.insert(0, Caveat.NO_ROOM.text(**words))

    def _candidates(self) -> list[Candidate]:
        assert self.found.before is not None
        found = []
        for technique in self._techniques:
            verdict = consider(technique, self.found.before, self._allow_different)
            if isinstance(verdict, Skipped):
                self.found.not_tried.append(NotTried(technique.id, verdict.reason))
            elif technique.fills_in_an_epoch and not self._bench.epoch_steps:
                words = "gains after the first epoch, which trials of this length do not reach: try a larger --budget"
                self.found.not_tried.append(NotTried(technique.id, words))
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
            self.found.reject(choices, f"cannot live with {enemy.technique.id}, which is already in the plan")
            return None
        plan = [*self.found.plan, *choices]
        start_up_seconds = sum(choice.technique.start_up_seconds for choice in plan)  # each plan is compiled anew
        if not self._has_room_for(plan, start_up_seconds=start_up_seconds):
            self._had_no_room(choices)
            return None
        timing = self._bench.time(plan, " + ".join(map(str, choices)), "screen")
        if not isinstance(timing, Timed):
            self.found.reject(choices, timing.ending)
            return None
        return timing

    def _had_no_room(self, choices: list[Choice]) -> None:
        self._unfit.append(" + ".join(map(str, choices)))
        for choice in choices:
            words = f"the budget ended before {self._unfit[-1]}: try a larger --budget"
            self.found.not_tried.append(NotTried(choice.technique.id, words))

    def _keep(self, choices: list[Choice], timing: Timed) -> None:
        for choice in choices:
            self.found.gains[choice.technique.id] = self._best / timing.level
            self.found.accept(choice)
        self.found.plan += choices
        self._best, self.found.after = timing.level, timing.run
        if not any(choice.technique.start_up_seconds for choice in self.found.plan):  # what it made is there by now
            self._plan_seconds = timing.seconds

    def _refine(self, candidate: Candidate) -> None:
        """Other settings of a winner, while there is room for them."""
        for number in range(1, len(candidate.tries)):
            choice = candidate.choice(number)
            rest = [kept for kept in self.found.plan if kept.technique is not candidate.technique]
            if not self._has_room_for([*rest, choice], trials=2):
                self._had_no_room([choice])
                continue
            timing = self._bench.time([*rest, choice], str(choice), "screen")
            if not isinstance(timing, Timed):
                self.found.reject([choice], timing.ending)
                continue
            ratio = self._best / timing.level
            if ratio < self._worth_keeping:
                self.found.reject([choice], f"{ratio:.2f}x against the setting kept")
                continue
            self.found.gains[candidate.technique.id] *= ratio
            self.found.plan = [*rest, choice]
            self._best, self.found.after = timing.level, timing.run

    def _try_partners(self, idle: list[Candidate]) -> None:
        """Two that did nothing alone may gain together, such as a layout and the precision it was made for."""
        idle = [
            candidate for candidate in idle if candidate.technique not in [one.technique for one in self.found.plan]
        ]
        for number, candidate in enumerate(idle):
            for partner in partners(candidate, idle[number + 1 :]):
                both = [candidate.choice(), partner.choice()]
                timing = self._trial(both)
                if timing is not None and self._best / timing.level >= self._worth_keeping:
                    self._keep(both, timing)
                elif timing is not None:
                    self.found.reject(both, _no_gain(self._best / timing.level, both, timing.run))

    def _try_slow_starters(self, slow: list[Candidate], idle: list[Candidate]) -> None:
        """What takes long to get going comes last, on top of the rest, where it has to start the fewest times. Those
        that did nothing before may do something with it."""
        for candidate in self._renewed(slow) if self.found.after is not None else slow:
            timing = None
            for number in range(len(candidate.tries)):
                choice = candidate.choice(number)
                timing = self._trial([choice])
                if timing is not None and self._best / timing.level >= self._worth_keeping:
                    self._keep([choice], timing)
                    break
                if timing is not None:
                    self.found.reject([choice], _no_gain(self._best / timing.level, [choice], timing.run))
            else:
                continue
            for partner in partners(candidate, idle):
                again = [partner.choice()]
                timing = self._trial(again)
                if timing is not None and self._best / timing.level >= self._worth_keeping:
                    self._keep(again, timing)

    # 3. is each worth having? ---------------------------------------------------------------------------------------

    def _weed(self) -> None:
        """Leave each out once, partners together. What the plan is no slower without has to go before the proof: it
        would be proven along with the rest. A trial made here is the ablation's too."""
        for choice in list(self.found.plan):
            if choice not in self.found.plan:
                continue
            unit = [choice, *partners(choice, self.found.plan)]
            rest = [other for other in self.found.plan if other not in unit]
            if not rest or not self._has_room_for(rest):
                continue
            timing = self._bench.time(rest, f"without {' + '.join(map(str, unit))}", "ablation")
            if isinstance(timing, Timed) and timing.level / self._best < self._worth_keeping:
                self.found.plan, self._best, self.found.after = rest, timing.level, timing.run
                self.found.reject(unit, f"worth nothing on top of {' + '.join(map(str, rest))}")

    def _has_room_for(self, plan: list[Choice], trials: int = 1, start_up_seconds: float = 0.0) -> bool:
        needed = trials * self._plan_seconds + start_up_seconds + self._reserved
        return self._until_proof >= needed or self._bench.knows(plan)

    @property
    def _worth_keeping(self) -> float:
        """The ratio a single trial must show: more than two identical processes differ by chance."""
        return max(KEEP_GAIN, math.exp(calibration_sd(self.found.baselines)))

    @property
    def _until_proof(self) -> float:
        """Seconds left before the part of the budget that belongs to parity and to the proof by pairs."""
        needed = (PARITY_TRIALS + LOOKS[0]) * self._trial_seconds + LOOKS[0] * self._plan_seconds
        return self._budget - max(CONFIRM_SHARE * self._budget, needed) - self._bench.spent


def _no_gain(ratio: float, choices: Sequence[Choice], run: Run) -> str:
    """What a trial came to. One in which the technique had nothing to do says nothing about it."""
    if any(choice.technique.seen(run) is False for choice in choices):
        return f"{ratio:.2f}x: found nothing to do in a trial"
    words = (
        "slower in a trial" if ratio < 0.98 else "no gain in a trial" if ratio < KEEP_GAIN else "within the noise here"
    )
    return f"{ratio:.2f}x: {words}"


def no_baseline(timing: Untimed) -> str:
    """Why the script as it is cannot be measured, and what to do about it."""
    if timing.run is None and timing.ending in ("finished", "enough"):
        return "the script ended without importing torch: name the script that trains"
    if timing.run is not None and timing.ending.startswith("only "):
        return f"{timing.ending}: name the script that trains, or give it arguments that train for longer"
    last = timing.log.strip().split("\n")[-1][:200]
    return f"the script does not run by itself ({timing.ending}{'; ' + last if last else ''}): mend that first"
