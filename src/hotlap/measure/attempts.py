"""One attempt to better the plan: a trial of it together with something else, which is then taken in or rejected."""

from __future__ import annotations

from hotlap.measure.bench import Bench
from hotlap.measure.candidates import clash
from hotlap.measure.found import BEYOND_NOISE, Found
from hotlap.measure.purse import Purse
from hotlap.measure.timed import Timed
from hotlap.report.findings import NotTried
from hotlap.technique import Choice


class Attempts:
    """Works on the plan of what a search found. What is tried, and in what order, is for `Screening` to say."""

    def __init__(self, bench: Bench, purse: Purse, found: Found) -> None:
        self._bench, self._purse, self.found = bench, purse, found
        self.unfit: list[str] = []  # what the budget had no room for
        self.unfit_start_up_seconds = 0.0  # of all of these
        self.passed_over: list[Choice] = []  # timed, and not taken in
        self.stood_aside: list[Choice] = []  # another setting of the same technique may not
        self._pushed_out: list[tuple[Choice, Choice]] = []  # a member of the plan, and who came in its place
        self._granted = 0  # trials
        self._is_beyond = self._has_said_so = False  # whether the latest left no room for a proof

    def trial(self, choices: list[Choice]) -> Timed | None:
        """Time the plan that these would make. None when that was not possible; the reason is on record."""
        plan = self.plan_with(choices)
        start_up_seconds = sum(choice.start_up_seconds for choice in plan)  # each plan is compiled anew
        if not self.grants(plan, start_up_seconds):
            self.had_no_room(choices)
            return None
        new = [one for one in plan if one not in self.found.plan]
        timing = self._bench.time(plan, " + ".join(map(str, new)), "screen")
        if not isinstance(timing, Timed):
            self.found.reject(choices, timing.ending)
            self.stood_aside += choices if timing.run is not None and timing.run.withdrawn else []
            return None
        return timing

    def grants(self, plan: list[Choice], start_up_seconds: float = 0.0, looks: int = 1) -> bool:
        """Room for a trial, which is then made: beside the proof; or, as one of so many first ones that found nothing
        yet, for a look all the same."""
        has_room = self._purse.has_room_for(plan, start_up_seconds=start_up_seconds)
        is_first = not self.found.plan and self._granted < looks
        self._is_beyond = not has_room and is_first and self._purse.may_look(plan)
        if self._is_beyond and not self._has_said_so:
            until = self._purse.until_proven
            self._bench.say(f"one look all the same: with its proof that ends after about {until:.0f} s")
            self._has_said_so = True
        self._granted += has_room or self._is_beyond
        return has_room or self._is_beyond

    @property
    def least_gain(self) -> float:
        """For what was tried last: only a large one is worth a tuning that takes longer than it should."""
        return BEYOND_NOISE if self._is_beyond else self.found.worth_keeping

    def plan_with(self, choices: list[Choice]) -> list[Choice]:
        """The plan so far plus these, in place of what cannot live with them. Whom those that go had pushed out comes
        back where it can: a recording of the whole pass, say, when one of the model alone makes room for compiling."""
        plan = [*(kept for kept in self.found.plan if clash(kept, choices) is None), *choices]
        gone = {kept.technique.id for kept in self.found.plan if kept not in plan}
        for member, successor in self._pushed_out:
            is_in = any(one.technique is member.technique for one in plan)
            if successor.technique.id in gone and not is_in and clash(member, plan) is None:
                plan.append(member)
        return plan

    def had_no_room(self, choices: list[Choice]) -> None:
        self.unfit.append(" + ".join(map(str, choices)))
        self.unfit_start_up_seconds += sum(choice.start_up_seconds for choice in choices)
        for choice in choices:
            words = f"the budget ended before {self.unfit[-1]}: try a larger --budget"
            self.found.not_tried.append(NotTried(choice.technique.id, words))

    def keep(self, choices: list[Choice], timing: Timed) -> None:
        plan = self.plan_with(choices)
        new = [one for one in plan if one not in self.found.plan]
        for choice in new:
            self.found.gains[choice.technique.id] = self.found.level / timing.level if len(new) == 1 else None
            self.found.accept(choice)
        for enemy in [kept for kept in self.found.plan if kept not in plan]:
            self.found.reject([enemy], f"cannot live with {' + '.join(map(str, choices))}, which is faster")
            self.passed_over.append(enemy)
            self._pushed_out += [(enemy, choice) for choice in choices if clash(enemy, [choice])]
        self.found.plan[:] = plan
        self.found.level, self.found.after = timing.level, timing.run
        self._purse.learn(timing)

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
