"""What an epoch costs beside its steps: tests, workers that start, the first batch that is waited for.

A step tells nothing of that, and where a plan has made steps fast it is what is left. So once the plan is known, whole
epochs are timed with it, and with what could save between steps, by single trials like any other screening."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hotlap.measure.bench import Bench
from hotlap.measure.candidates import LEAST_SHARE, Candidate, Skipped, able, clash, has_company
from hotlap.measure.found import Found
from hotlap.measure.purse import Purse
from hotlap.measure.stats import level
from hotlap.measure.timed import Timed, Untimed
from hotlap.observe.run import Run
from hotlap.report.findings import EpochTimes, NotTried
from hotlap.technique import Choice, Setting, Technique

_TRIALS = 2  # to be kept room for: the plan, and what could help
_SHARE = 0.2  # of the budget, that they may take
_WITH_TESTS = 1.25  # an epoch with its tests, in epochs of nothing but steps, as long as nobody knows
_WARM = 0.25  # of what a plan takes to start, where a trial of it has compiled already


class Epochs:
    """Works on the plan that screening and settling made."""

    def __init__(
        self, bench: Bench, purse: Purse, found: Found, techniques: Sequence[Technique], allow_different: bool = False
    ) -> None:
        self._bench, self._purse, self.found, self._allow_different = bench, purse, found, allow_different
        self._techniques = [one for one in techniques if one.between_steps]

    def run(self) -> None:
        if not self.found.plan or not self.seconds_wanted or not self._has_room():
            self._take_companions()
            return
        timing = self._time([], "the plan so far")
        if isinstance(timing, Timed):
            self._try_all(timing)
        else:
            self._take_companions()

    @property
    def seconds_wanted(self) -> float:
        """To be kept for this: nothing where epochs are too long, or nothing of it could matter."""
        before = self.found.before
        if before is None or not before.epoch_length or not self._techniques:
            return 0.0
        has_tests = any(not loader.trains for loader in before.loaders)
        has_starts = any(loader.trains and loader.num_workers for loader in before.loaders)
        wanted = _TRIALS * self._expected
        return wanted if (has_tests or has_starts) and wanted <= _SHARE * self._purse.seconds else 0.0

    @property
    def _expected(self) -> float:
        """Seconds of one trial of whole epochs, with the plan so far."""
        assert self.found.before is not None
        starting = sum(choice.start_up_seconds for choice in self.found.plan)
        starting *= _WARM if self._bench.knows(self.found.plan) else 1.0
        return self._purse.plan_seconds + starting + 2 * _WITH_TESTS * self.found.before.epoch_length * self.found.level

    def _has_room(self, more: Sequence[Choice] = ()) -> bool:
        is_known = self._bench.knows([*self.found.plan, *more], "epochs")
        return is_known or self._purse.until_proof >= self._expected

    def _time(self, more: Sequence[Choice], label: str) -> Timed | Untimed:
        self._bench.epoch_limit = max(self._purse.until_proof, self._expected)
        return self._bench.time([*self.found.plan, *more], label, "epochs")

    def _try_all(self, plain: Timed) -> None:
        """Together on top of the plan, where what lies between steps is worth it; one by one where that breaks."""
        wanted = self._wanted(plain)
        if not wanted:
            return
        if not self._has_room([candidate.choice() for candidate in wanted]):
            for candidate in wanted:
                self._had_no_room(candidate)
            self._take_companions()
            return
        taken, best = self._gaining(wanted, plain)
        if taken is None and len(wanted) > 1:
            taken, best = self._first_gaining(wanted, plain)
        if taken:
            for candidate in taken:
                self._take(candidate)
            names = [candidate.technique.id for candidate in taken]
            self.found.epoch = EpochTimes(plain.run.epoch_length, names, plain.level, best.level)

    def _first_gaining(self, wanted: list[Candidate], plain: Timed) -> tuple[list[Candidate] | None, Timed]:
        for candidate in wanted:
            if not self._has_room([candidate.choice()]):
                self._had_no_room(candidate)
                continue
            taken, best = self._gaining([candidate], plain)
            if taken:
                return taken, best
        return None, plain

    def _wanted(self, plain: Timed) -> list[Candidate]:
        share = _between(plain) / plain.level
        kept = {one.technique.id for one in self.found.plan}
        wanted: list[Candidate] = []
        for technique in (one for one in self._techniques if one.id not in kept):
            verdict = self._consider(technique, plain.run, [one.choice() for one in wanted])
            if isinstance(verdict, Skipped):
                self._note(technique, verdict.reason)
            elif share < LEAST_SHARE:
                self._note(technique, f"could save at most {100 * max(share, 0.0):.1f} % of an epoch")
            elif verdict.choice().setting not in self._rejected(technique):
                wanted.append(verdict)
        return wanted

    def _gaining(self, group: list[Candidate], plain: Timed) -> tuple[list[Candidate] | None, Timed]:
        """Those of a group that an epoch is faster with, and the trial that showed it; None where none told."""
        choices = [candidate.choice() for candidate in group]
        timing = self._time(choices, " + ".join(map(str, choices)))
        for candidate in group:
            self._forget(candidate.technique)
        if not isinstance(timing, Timed):
            if len(group) == 1:
                self.found.reject(choices, timing.ending)
            return None, plain
        ratio, saved = plain.level / timing.level, _between(plain) - _between(timing)
        if saved < LEAST_SHARE * plain.level or ratio * self.found.worth_keeping < 1:
            self.found.reject(choices, f"{ratio:.2f}x of a whole epoch in a trial")
            return [], plain
        return self._without_idlers(group, timing)

    def _without_idlers(self, group: list[Candidate], best: Timed) -> tuple[list[Candidate], Timed]:
        """What an epoch is no slower without goes, as far as the budget tells."""
        for candidate in list(group) if len(group) > 1 else []:
            rest = [one for one in group if one is not candidate]
            choices = [one.choice() for one in rest]
            timing = self._time(choices, f"without {candidate.choice()}") if rest and self._has_room(choices) else None
            if isinstance(timing, Timed) and _between(timing) - _between(best) < LEAST_SHARE * best.level:
                self.found.reject(
                    [candidate.choice()], f"worth nothing in epochs on top of {' + '.join(map(str, choices))}"
                )
                group, best = rest, timing
        return group, best

    def _take_companions(self) -> None:
        """What nothing shows, such as a faster test after an epoch that is too long for trials, goes with what it
        belongs to, and is held to parity and proof with it."""
        run = self.found.after or self.found.before
        assert run is not None
        for technique in (one for one in self._techniques if one.comes_with):
            verdict = self._consider(technique, run)
            if isinstance(verdict, Skipped):
                self._note(technique, verdict.reason)
            else:
                self._take(verdict)

    def _take(self, candidate: Candidate) -> None:
        self._forget(candidate.technique)
        name = candidate.technique.id
        self.found.parities[name], self.found.gains[name] = candidate.parity, None
        self.found.plan.append(candidate.choice())

    def _consider(self, technique: Technique, run: Run, others: Sequence[Choice] = ()) -> Candidate | Skipped:
        """Against what a run with the plan showed, and against the plan: the setting of which steps show least, since
        they have told of the others."""
        verdict = able(technique, run, self._allow_different)
        if isinstance(verdict, Skipped):
            return verdict
        verdict = dataclasses.replace(verdict, tries=(min(verdict.tries, key=lambda one: one.most),))
        plan = [*self.found.plan, *others]
        if technique.comes_with and not has_company(technique, plan):
            return Skipped(technique, "nothing that it comes with is in the plan")
        enemy = clash(verdict.choice(), plan)
        return verdict if enemy is None else Skipped(technique, f"cannot live with {enemy}")

    def _had_no_room(self, candidate: Candidate) -> None:
        self._note(candidate.technique, "the budget ended before whole epochs with it: try a larger --budget")

    def _note(self, technique: Technique, reason: str) -> None:
        self._forget(technique)
        if not self._rejected(technique):
            self.found.not_tried.append(NotTried(technique.id, reason))

    def _rejected(self, technique: Technique) -> list[Setting]:
        return [one.setting for one in self.found.rejected if one.technique == technique.id]

    def _forget(self, technique: Technique) -> None:
        """What was said before an epoch was seen."""
        self.found.not_tried[:] = [one for one in self.found.not_tried if one.technique != technique.id]


def _between(timing: Timed) -> float:
    """Seconds of an epoch that were not its steps, at the pace they had in this very trial: processes differ in that by
    chance, which is no gain or loss of what saves elsewhere."""
    return timing.level - timing.run.epoch_length * level(timing.run.step_seconds)
