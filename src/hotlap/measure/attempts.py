"""One attempt to better the plan: a trial of it together with something else, which is then taken in or rejected."""

from __future__ import annotations

from hotlap.measure.bench import Bench, Timed
from hotlap.measure.candidates import clash
from hotlap.measure.found import Found
from hotlap.measure.purse import Purse
from hotlap.report.findings import NotTried
from hotlap.technique import Choice


class Attempts:
    """Works on the plan of what a search found. What is tried, and in what order, is for `Screening` to say."""

    def __init__(self, bench: Bench, purse: Purse, found: Found) -> None:
        self._bench, self._purse, self.found = bench, purse, found
        self.unfit: list[str] = []  # what the budget had no room for
        self.passed_over: list[Choice] = []  # timed, and not taken in

    def trial(self, choices: list[Choice]) -> Timed | None:
        """Time the plan so far plus these, in place of what cannot live with them. None when that was not possible; the
        reason is on record."""
        plan = [*self.friends(choices), *choices]
        start_up_seconds = sum(choice.start_up_seconds for choice in plan)  # each plan is compiled anew
        if not self._purse.has_room_for(plan, start_up_seconds=start_up_seconds):
            self.had_no_room(choices)
            return None
        timing = self._bench.time(plan, " + ".join(map(str, choices)), "screen")
        if not isinstance(timing, Timed):
            self.found.reject(choices, timing.ending)
            return None
        return timing

    def friends(self, choices: list[Choice]) -> list[Choice]:
        return [kept for kept in self.found.plan if clash(kept, choices) is None]

    def had_no_room(self, choices: list[Choice]) -> None:
        self.unfit.append(" + ".join(map(str, choices)))
        for choice in choices:
            words = f"the budget ended before {self.unfit[-1]}: try a larger --budget"
            self.found.not_tried.append(NotTried(choice.technique.id, words))

    def keep(self, choices: list[Choice], timing: Timed) -> None:
        for choice in choices:
            self.found.gains[choice.technique.id] = self.found.level / timing.level if len(choices) == 1 else None
            self.found.accept(choice)
        for enemy in [kept for kept in self.found.plan if clash(kept, choices) is not None]:
            self.found.reject([enemy], f"cannot live with {' + '.join(map(str, choices))}, which is faster")
            self.passed_over.append(enemy)
        self.found.plan[:] = [*self.friends(choices), *choices]
        self.found.level, self.found.after = timing.level, timing.run
        if not any(choice.technique.start_up_seconds for choice in self.found.plan):  # what it made is there by now
            self._purse.plan_seconds = timing.seconds

    def replace(self, choice: Choice, rest: list[Choice]) -> None:
        """Another setting of a technique that is in the plan, taken in where it is faster still."""
        timing = self._bench.time([*rest, choice], str(choice), "screen")
        if not isinstance(timing, Timed):
            self.found.reject([choice], timing.ending)
            return
        ratio = self.found.level / timing.level
        if ratio < self.found.worth_keeping:
            self.found.reject([choice], f"{ratio:.2f}x against the setting kept")
            self.passed_over.append(choice)
            return
        gain = self.found.gains[choice.technique.id]
        self.found.gains[choice.technique.id] = gain * ratio if gain else None
        self.found.plan = [*rest, choice]
        self.found.level, self.found.after = timing.level, timing.run
