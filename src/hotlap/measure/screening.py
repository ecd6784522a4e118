"""What helps: candidates tried by single trials, from what the baseline's shares allow to a plan worth proving."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hotlap.measure.attempts import Attempts
from hotlap.measure.bench import Bench, Listener
from hotlap.measure.candidates import LEAST_SHARE, Candidate, Skipped, clash, consider, partners
from hotlap.measure.caveats import Caveat
from hotlap.measure.found import Found
from hotlap.measure.purse import Purse
from hotlap.measure.refining import Refining
from hotlap.measure.timed import Timed
from hotlap.measure.verdicts import no_gain
from hotlap.report import figures
from hotlap.report.findings import NotTried
from hotlap.technique import Choice, Family, Technique

_FEEDING = (Family.WAIT, Family.COPY)
_SLOW_SHARE = 0.5  # of what is left for trials, kept for what takes long to get going


class Screening:
    """Works on what a search found, and puts into it a plan that looks faster. Nothing here is a claim."""

    def __init__(
        self,
        bench: Bench,
        purse: Purse,
        found: Found,
        techniques: Sequence[Technique],
        listener: Listener,
        allow_different: bool = False,
    ) -> None:
        self._bench, self._purse, self.found, self._techniques = bench, purse, found, techniques
        self._listener, self._allow_different = listener, allow_different
        self._attempts = Attempts(bench, purse, found)
        self._refining = Refining(self._attempts, purse, found, allow_different)
        self._small: list[Technique] = []  # what it could save is too small a part of a step
        self._unrefined: list[Candidate] = []  # taken in together: other settings wait until it is clear who stays
        self._alone: dict[str, float] = {}  # what techniques gained by themselves that were not taken in

    def run(self) -> None:
        """All together at first. What is left goes family by family, largest current share first. Within one, each is
        tried from the same start and the best taken in; the others that gained are tried again on top of it, with
        bounds renewed: once the wait is gone, compute matters."""
        candidates = self._candidates()
        self._say_what_fits(candidates)
        slow = [candidate for candidate in candidates if candidate.technique.start_up_seconds]
        self._purse.reserved = self._kept_for(slow)
        waiting = self._try_together([candidate for candidate in candidates if candidate not in slow])
        waiting += self._try_together(self._grown(slow))
        idle: list[Candidate] = []
        while waiting:
            family = max(waiting, key=lambda candidate: candidate.most).technique.family
            group = [candidate for candidate in waiting if candidate.technique.family is family]
            rest = [candidate for candidate in waiting if candidate not in group]
            better: list[tuple[float, Timed, Candidate]] = []
            for candidate in group:
                timing = self._attempts.trial([candidate.choice()])
                if timing is None:
                    rest += self._with_other_settings(candidate)
                    continue
                ratio = self.found.level / timing.level
                if ratio >= self._attempts.least_gain:
                    better.append((ratio, timing, candidate))
                else:
                    self.found.reject([candidate.choice()], no_gain(ratio, [candidate.choice()], timing.run))
                    self._attempts.passed_over.append(candidate.choice())
                    self._alone[candidate.technique.id] = ratio
                    idle.append(candidate)
            waiting = rest
            if better:
                ratio, timing, best = max(better, key=lambda entry: entry[0])
                self._attempts.keep([best.choice()], timing)
                self._refining.refine(best)
                others = [candidate for _, _, candidate in better if candidate is not best]
                waiting = [*self._renewed([*rest, *others]), *self._try_together(self._grown(slow))]
        later = []
        for candidate in self._unrefined:  # compiling shows little while batches are waited for
            if candidate.technique.family in _FEEDING and self._refining.has_room_for(candidate):
                self._refining.run([candidate])
            else:
                later.append(candidate)
        self._purse.reserved = 0.0
        self._try_slow_starters(slow, idle)
        self._refining.run(later)
        self._try_partners(idle)
        self._try_small_gains(idle)
        self._say_what_did_not_fit()

    @property
    def passed_over(self) -> list[Choice]:
        """What may deserve a second look: it could still save something, and starts like the others."""
        after = self.found.after
        if after is None:
            return []
        able = [one for one in self._attempts.passed_over if not one.start_up_seconds]
        return [one for one in able if isinstance(consider(one.technique, after, self._allow_different), Candidate)]

    def _try_together(self, candidates: list[Candidate]) -> list[Candidate]:
        """Most techniques are not in each other's way, so all at once is the shortest way to a good plan; `Settling`
        takes out what it is no slower without. Gives back those still to be tried one by one."""
        together: list[Candidate] = []
        for candidate in sorted(candidates, key=lambda one: -one.most):
            if clash(candidate.choice(), [one.choice() for one in together]) is None:
                together.append(candidate)
        feeding = [one for one in together if one.technique.family in _FEEDING]
        for group in (together, feeding, [one for one in together if one not in feeding]):
            taken = self._take_in_together([one for one in group if one in candidates])
            if taken is None:  # something in it broke: the halves may not
                continue
            candidates = [one for one in candidates if one not in taken]
            candidates += [other for one in taken for other in self._with_other_settings(one)]
            self._unrefined += [one for one in taken if one.choice() not in self._attempts.stood_aside]
            if group is together:
                break
        return candidates if self.found.after is None else self._renewed(candidates)

    def _take_in_together(self, group: list[Candidate]) -> list[Candidate] | None:
        """Those of a group that are settled by one trial of all; None where it gave no figure."""
        plan = self._attempts.plan_with([candidate.choice() for candidate in group])
        if len(group) < 2 or not self._attempts.grants(plan, looks=3):  # at all of them, and at each half
            return []
        timing = self._bench.time(plan, f"{len(group)} techniques together", "screen")
        run = timing.run
        if run is None:
            return None
        if not isinstance(timing, Timed):
            if timing.level is None:
                return None
            level = timing.level  # without what stood aside
            timing = Timed(level, run, timing.ending, self._purse.plan_seconds, True)
        standing_aside = {one.technique.id: line for one in group for line in run.withdrawn if _is_about(line, one)}
        if not set(run.withdrawn) <= set(standing_aside.values()):  # whose it was is not said: each by itself tells
            return None
        idle = {one.technique.id for one in group if one.technique.seen(run) is False} | standing_aside.keys()
        rest = [one for one in group if one.technique.id not in idle]
        if self.found.level / timing.level < self._attempts.least_gain or not rest:
            return []
        for one in group:
            if one.technique.id in idle:
                line = standing_aside.get(one.technique.id)
                reason = f"could not be applied: {line}" if line else "found nothing to do in a trial"
                self.found.reject([one.choice()], reason)
                self._attempts.stood_aside += [one.choice()] if line else []
        self._attempts.keep([one.choice() for one in rest], timing)
        return group

    def _with_other_settings(self, candidate: Candidate) -> list[Candidate]:
        """What stood aside as it was first tried, with what is left to try."""
        return self._untried(candidate) if candidate.choice() in self._attempts.stood_aside else []

    def _untried(self, candidate: Candidate) -> list[Candidate]:
        aside = [choice.setting for choice in self._attempts.stood_aside if choice.technique is candidate.technique]
        tries = tuple(one for one in candidate.tries if one.setting not in aside and one.most >= LEAST_SHARE)
        return [dataclasses.replace(candidate, tries=tries)] if tries else []

    def _kept_for(self, slow: list[Candidate]) -> float:
        """Time for the first start of each slow starter, where that leaves enough for the others."""
        wanted = sum(candidate.technique.start_up_seconds + self._purse.trial_seconds for candidate in slow)
        return wanted if wanted <= _SLOW_SHARE * self._purse.until_proof else 0.0

    def _say_what_fits(self, waiting: list[Candidate]) -> None:
        """The arithmetic of the budget, before it is spent."""
        assert self.found.before is not None
        attempts = sum(len(candidate.tries) for candidate in waiting)
        known = sum(self._bench.knows([candidate.choice()]) for candidate in waiting)
        words = f", {known} known" if known else ""
        fit = int(max(0.0, self._purse.until_proof) / self._purse.trial_seconds)
        start_up, trial = self.found.before.startup_seconds, self._purse.trial_seconds
        self._listener.said(
            f"start-up {start_up:.1f} s, {figures.seconds(self.found.level)} a step, {trial:.1f} s a trial;"
            f" {figures.plural(len(waiting), 'candidate')} ({attempts} with all settings{words}),"
            f" {min(fit, attempts) if waiting else 0} fit in {self._purse.seconds:.0f} s beside parity and proof"
        )

    def _say_what_did_not_fit(self) -> None:
        """Then finding nothing says nothing."""
        if self._attempts.unfit:
            count = len(self._attempts.unfit)
            wanted = self._purse.for_all(count, self._attempts.unfit_start_up_seconds)
            self.found.ask_for(wanted, Caveat.NO_ROOM, count=count)

    def _candidates(self) -> list[Candidate]:
        assert self.found.before is not None
        found = []
        for technique in (one for one in self._techniques if not one.comes_with):
            verdict = consider(technique, self.found.before, self._allow_different)
            if isinstance(verdict, Skipped):
                self._small += [technique] if verdict.is_small else []
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
        renewed: list[Candidate] = []
        for candidate in waiting:
            verdict = consider(candidate.technique, self.found.after, self._allow_different)
            if isinstance(verdict, Candidate):
                renewed += self._untried(verdict)
            else:
                self.found.not_tried.append(NotTried(candidate.technique.id, f"with the plan so far: {verdict.reason}"))
        return renewed

    def _grown(self, slow: list[Candidate]) -> list[Candidate]:
        """What could save too little at first, and is worth a trial now that a step takes less; `slow` gets its own."""
        if self.found.after is None:
            return []
        grown: list[Candidate] = []
        for technique in list(self._small):
            verdict = consider(technique, self.found.after, self._allow_different)
            is_out_of_reach = technique.fills_in_an_epoch and not self._bench.epoch_steps
            if isinstance(verdict, Candidate) and not is_out_of_reach:
                self._small.remove(technique)
                self.found.not_tried[:] = [one for one in self.found.not_tried if one.technique != technique.id]
                self.found.parities[technique.id] = verdict.parity
                (slow if technique.start_up_seconds else grown).append(verdict)
        return grown

    def _try_partners(self, idle: list[Candidate]) -> None:
        """Two that did nothing alone may gain together, such as a layout and the precision it was made for."""
        idle = self._not_kept(idle)
        for number, candidate in enumerate(idle):
            for partner in partners(candidate, idle[number + 1 :]):
                both = [candidate.choice(), partner.choice()]
                timing = self._attempts.trial(both)
                if timing is not None and self.found.level / timing.level >= self.found.worth_keeping:
                    self._attempts.keep(both, timing)
                elif timing is not None:
                    self.found.reject(both, no_gain(self.found.level / timing.level, both, timing.run))

    def _try_small_gains(self, idle: list[Candidate]) -> None:
        """Gains that are each within the noise may not be together."""
        choices: list[Choice] = []
        for candidate in self._not_kept(idle):
            is_small = self._alone[candidate.technique.id] > 1 and clash(candidate.choice(), choices) is None
            choices += [candidate.choice()] if is_small else []
        if len(choices) < 2 or not self._purse.has_room_for(self._attempts.plan_with(choices)):
            return
        timing = self._attempts.trial(choices)
        if timing is not None and self.found.level / timing.level >= self.found.worth_keeping:
            self._attempts.keep(choices, timing)

    def _not_kept(self, candidates: list[Candidate]) -> list[Candidate]:
        kept = [choice.technique for choice in self.found.plan]
        return [candidate for candidate in candidates if candidate.technique not in kept]

    def _try_slow_starters(self, slow: list[Candidate], idle: list[Candidate]) -> None:
        """What takes long to get going comes last, on top of the rest, where it has to start the fewest times. Those
        that did nothing before may do something with it."""
        able = self._renewed(slow) if self.found.after is not None else slow
        for candidate in sorted(able, key=lambda one: (-one.most, -one.technique.start_up_seconds)):
            choices = [candidate.choice(number) for number in range(len(candidate.tries))]
            choices.sort(key=lambda choice: -len(self._attempts.plan_with([choice])))  # where most of the plan stays
            slowest = [one for one in choices if one.start_up_seconds > candidate.technique.start_up_seconds]
            for choice in choices:
                timing = self._attempts.trial([choice]) if choice not in slowest else None
                if timing is not None and self.found.level / timing.level >= self.found.worth_keeping:
                    self._attempts.keep([choice], timing)
                    break
                if timing is not None:
                    self.found.reject([choice], no_gain(self.found.level / timing.level, [choice], timing.run))
            else:
                continue
            for choice in slowest:
                self._try_slowest(choice)
            for partner in partners(candidate, idle):
                again = [partner.choice()]
                timing = self._attempts.trial(again)
                if timing is not None and self.found.level / timing.level >= self.found.worth_keeping:
                    self._attempts.keep(again, timing)

    def _try_slowest(self, choice: Choice) -> None:
        """A setting that takes still longer to get going, in place of one that gained, where there is room for it."""
        rest = [kept for kept in self.found.plan if kept.technique is not choice.technique]
        if self._purse.has_room_for([*rest, choice], start_up_seconds=choice.start_up_seconds):
            self._attempts.replace(choice, rest)
        else:
            words = f"{choice} takes about {choice.start_up_seconds:.0f} s to start: try a larger --budget"
            self.found.not_tried.append(NotTried(choice.technique.id, words))


def _is_about(line: str, candidate: Candidate) -> bool:
    """What a technique withdrew with begins with its name."""
    return line.startswith((f"{candidate.technique.id}:", f"{candidate.technique.id} "))
