"""Which trials, in what order: from the baseline's shares to a plan whose total gain is proven and whose training is
the same. Screening is by single trials; only the confirmed total is a claim."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from hotlap.errors import HotlapError
from hotlap.measure.bench import Bench, Listener
from hotlap.measure.candidates import Candidate, consider
from hotlap.measure.caveats import Caveat
from hotlap.measure.epochs import Epochs
from hotlap.measure.found import Found
from hotlap.measure.proof import Proof
from hotlap.measure.purse import Purse
from hotlap.measure.screening import Screening
from hotlap.measure.settling import Settling
from hotlap.measure.timed import Timed
from hotlap.measure.verdicts import no_baseline
from hotlap.observe.run import Run
from hotlap.technique import Technique

BASELINES = 3  # a first look, and two that count
_FAR_APART = 1.2  # then a third tells which of the two was the odd one
TRIALS = 20  # that a budget should hold: what starts slowly is timed for less, and a longer epoch is not waited for


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
        self.found, self.purse = Found(), Purse(bench, budget_seconds)
        self.screening = Screening(bench, self.purse, self.found, techniques, listener, allow_different)
        self.epochs = Epochs(bench, self.purse, self.found, techniques, allow_different)
        self.purse.for_epochs = lambda: self.epochs.seconds_wanted

    def run(self) -> Found:
        try:
            self._baseline()
            self.screening.run()
            Settling(self._bench, self.purse, self.found).run(self.screening.passed_over)
            self.epochs.run()
            Proof(self._bench, self.found, self._budget, self.purse.trial_seconds, self._parity_folder).run()
        except KeyboardInterrupt:
            if self.found.before is None:
                raise  # there is nothing to keep
            self.found.cut_short = True
            self.found.caveats.insert(0, Caveat.INTERRUPTED.text())
            self._listener.stopped()
        if self._bench.disturbed_share > 1 / 3:
            self.found.caveats.append(Caveat.NOISY.text())
        self.found.ask_for_no_less_than(self._bench.spent)
        return self.found

    def _baseline(self) -> None:
        """A first trial, cold and short, for the record; then two that count, or three."""
        self._listener.said(f"first the script as it is, {self._bench.longest(BASELINES)}")
        first = self._timed_baseline("the script, a first look")
        affordable = self._budget / TRIALS
        beside = first.seconds - len(first.run.step_seconds) * first.level  # the first step's own start-up included
        self._bench.shorten(affordable - beside)
        is_needed = any(one.fills_in_an_epoch and self._may_help(one, first.run) for one in self._techniques)
        if not is_needed:
            self._bench.epoch_allowance = min(self._bench.epoch_allowance, affordable - beside)
        sees_an_end = self._bench.see_past_an_epoch(first.run)
        timings = [self._timed_baseline("the script")]
        if sees_an_end and not is_needed and timings[0].seconds > 2 * affordable:
            self._bench.stay_within_an_epoch()
            sees_an_end = False
        if not sees_an_end:
            self.found.caveats.append(Caveat.NO_EPOCH_END.text())
        timings.append(self._timed_baseline("the script"))
        low, high = sorted(timing.level for timing in timings)
        if high > _FAR_APART * low:
            timings.append(self._timed_baseline("the script once more"))
        usual = timings[-1] if len(timings) == 2 else sorted(timings, key=lambda timing: timing.level)[1]
        if usual.ending == "finished":
            self.found.caveats.append(Caveat.SHORT.text(steps=usual.run.steps))
        if not usual.settled:
            self.found.caveats.append(Caveat.UNSETTLED.text())
        if self._bench.storm:
            self.found.caveats.append(Caveat.RECOMPILES.text(storm=self._bench.storm))
        self.found.before = usual.run
        self.found.baselines = [timing.level for timing in timings]
        self.found.level = statistics.median(self.found.baselines)
        self.purse.trial_seconds = self.purse.plan_seconds = usual.seconds
        self.purse.start_up_seconds = usual.run.startup_seconds
        self._bench.begin(usual.run, self.found.baselines)

    def _may_help(self, technique: Technique, run: Run) -> bool:
        return isinstance(consider(technique, run, self._allow_different), Candidate)

    def _timed_baseline(self, label: str) -> Timed:
        timing = self._bench.time([], label, "baseline")
        if not isinstance(timing, Timed):
            raise HotlapError(no_baseline(timing))
        return timing
