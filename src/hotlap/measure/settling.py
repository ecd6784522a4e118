"""Second looks at the plan that screening made: what is in it by luck goes, what bad luck left out comes in.

A single trial may be wrong by as much as identical processes differ. So the plan and its neighbours (the plan without a
member, with one more, or with another setting) are timed in turns, as often as it takes to tell them apart, for as long
as the budget lasts. `bench/searching.py` shows what that brings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from hotlap.measure.bench import Bench
from hotlap.measure.candidates import clash, partners
from hotlap.measure.found import KEEP_GAIN, Found
from hotlap.measure.purse import Purse
from hotlap.measure.stats import process_sd
from hotlap.measure.timed import Timed
from hotlap.technique import Choice

_SURE = 1.64  # standard errors: one in twenty is taken for the better wrongly; by simulation it matters little
_MOST_LOOKS = 12  # at one plan: what they cannot tell apart is as good


@dataclass
class Neighbour:
    """A plan next to the one at hand, with what its trials came to."""

    plan: list[Choice]
    leaves_out: list[Choice]
    takes_in: list[Choice]
    logs: list[float] = field(default_factory=list)
    timing: Timed | None = None
    is_settled: bool = False

    @property
    def label(self) -> str:
        if self.takes_in:
            return " + ".join(map(str, self.takes_in))
        return f"without {' + '.join(map(str, self.leaves_out))}"

    @property
    def least_gain(self) -> float:
        """Log of what it has to gain: a member has to be worth something, and so has a newcomer."""
        return math.log(KEEP_GAIN) if self.takes_in else -math.log(KEEP_GAIN)


class Settling:
    def __init__(self, bench: Bench, purse: Purse, found: Found) -> None:
        self._bench, self._purse, self.found = bench, purse, found
        self._whole: list[float] = []  # logs of the plan's own levels, beside the first
        self._left: list[set[str]] = []  # plans that another was better than: no way leads back there

    def run(self, others: Sequence[Choice]) -> None:
        """From the plan to a neighbour that is better, and from there on, until no look would change anything.
        `others` were timed before and not taken in."""
        others = list(others)
        while self.found.plan:
            members = self._unvisited(self._without_a_member())
            better = self._better(members) or self._better(self._unvisited(self._with(others)))
            if better is None:
                self._note_worth(members)
                return
            others += better.leaves_out
            self._move_to(better)

    def _unvisited(self, neighbours: list[Neighbour]) -> list[Neighbour]:
        return [one for one in neighbours if set(map(str, one.plan)) not in self._left]

    def _without_a_member(self) -> list[Neighbour]:
        """Partners go together, the least promising first."""
        found: list[Neighbour] = []
        for choice in reversed(self.found.plan):
            unit = [choice, *partners(choice, self.found.plan)]
            rest = [one for one in self.found.plan if one not in unit]
            if rest and not any(choice in other.leaves_out for other in found):
                found.append(Neighbour(rest, unit, []))
        return found

    def _with(self, others: Sequence[Choice]) -> list[Neighbour]:
        """In the place of what cannot live with it, its own other setting included."""
        found = []
        for choice in others:
            if choice in self.found.plan:
                continue
            friends = [
                one for one in self.found.plan if one.technique is not choice.technique and clash(one, [choice]) is None
            ]
            found.append(
                Neighbour([*friends, choice], [one for one in self.found.plan if one not in friends], [choice])
            )
        return found

    def _better(self, neighbours: list[Neighbour]) -> Neighbour | None:
        """Look at all of them in turns until one is surely better or none is in doubt. Where the budget ends before,
        a member that seems worth nothing goes, and nobody comes in."""
        for look in range(_MOST_LOOKS):
            doubtful = [one for one in neighbours if not one.is_settled]
            if not doubtful:
                break
            if look and not self._look_at_the_plan(len(doubtful)):
                break
            for one in doubtful:
                self._look_at(one, look)
            sure = [one for one in doubtful if self._advantage(one) > _SURE * self._error(one)]
            if sure:
                return max(sure, key=self._advantage)
            for one in doubtful:
                one.is_settled |= self._advantage(one) < -_SURE * self._error(one)
        left = [one for one in neighbours if one.logs and not one.takes_in and self._advantage(one) > 0]
        return max(left, key=self._advantage, default=None)

    def _look_at_the_plan(self, doubtful: int) -> bool:
        """Once more, where there is room for that and for the others."""
        trials, starting = 1 + doubtful, sum(choice.start_up_seconds for choice in self.found.plan)
        if not self._purse.has_room(trials, start_up_seconds=trials * starting):
            return False
        timing = self._bench.time(self.found.plan, "the plan so far", "ablation", again=len(self._logs))
        if isinstance(timing, Timed):
            self._whole.append(math.log(timing.level))
        return isinstance(timing, Timed)

    def _look_at(self, one: Neighbour, look: int) -> None:
        starting = sum(choice.start_up_seconds for choice in one.plan)  # each plan is compiled anew
        if not self._purse.has_room_for(one.plan, start_up_seconds=starting):
            one.is_settled = True
            return
        timing = self._bench.time(one.plan, one.label, "ablation", again=look)
        if isinstance(timing, Timed):
            one.logs.append(math.log(timing.level))
            one.timing = timing
        else:
            one.is_settled = True

    @property
    def _logs(self) -> list[float]:
        return [math.log(self.found.level), *self._whole]

    def _advantage(self, one: Neighbour) -> float:
        """Log of how much faster it is than the plan, beyond what it has to be."""
        if not one.logs:
            return -math.inf
        return statistics.fmean(self._logs) - statistics.fmean(one.logs) - one.least_gain

    def _error(self, one: Neighbour) -> float:
        sd = process_sd([list(map(math.log, self.found.baselines)), self._logs, one.logs])
        return sd * math.sqrt(1 / len(self._logs) + 1 / max(1, len(one.logs)))

    def _note_worth(self, members: list[Neighbour]) -> None:
        """What came in together with others has a figure of its own by now."""
        for one in members:
            if one.logs:
                worth = math.exp(-self._advantage(one) - one.least_gain)
                new = [choice for choice in one.leaves_out if self.found.gains.get(choice.technique.id) is None]
                self.found.gains |= {choice.technique.id: worth for choice in new}

    def _move_to(self, one: Neighbour) -> None:
        assert one.timing is not None
        for choice in one.takes_in:
            self.found.accept(choice)
            self.found.gains[choice.technique.id] = math.exp(self._advantage(one) + one.least_gain)
        if one.leaves_out:
            reason = "cannot live with" if one.takes_in else "worth nothing on top of"
            stays = one.takes_in or one.plan
            self.found.reject(one.leaves_out, f"{reason} {' + '.join(map(str, stays))}")
        self._left.append(set(map(str, self.found.plan)))
        self.found.plan, self.found.after = one.plan, one.timing.run
        self.found.level = math.exp(one.logs[0])
        self._whole = one.logs[1:]
        self._purse.learn(one.timing)
