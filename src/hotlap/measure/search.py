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
from hotlap.report.findings import NotTried
from hotlap.technique import Choice, Technique

KEEP_GAIN = 1.02  # screened: a candidate is taken in when it is faster by more than this, and than the noise
CONFIRM_SHARE = 0.35  # of the budget, kept back for proof


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
            Proof(self._bench, self.found, self._budget, self._trial_seconds, self._parity_folder, self._alone).run()
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
            raise HotlapError(no_baseline(timing))
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
            wanted = self._bench.spent + (PARITY_TRIALS + 2 * LOOKS[0] + 2 * len(waiting)) * self._trial_seconds
            self.found.cut_short = True
            self.found.caveats.insert(0, Caveat.NO_ROOM.text(budget=f"{math.ceil(wanted / 10) * 10}s"))
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
                    self.found.reject([candidate.choice()], _no_gain(ratio))
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
            self.found.reject(choices, f"cannot live with {enemy.technique.id}, which is already in the plan")
            return None
        start_up = sum(choice.technique.start_up_seconds for choice in choices)
        if self._until_proof < self._trial_seconds + start_up:
            for choice in choices:
                self.found.not_tried.append(NotTried(choice.technique.id, "the budget ended: try a larger --budget"))
            return None
        timing = self._bench.time([*self.found.plan, *choices], " + ".join(map(str, choices)), "screen")
        if not isinstance(timing, Timed):
            self.found.reject(choices, timing.ending)
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
        for number, candidate in enumerate(idle):
            for partner in partners(candidate, idle[number + 1 :]):
                both = [candidate.choice(), partner.choice()]
                timing = self._trial(both)
                if timing is not None and self._best / timing.level >= self._worth_keeping:
                    self._keep(both, timing)
                elif timing is not None:
                    self.found.reject(both, _no_gain(self._best / timing.level))

    @property
    def _worth_keeping(self) -> float:
        """The ratio a single trial must show: more than two identical processes differ by chance."""
        return max(KEEP_GAIN, math.exp(calibration_sd(self.found.baselines)))

    @property
    def _until_proof(self) -> float:
        """Seconds left before the part of the budget that belongs to parity and to the proof by pairs."""
        needed = (PARITY_TRIALS + 2 * LOOKS[0]) * self._trial_seconds
        return self._budget - max(CONFIRM_SHARE * self._budget, needed) - self._bench.spent


def _no_gain(ratio: float) -> str:
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
