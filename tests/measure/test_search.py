"""The search on a made-up bench, where every plan has its level: what stays, what is run twice, what is said."""

from __future__ import annotations

import dataclasses
import itertools
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from hotlap.measure import known
from hotlap.measure.bench import Bench
from hotlap.measure.caveats import Caveat
from hotlap.measure.found import Found
from hotlap.measure.known import Known
from hotlap.measure.proof import Proof
from hotlap.measure.search import Search
from hotlap.measure.settling import Settling
from hotlap.measure.stats import Comparison, Decision
from hotlap.measure.timed import Timed, Untimed
from hotlap.measure.verdicts import no_baseline
from hotlap.observe.run import Run
from hotlap.report.findings import Interval
from hotlap.technique import Choice, Family, Parity, Technique, Try


class Fast(Technique):
    family = Family.WAIT

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def settings(self, run: Run) -> Sequence[Try]:
        return [Try({}, 0.9)]

    def apply(self, patch: Any, setting: Any) -> None: ...


class Other(Fast): ...


class Layout(Fast):
    traits = frozenset({"layout"})


class Precision(Fast):
    helps_with = frozenset({"layout"})


class Slow(Fast):
    start_up_seconds = 20.0
    helps_with = frozenset({"layout"})

    def settings(self, run: Run) -> Sequence[Try]:
        return [Try({"mode": "a"}, 0.9), Try({"mode": "b"}, 0.9)]


class Spoken:
    def __init__(self) -> None:
        self.said_so: list[str] = []

    def said(self, sentence: str) -> None:
        self.said_so.append(sentence)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Made(Bench):
    """Seconds a step by the techniques in the plan; every trial lasts a second on its clock."""

    def __init__(self, levels: dict[tuple[str, ...], float | str], known: Known | None = None) -> None:
        super().__init__(None, None, 1.0, Spoken(), known)  # type: ignore[arg-type]
        self._levels, self.asked = levels, []

    @property
    def spent(self) -> float:
        return float(len(self.asked))

    def longest(self, trials: int) -> str:
        return ""

    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        names = tuple(sorted(choice.technique.id for choice in plan))
        self.asked.append(names)
        self.measured += 1
        found = self._levels[names]
        run = Run(torch="2.13.0", device="cpu", startup_seconds=2.0)
        return Timed(found, run, "enough", 1.0, True) if isinstance(found, float) else Untimed(found, None, "")


def search(bench: Made, *techniques: Technique, budget: float = 100.0, together: bool = False) -> Search:
    made = Search(bench, techniques, budget, "", bench._listener)
    if not together:
        made.screening._try_together = lambda candidates: candidates  # type: ignore[method-assign]
    made._baseline()
    return made


def settle(made: Search) -> None:
    Settling(made._bench, made.purse, made.found).run(made.screening.passed_over)


LEVELS = {(): 1.0, ("fast",): 0.5, ("other",): 0.9, ("fast", "other"): 0.45}


def planned(bench: Made, *techniques: Technique, best: float, budget: float = 100.0) -> Search:
    made = search(bench, budget=budget)
    made.found.plan = [Choice(technique, {}) for technique in techniques]
    made.found.level = best
    return made


def test_what_the_plan_is_no_slower_without_goes_before_the_proof() -> None:
    bench = Made({**LEVELS, ("fast", "other"): 0.5})
    made = planned(bench, Other(), Fast(), best=0.5)
    settle(made)
    assert [str(choice) for choice in made.found.plan] == ["fast"]
    assert [(one.technique, one.reason) for one in made.found.rejected] == [("other", "worth nothing on top of fast")]


def test_what_is_worth_something_stays() -> None:
    made = planned(Made(LEVELS), Other(), Fast(), best=0.45)
    settle(made)
    assert [str(choice) for choice in made.found.plan] == ["other", "fast"] and not made.found.rejected


def test_leaving_out_that_fails_says_nothing_against_a_member() -> None:
    made = planned(Made({**LEVELS, ("fast",): "hang: no end within its limit"}), Other(), Fast(), best=0.5)
    settle(made)
    assert len(made.found.plan) == 2


def test_partners_go_or_stay_together() -> None:
    levels = {
        (): 1.0,
        ("fast",): 0.5,
        ("layout", "precision"): 1.0,
        ("fast", "layout"): 0.5,
        ("fast", "precision"): 0.5,
    }
    for together, left in ((0.4, 3), (0.5, 1)):
        whole = {("fast", "layout", "precision"): together}
        made = planned(Made(levels | whole), Layout(), Precision(), Fast(), best=together)
        settle(made)
        assert len(made.found.plan) == left


@pytest.mark.parametrize(("other", "kept"), [(0.985, ["fast", "other"]), (1.02, [])])
def test_gains_within_the_noise_are_tried_together(other: float, kept: list[str]) -> None:
    """Not with what was slower by itself."""
    bench = Made({(): 1.0, ("fast",): 0.985, ("other",): other, ("fast", "other"): 0.8})
    made = search(bench, Fast(), Other())
    made.screening.run()
    assert sorted(one.technique.id for one in made.found.plan) == kept
    assert [one.technique for one in made.found.rejected] == ([] if kept else ["fast", "other"])


def test_without_room_nothing_is_left_out() -> None:
    bench = Made(LEVELS)
    made = planned(bench, Other(), Fast(), best=0.5, budget=3.0)
    settle(made)
    assert len(made.found.plan) == 2 and len(bench.asked) == 3


def test_what_was_left_out_is_not_left_out_again() -> None:
    bench = Made(LEVELS)
    made = planned(bench, Other(), Fast(), best=0.45)
    settle(made)
    made.found.comparison = Comparison(Decision.CLAIM, Interval(2.2, 2.0, 2.4))
    count = len(bench.asked)
    Proof(bench, made.found, 100.0, 1.0, "")._ablate()
    assert len(bench.asked) == count
    columns = {one.technique: (one.alone, one.left_out) for one in made.found.ablation}
    assert columns == {"other": (pytest.approx(1 / 0.9), 2.0), "fast": (2.0, pytest.approx(1 / 0.9))}


def test_what_nobody_had_time_to_leave_out_has_no_row() -> None:
    bench = Made(LEVELS)
    made = planned(bench, Other(), Fast(), best=0.45)
    made.found.comparison = Comparison(Decision.CLAIM, Interval(2.2, 2.0, 2.4))
    Proof(bench, made.found, bench.spent, 1.0, "")._ablate()
    assert made.found.ablation == []


def test_the_arithmetic_is_said_before_it_is_spent() -> None:
    bench = Made({**LEVELS, ("layout",): 1.0})
    search(bench, Fast(), Other(), Layout(), budget=15.0).screening.run()
    words = bench._listener.said_so[-1]  # type: ignore[attr-defined]
    assert words == (
        "start-up 2.0 s, 1.00 s a step, 1.0 s a trial; 3 candidates (3 with all settings), 3 fit in 15 s beside"
        " parity and proof"
    )


def test_what_did_not_fit_is_listed_and_nothing_is_concluded() -> None:
    bench = Made(LEVELS)
    made = search(bench, Other(), Fast(), budget=12.5)
    made.screening.run()
    assert [one.technique for one in made.found.not_tried] == ["fast"]
    assert "the budget ended before fast" in made.found.not_tried[0].reason
    assert made.found.cut_short and "try --budget" in made.found.caveats[0]


@pytest.mark.parametrize(("budget", "asked"), [(11.0, [("fast", "other")]), (8.1, [("fast", "other")]), (7.9, [])])
def test_all_together_are_tried_once_although_the_proof_has_no_room_yet(budget: float, asked: list) -> None:
    """Three trials so far, one more, and eight for parity and pairs are twelve, a budget and a half at most."""
    bench = Made(LEVELS)
    made = search(bench, Fast(), Other(), budget=budget, together=True)
    made.screening.run()
    assert bench.asked[3:] == asked
    assert ("ends after about 12 s" in bench._listener.said_so[-1]) is bool(asked)  # type: ignore[attr-defined]
    assert [str(choice) for choice in made.found.plan] == (["fast", "other"] if asked else [])


@pytest.mark.parametrize(("budget", "asked"), [(6.1, [("fast", "other")]), (5.9, [])])
def test_a_first_look_counts_on_a_plan_whose_trials_are_shorter(budget: float, asked: list) -> None:
    """At best they take no time at all: then nine trials are over after a budget and a half."""
    bench = Made(LEVELS)
    made = search(bench, Fast(), Other(), budget=budget, together=True)
    made.purse.start_up_seconds = 0.0
    made.screening.run()
    assert bench.asked[3:] == asked


def test_where_something_breaks_the_halves_have_their_looks_and_nobody_else() -> None:
    class Sums(Fast):
        family = Family.COMPUTE

    class Products(Sums): ...

    broken = ("fast", "other", "products", "sums")
    bench = Made({**LEVELS, broken: "exit: signal 4", ("fast", "other"): 0.9, ("products", "sums"): 0.9})
    made = search(bench, Fast(), Other(), Sums(), Products(), budget=11.0, together=True)
    made.screening.run()
    assert bench.asked[3:] == [broken, ("fast", "other"), ("products", "sums")]
    assert made.found.plan == [] and made.found.cut_short


@pytest.mark.parametrize(("gain", "kept"), [(0.5, ["fast"]), (0.85, [])])
def test_one_that_is_alone_has_its_look_as_well(gain: float, kept: list[str]) -> None:
    bench = Made({**LEVELS, ("fast",): gain})
    made = search(bench, Fast(), budget=11.0, together=True)
    made.screening.run()
    assert bench.asked[3:] == [("fast",)] and [str(choice) for choice in made.found.plan] == kept


@pytest.mark.parametrize(("budget", "kept"), [(11.0, []), (100.0, ["fast", "other"])])
def test_a_small_gain_is_not_worth_a_longer_tuning(budget: float, kept: list[str]) -> None:
    bench = Made({**LEVELS, ("fast",): 0.85, ("fast", "other"): 0.83})
    made = search(bench, Fast(), Other(), budget=budget, together=True)
    made.screening.run()
    assert bench.asked[3] == ("fast", "other") and [str(choice) for choice in made.found.plan] == kept


# what is on record ------------------------------------------------------------------------------------------------


def recorded(path: str, levels: dict[Any, Any], *techniques: Technique) -> tuple[Made, Found]:
    bench = Made(levels, Known(path, {"script": "x"}))
    made = search(bench, *techniques)
    made.screening.run()
    return bench, made.found


def test_levels_are_reused_as_ratios_to_their_own_baseline(tmp_path) -> None:
    path = str(tmp_path / "trials.jsonl")
    recorded(path, LEVELS, Fast())
    bench, found = recorded(path, {(): 1.02}, Fast())
    assert found.gains == {"fast": pytest.approx(2.0)} and bench.asked == [()] * 3
    assert bench.known.reused == 1 and bench.known.earlier_seconds == 4.0


def test_a_drifted_machine_makes_levels_void_but_not_endings(tmp_path) -> None:
    path = str(tmp_path / "trials.jsonl")
    levels = {**LEVELS, ("other",): "out of memory"}
    recorded(path, levels, Fast(), Other())
    bench, found = recorded(path, {(): 1.2, ("fast",): 0.6}, Fast(), Other())
    assert bench.asked == [(), (), (), ("fast",)]
    assert [(one.technique, one.reason) for one in found.rejected] == [("other", "out of memory")]


def test_an_ending_by_chance_is_given_another_attempt(tmp_path) -> None:
    path = str(tmp_path / "trials.jsonl")
    recorded(path, {**LEVELS, ("fast",): "hang: no end within its limit"}, Fast())
    bench, found = recorded(path, LEVELS, Fast())
    assert bench.asked[-1] == ("fast",) and found.plan


def test_a_shorter_trial_does_not_stand_for_a_longer_one(tmp_path) -> None:
    path = str(tmp_path / "trials.jsonl")
    recorded(path, LEVELS, Fast())
    for seconds, is_known in ((0.5, True), (2.0, False)):
        bench = Made(LEVELS, Known(path, {"script": "x"}))
        bench._seconds = seconds
        search(bench)
        assert bench.knows([Choice(Fast(), {})]) == is_known


def test_after_a_month_nothing_is_known(tmp_path, monkeypatch) -> None:
    path = tmp_path / "trials.jsonl"
    recorded(str(path), LEVELS, Fast())
    monkeypatch.setattr(known, "_DAYS", -1)
    bench, _ = recorded(str(path), LEVELS, Fast())
    assert bench.known.reused == 0 and bench.known.earlier_seconds == 0.0


@pytest.mark.parametrize("setting", [{"size": 1}, {}])
def test_another_setting_is_another_trial(tmp_path, setting) -> None:
    path = str(tmp_path / "trials.jsonl")
    recorded(path, LEVELS, Fast())
    bench = Made(LEVELS, Known(path, {"script": "x"}))
    search(bench)
    assert bench.knows([Choice(Fast(), setting)]) == (not setting)


def test_what_starts_slowly_comes_last_and_what_was_idle_is_tried_with_it() -> None:
    levels = {(): 1.0, ("fast",): 0.5, ("layout",): 1.0, ("fast", "layout"): 0.5, ("fast", "slow"): 0.3}
    levels |= {("fast", "layout", "slow"): 0.2, ("slow",): 0.6, ("layout", "slow"): 0.4}
    bench = Made(levels)
    made = search(bench, Slow(), Fast(), Layout(), budget=200.0)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast", "slow (mode a)", "layout"]
    assert not any("slow" in names for names in bench.asked[: bench.asked.index(("fast", "slow"))])
    assert made.found.rejected == []


def test_what_starts_slowly_needs_room_for_its_start() -> None:
    bench = Made({(): 1.0, ("slow",): 0.5})
    made = search(bench, Slow(), budget=25.0)
    made.screening.run()
    assert made.found.plan == [] and all("slow" not in names for names in bench.asked)
    assert {one.technique for one in made.found.not_tried} == {"slow"}


def test_the_budget_asked_for_has_room_for_what_starts_slowly() -> None:
    levels: dict[tuple[str, ...], float | str] = {(): 1.0, ("slow",): 1.0}
    made = search(Made(levels), Slow(), budget=25.0)
    made.screening.run()
    asked = re.search(r"try --budget (\d+)s", made.found.caveats[0])
    assert asked
    made = search(Made(levels), Slow(), budget=float(asked[1]))
    made.screening.run()
    assert made.found.not_tried == [] and len(made.found.rejected) == 2


def test_what_gains_after_an_epoch_is_not_judged_by_less() -> None:
    class Filling(Fast):
        fills_in_an_epoch = True

    bench = Made({(): 1.0, ("filling",): 0.5})
    made = search(bench, Filling())
    made.screening.run()
    assert made.found.plan == [] and "first epoch" in made.found.not_tried[0].reason
    bench.epoch_steps = 10
    made = search(bench, Filling())
    bench.epoch_steps = 10
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["filling"]


def test_a_trial_that_gave_a_technique_nothing_to_do_is_not_held_against_it() -> None:
    class Idle(Fast):
        def seen(self, run: Run) -> bool:
            return False

    made = search(Made({(): 1.0, ("idle",): 1.0, ("other",): 1.0}), Idle(), Other())
    made.screening.run()
    assert [one.reason for one in made.found.rejected] == [
        "1.00x: found nothing to do in a trial",
        "1.00x: no gain in a trial",
    ]


def test_time_is_kept_for_what_starts_slowly_where_the_others_have_enough() -> None:
    others = [type(f"T{number:02}", (Fast,), {})() for number in range(40)]
    bench = Made({(): 1.0, ("slow",): 0.3} | {(one.id,): 1.0 for one in others})
    made = search(bench, *others, Slow(), budget=90.0)  # 3 are spent, 31.5 kept for proof, 21 for its start
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["slow (mode a)"]
    assert len(made.found.not_tried) == 40 - 34


def test_what_was_taken_in_with_a_slow_starter_is_not_tried_once_more() -> None:
    levels = {(): 1.0, ("layout",): 1.0, ("precision",): 1.0, ("slow",): 0.5, ("layout", "slow"): 0.3}
    bench = Made(levels)
    made = search(bench, Slow(), Layout(), Precision(), budget=300.0)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["slow (mode a)", "layout"]
    assert bench.asked.count(("layout", "slow")) == 1


@pytest.mark.parametrize("is_needed", [False, True])
def test_an_end_of_an_epoch_that_takes_too_long_is_not_waited_for_unless_something_needs_it(is_needed: bool) -> None:
    class LongEnds(Made):
        def see_past_an_epoch(self, run: Run) -> bool:
            self.epoch_steps = 10
            return True

        def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
            timing = super()._measured(plan, label, role)
            return dataclasses.replace(timing, seconds=30.0 if self.epoch_steps else 1.0)

    class Filling(Fast):
        fills_in_an_epoch = is_needed

    made = search(LongEnds({(): 1.0}), Filling())
    assert (made._bench.epoch_steps, made.purse.trial_seconds) == ((10, 30.0) if is_needed else (0, 1.0))
    assert len(made.found.caveats) == (not is_needed)


# all together -----------------------------------------------------------------------------------------------------


class Still(Fast):
    """Has nothing to do here."""

    def seen(self, run: Run) -> bool:
        return False


class Graphs(Fast):
    excludes = frozenset({"layout"})


def test_one_trial_of_all_is_enough_where_they_are_not_in_each_others_way() -> None:
    levels = {(): 1.0, ("fast", "other", "still"): 0.4, ("fast",): 0.4, ("other",): 0.9, ("fast", "other"): 0.4}
    bench = Made(levels)
    made = search(bench, Fast(), Still(), Other(), together=True)
    made.screening.run()
    assert bench.asked[3:] == [("fast", "other", "still")]
    assert [str(choice) for choice in made.found.plan] == ["fast", "other"]
    assert [(one.technique, one.reason) for one in made.found.rejected] == [("still", "found nothing to do in a trial")]
    settle(made)
    assert [str(choice) for choice in made.found.plan] == ["fast"]


def test_settings_for_what_still_takes_long_come_first() -> None:
    """Time is kept for the slow starter, so neither fits before it; after it there is room, and waiting is most of what
    is left of a step."""

    class Feeding(Fast):
        family, most = Family.WAIT, 0.5

        def settings(self, run: Run) -> Sequence[Try]:
            return [Try({}, self.most), Try({"number": 2}, self.most)]

    class Computing(Feeding):
        family = Family.COMPUTE

    slow, feeding, computing = Slow(), Feeding(), Computing()
    together = ("computing", "feeding")
    bench = Made({(): 1.0, together: 0.5, ("computing", "feeding", "slow"): 0.5})
    made = search(bench, computing, feeding, slow, budget=90.0, together=True)
    made.purse.for_epochs = lambda: 32.0  # of the 55.5 s that are left before the proof
    computing.most = 0.1  # with the plan, as the second of them will say
    made.screening.run()
    tried = [one.technique for one in made.found.rejected if one.setting == {"number": 2}]
    assert tried[:1] == ["feeding"]


def test_what_was_taken_in_with_others_gets_its_gain_when_it_is_left_out() -> None:
    bench = Made({(): 1.0, ("fast", "other"): 0.4, ("fast",): 0.5, ("other",): 0.8})
    made = search(bench, Fast(), Other(), together=True)
    made.screening.run()
    assert made.found.gains == {"fast": None, "other": None}
    settle(made)
    assert made.found.gains == {"fast": pytest.approx(2.0), "other": pytest.approx(1.25)}


def test_where_one_breaks_all_the_halves_are_tried_and_then_each() -> None:
    class Breaks(Other):
        family = Family.COMPUTE

    class Slight(Breaks): ...

    ending = "died of signal 4"
    levels = {(): 1.0, ("fast", "other"): 0.5, ("fast", "other", "slight"): 0.45}
    levels |= {("breaks", "fast", "other"): ending, ("breaks", "fast", "other", "slight"): ending}
    made = search(Made(levels), Fast(), Other(), Breaks(), Slight(), together=True)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast", "other", "slight"]
    assert [(one.technique, one.reason) for one in made.found.rejected] == [("breaks", ending)]


class Minor(Fast):
    """A hundredth of a step as it is; more of a shorter one."""

    def settings(self, run: Run) -> Sequence[Try]:
        return [Try({}, run.startup_seconds / 100)]


class MinorToo(Minor):
    id = "minor-too"


class SlowMinor(Minor):
    id, start_up_seconds = "slow-minor", 20.0


@pytest.mark.parametrize("together", [True, False])
def test_what_was_too_small_a_part_is_tried_once_the_step_is_shorter(together: bool) -> None:
    """The others first; then those that grew, which are said to be tried."""
    minor = {Minor().id: 0.8, "minor-too": 0.9, "slow-minor": 0.5}

    class Growing(Made):
        def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
            names = [choice.technique.id for choice in plan]
            level = 1.0
            for name in names:
                level *= {"fast": 0.1, **minor}[name]
            self.asked.append(tuple(sorted(names)))
            run = Run(torch="2.13.0", device="cpu", startup_seconds=1 / level)  # its part grows as the step shrinks
            return Timed(level, run, "enough", 1.0, True)

    bench = Growing({})
    made = search(bench, Fast(), Minor(), MinorToo(), SlowMinor(), together=together)
    made.screening.run()
    assert sorted(str(choice) for choice in made.found.plan) == sorted(["fast", *minor])
    assert made.found.not_tried == [] and bench.asked[3] == ("fast",)
    assert set(made.found.parities) == {"fast", *minor}
    if together:
        assert bench.asked[4:6] == [tuple(sorted(["fast", Minor().id, "minor-too"])), bench.asked[-1]]


def test_what_stays_too_small_is_listed_as_such() -> None:
    class Tiny(Fast):
        def settings(self, run: Run) -> Sequence[Try]:
            return [Try({}, 0.01)]

    made = search(Made({(): 1.0, ("fast",): 0.5}), Fast(), Tiny())
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast"] and "at most" in made.found.not_tried[0].reason


DIES = "died of signal 4 (illegal instruction)"


def test_what_killed_its_process_is_not_tried_in_company() -> None:
    class Deadly(Fast): ...

    levels = {(): 1.0, ("deadly", "fast", "other"): DIES, ("deadly",): DIES, ("fast",): 0.5, ("fast", "other"): 0.45}
    bench = Made({**levels, ("other",): 0.9})
    made = search(bench, Deadly(), Fast(), Other(), together=True)
    made.screening.run()
    assert [names for names in bench.asked if "deadly" in names] == [("deadly", "fast", "other"), ("deadly",)]
    assert [str(choice) for choice in made.found.plan] == ["fast", "other"]
    assert [(one.technique, one.reason) for one in made.found.rejected] == [("deadly", DIES)]
    doomed = [Choice(Deadly(), {}), Choice(Layout(), {})]
    assert bench.knows(doomed) and bench.time(doomed, "", "ablation") == Untimed(DIES, None, "")
    assert not bench.knows([Choice(Deadly(), {"size": 1})]), "another setting may live"


def test_one_that_hangs_or_fails_in_company_is_tried_on() -> None:
    bench = Made({**LEVELS, ("other",): "hang: no end within its limit"})
    search(bench)
    for names in ([Other()], [Other(), Fast()]):
        timing = bench.time([Choice(one, {}) for one in names], "", "screen")
    assert isinstance(timing, Timed)


def test_what_the_processor_cannot_do_is_remembered(tmp_path) -> None:
    path = str(tmp_path / "trials.jsonl")
    for ending, asked in ((DIES, 3), ("died of signal 11 (segmentation fault)", 4)):
        for _ in range(2):
            bench, found = recorded(path, {(): 1.0, ("fast",): ending}, Fast())
            assert found.rejected[0].reason == ending
        assert len(bench.asked) == asked
        path += "-other"


def test_no_gain_together_says_nothing_of_each() -> None:
    levels = {(): 1.0, ("fast", "other"): 1.0, ("fast",): 0.5, ("other",): 2.0}
    made = search(Made(levels), Fast(), Other(), together=True)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast"]


def test_the_faster_of_two_that_cannot_live_together_stays() -> None:
    for graphs, kept in ((0.3, "graphs"), (0.7, "layout")):
        levels = {(): 1.0, ("layout",): 0.5, ("graphs",): graphs}
        made = search(Made(levels), Layout(), Graphs(), together=True)
        made.screening.run()
        assert [str(choice) for choice in made.found.plan] == [kept]


def test_where_starting_takes_most_of_a_trial_fewer_steps_are_timed() -> None:
    for seconds, room, left in ((8.0, 5.0, 4.0), (8.0, -3.0, 2.0), (1.5, -3.0, 1.5), (8.0, 9.0, 8.0)):
        bench = Made({})
        bench._seconds = seconds
        bench.shorten(room)
        assert bench._seconds == left


def test_what_stands_aside_does_not_spoil_the_trial_of_all() -> None:
    class Aside(Made):
        def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
            if not any(choice.technique.id == "other" for choice in plan):
                return super()._measured(plan, label, role)
            withdrawn = ["other (size 1): not here"]
            run = Run(torch="2.13.0", device="cpu", withdrawn=withdrawn)
            return Untimed(f"could not be applied: {withdrawn[0]}", run, "", 0.5)

    class Third(Fast): ...

    made = search(Aside({(): 1.0}), Fast(), Other(), Third(), together=True)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast", "third"]
    assert "not here" in made.found.rejected[0].reason and len(made.found.rejected) == 1


def test_a_small_gain_that_does_not_show_twice_is_none() -> None:
    class Noisy(Made):
        def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
            timing = super()._measured(plan, label, role)
            has_other = any(choice.technique.id == "other" for choice in plan)
            assert isinstance(timing, Timed)
            is_first = self.asked.count(self.asked[-1]) == 1
            return timing if has_other or not is_first else dataclasses.replace(timing, level=1.03 * timing.level)

    for gain, kept in ((1.0, ["fast"]), (1.3, ["fast", "other"])):
        levels = {(): 1.0, ("fast",): 0.5, ("other",): 0.9, ("fast", "other"): 0.5 / gain}
        made = search(Noisy(levels), Fast(), Other(), together=True)
        made.screening.run()
        settle(made)
        assert [str(choice) for choice in made.found.plan] == kept


class Slowest(Slow):
    """Its second setting takes longer to start than the technique says."""

    def starts_after(self, setting: Any) -> float:
        return 60.0 if setting["mode"] == "b" else self.start_up_seconds


class BySetting(Made):
    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        timing = super()._measured(plan, label, role)
        modes = [choice.setting.get("mode") for choice in plan]
        self.asked[-1] = tuple(map(str, modes))
        assert isinstance(timing, Timed)
        return dataclasses.replace(timing, level=0.4) if "b" in modes else timing


@pytest.mark.parametrize(
    ("first", "budget", "kept", "asked"),
    [
        (0.5, 200.0, ["slowest (mode b)"], [("a",), ("b",)]),
        (0.5, 90.0, ["slowest (mode a)"], [("a",)]),
        (1.0, 200.0, [], [("a",)]),
    ],
    ids=["in place of what gained", "not without room", "not where nothing gained"],
)
def test_the_slowest_start_is_tried_last(first: float, budget: float, kept: list, asked: list) -> None:
    bench = BySetting({(): 1.0, ("slowest",): first})
    made = search(bench, Slowest(), budget=budget)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == kept
    assert bench.asked[3:] == asked
    assert not made.found.cut_short, "what was left out on purpose leaves nothing open"
    if budget == 90.0:
        assert made.found.not_tried[-1].reason == "slowest (mode b) takes about 60 s to start: try a larger --budget"


class Whole(Fast):
    excludes = frozenset({"own graphs"})


class Slower(Slow):
    """Its first setting, the most promising one, cannot live with everybody."""

    def brings(self, setting: Any) -> frozenset[str]:
        return frozenset({"own graphs"} if setting["mode"] == "a" else ())


@pytest.mark.parametrize("alone", [1.0, 0.5], ids=["where nobody is in its way", "where somebody is"])
def test_what_starts_slowly_is_first_tried_in_a_way_that_the_plan_can_keep(alone: float) -> None:
    bench = Made({(): 1.0, ("whole",): alone, ("slower", "whole"): 0.3, ("slower",): 0.4})
    made = search(bench, Whole(), Slower(), budget=200.0)
    made.screening.run()
    kept = ["slower (mode a)"] if alone == 1.0 else ["whole", "slower (mode b)"]
    assert [str(choice) for choice in made.found.plan] == kept
    assert bench.asked[4] == (("slower",) if alone == 1.0 else ("slower", "whole"))


class Part(Fast):
    traits, excludes = frozenset({"part"}), frozenset({"compiled"})


class Entire(Whole):
    excludes = frozenset({"own graphs", "part"})


class Compiled(Slower):
    def brings(self, setting: Any) -> frozenset[str]:
        return super().brings(setting) | {"compiled"}


def test_whom_one_pushed_out_comes_back_when_that_one_goes() -> None:
    bench = Made({(): 1.0, ("entire",): 0.8, ("part",): 0.6, ("compiled",): 0.5, ("compiled", "entire"): 0.2})
    made = search(bench, Compiled(), budget=300.0)
    for choice in (Choice(Entire(), {}), Choice(Part(), {})):
        timing = made.screening._attempts.trial([choice])
        assert timing is not None
        made.screening._attempts.keep([choice], timing)
    assert [str(one) for one in made.found.plan] == ["part"]
    made.screening.run()
    assert [str(one) for one in made.found.plan] == ["compiled (mode b)", "entire"]
    assert bench.asked[5:] == [("compiled", "entire")], "the setting where both can live comes first, and is enough"
    assert [(one.technique, one.reason) for one in made.found.rejected] == [
        ("part", "cannot live with compiled (mode b), which is faster")
    ]


class Kinds(Fast):
    def settings(self, run: Run) -> Sequence[Try]:
        return [Try({"kind": "a"}, 0.9), Try({"kind": "b"}, 0.9)]


class Aside(Made):
    """The first kind withdraws itself."""

    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        timing = super()._measured(plan, label, role)
        withdrawn = [f"{choice}: not here" for choice in plan if choice.setting == {"kind": "a"}]
        if not withdrawn:
            return timing
        run = Run(torch="2.13.0", device="cpu", withdrawn=withdrawn)
        return Untimed(f"could not be applied: {run.withdrawn[0]}", run, "", 0.8)


@pytest.mark.parametrize("together", [True, False])
def test_what_stands_aside_in_one_setting_is_tried_in_another(together: bool) -> None:
    bench = Aside({(): 1.0, ("fast",): 0.8, ("kinds",): 0.5, ("fast", "kinds"): 0.4})
    made = search(bench, Kinds(), Fast(), together=together)
    made.screening.run()
    assert sorted(map(str, made.found.plan)) == ["fast", "kinds (kind b)"]
    assert [(one.technique, one.setting) for one in made.found.rejected] == [("kinds", {"kind": "a"})]
    assert bench.asked[3:].count(("fast", "kinds")) <= 2 and not made.found.cut_short


@pytest.mark.parametrize("together", [True, False])
def test_a_setting_that_no_step_shows_is_left_to_whole_epochs(together: bool) -> None:
    class Half(Kinds):
        def settings(self, run: Run) -> Sequence[Try]:
            return [Try({"kind": "a"}, 0.9), Try({"kind": "b"}, 0.0)]

    bench = Aside({(): 1.0, ("fast",): 0.5, ("half",): 1.0, ("fast", "half"): 0.5})
    made = search(bench, Half(), Fast(), together=together)
    made.screening.run()
    assert [(one.technique, one.setting) for one in made.found.rejected] == [("half", {"kind": "a"})]


class Companion(Fast):
    between_steps = True
    comes_with = frozenset({"layout"})

    def settings(self, run: Run) -> Sequence[Try]:
        return [Try({}, 0.0)]


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_no_step_shows_comes_with_what_it_belongs_to(is_kept: bool) -> None:
    bench = Made({(): 1.0, ("layout",): 0.5 if is_kept else 1.0})
    made = search(bench, Layout(), Companion())
    made.screening.run()
    made.epochs.run()
    assert [str(choice) for choice in made.found.plan] == (["layout", "companion"] if is_kept else [])
    assert all("companion" not in plan for plan in bench.asked), "it is not tried by itself"
    assert made.found.gains.get("companion") is None
    if not is_kept:
        assert made.found.not_tried[-1].reason == "nothing that it comes with is in the plan"


def test_what_withdrew_without_a_name_is_found_by_trying_each() -> None:
    class Nameless(Made):
        def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
            timing = super()._measured(plan, label, role)
            if not any(choice.technique.id == "other" for choice in plan):
                return timing
            run = Run(torch="2.13.0", device="cpu", withdrawn=["the recorded pass: not here"])
            return Untimed(f"could not be applied: {run.withdrawn[0]}", run, "", 0.4)

    levels = {(): 1.0, ("fast",): 0.5, ("other",): 0.4, ("fast", "other"): 0.4}
    made = search(Nameless(levels), Fast(), Other(), together=True)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast"]
    assert [one.technique for one in made.found.rejected] == ["other"]


class Same:
    """A parity test that went past the end of an epoch, or did not."""

    repeats_itself, too_little, losses, reference_losses = True, "", (), ()

    def __init__(self, saw_an_epoch_end: bool) -> None:
        self.saw_an_epoch_end = saw_an_epoch_end

    def start(self) -> None:
        return None

    def checks(self, *_: Any) -> list[Any]:
        return []


@pytest.mark.parametrize("saw_one", [True, False])
def test_what_the_timed_trials_did_not_reach_the_parity_test_may_have(saw_one: bool) -> None:
    found = Found(parities={"fast": Parity.IDENTICAL})
    found.caveats.append(Caveat.NO_EPOCH_END.text())
    Proof(Made({}), found, 100.0, 1.0, "")._verdict(Same(saw_one), [Choice(Fast(), {})], "plan")  # type: ignore[arg-type]
    assert found.caveats == ([] if saw_one else [Caveat.NO_EPOCH_END.text()])


def test_a_script_that_is_only_slow_is_not_called_broken() -> None:
    said = no_baseline(Untimed("hang: no end within its limit", None, ""))
    assert "larger --budget" in said and "mend" not in said


@pytest.mark.parametrize(("budget", "said"), [(20.0, "try --budget 40s"), (1000.0, "16 pairs could not tell")])
def test_undecided_pairs_blame_the_budget_only_where_it_ended(budget: float, said: str) -> None:
    bench = Scattered([1.9, 1.0, 1.0, 1.9, 0.9], 0.95)
    found = Found(plan=[Choice(Fast(), {})], baselines=[2.0, 1.0])
    Proof(bench, found, budget, 1.0, "").confirm()
    assert found.cut_short and said in found.caveats[0]


def test_too_little_to_compare_is_held_against_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the plan nor a member of it is said to be another training, and none is looked at by itself."""
    figures = {"figures": [{"step": 1.0, "gradient": 0.0}], "norms": [], "batches": [], "sketches": []}
    evidence = figures | {"epoch_ends": [], "census": [], "draws": [], "along": [], "losses": []}
    run = Run(torch="2.13.0", device="cpu")
    trial = types.SimpleNamespace(parity=evidence, good=True, run=run, seconds=1.0, ending="done")
    asked: list[str] = []
    bench = Made(LEVELS)
    monkeypatch.setattr(bench, "parity", lambda plan, label, *_: (asked.append(label), trial)[1])
    found = Found(plan=[Choice(Other(), {}), Choice(Fast(), {})], before=run)
    found.parities = {"other": Parity.EQUIVALENT, "fast": Parity.IDENTICAL}
    Proof(bench, found, 100.0, 1.0, "").run()
    assert asked == ["reference", "reference again"]
    assert found.plan == [] and len(found.rejected) == 2
    assert {one.reason for one in found.rejected} == {"parity could not be checked: too few training steps to compare"}


@pytest.mark.parametrize(("took", "said"), [(15.0, "try --budget 40s"), (38.0, "try --budget 50s")])
def test_no_larger_budget_is_below_what_all_has_taken(took: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after the advice, such as one more pair of a slow plan, may take long."""

    class Late(Proof):
        def run(self) -> None:
            self.found.plan, self.found.baselines = [Choice(Fast(), {})], [2.0, 1.0]
            self.confirm()
            bench.asked[:] = [()] * int(took)

    bench = Scattered([1.9, 1.0, 1.0, 1.9, 0.9], 0.95)
    monkeypatch.setattr("hotlap.measure.search.Proof", Late)
    made = Search(bench, [], 20.0, "", bench._listener)
    found = made.run()
    assert found.cut_short and said in found.caveats[0]


def test_a_script_that_fails_says_so_once() -> None:
    said = no_baseline(Untimed("raised: ValueError: bug", None, "Traceback\nValueError: bug\n"))
    assert said == "the script does not run by itself (raised: ValueError: bug): mend that first"
    assert "(exit: 2; main.py: error: no --lr)" in no_baseline(Untimed("exit: 2", None, "main.py: error: no --lr\n"))


# second looks -----------------------------------------------------------------------------------------------------


class ByChance(Made):
    """The first trials of a plan are off by a factor."""

    def __init__(self, levels: dict[tuple[str, ...], float | str], off: dict[tuple[str, ...], list[float]]) -> None:
        super().__init__(levels)
        self._off = {names: list(factors) for names, factors in off.items()}

    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        timing = super()._measured(plan, label, role)
        assert isinstance(timing, Timed)
        factors = self._off.get(self.asked[-1]) or [1.0]
        return dataclasses.replace(timing, level=factors.pop(0) * timing.level)


NOISY = {(): [1.0, 1.0, 1.1]}  # of the script: what identical processes differ by is known from here


def test_what_bad_luck_left_out_is_looked_at_again_while_the_budget_lasts() -> None:
    levels = {(): 1.0, ("fast",): 0.5, ("other",): 0.8, ("fast", "other"): 0.4}
    for budget, kept in ((200.0, ["fast", "other"]), (13.0, ["fast"])):
        made = search(ByChance(levels, NOISY | {("other",): [1.3]}), Fast(), Other(), budget=budget)
        made.screening.run()
        assert [str(choice) for choice in made.found.plan] == ["fast"]
        settle(made)
        assert [str(choice) for choice in made.found.plan] == kept
        assert made.found.rejected == [] or budget == 13.0


def test_a_member_is_not_dropped_for_one_lucky_trial_without_it() -> None:
    levels = {(): 1.0, ("fast",): 0.5, ("other",): 0.8, ("fast", "other"): 0.4}
    bench = ByChance(levels, NOISY | {("fast",): [0.82]})
    made = search(bench, Fast(), Other(), together=True, budget=200.0)
    made.screening.run()
    settle(made)
    assert [str(choice) for choice in made.found.plan] == ["fast", "other"]
    assert made.found.gains["other"] == pytest.approx(1.25, rel=0.1)


def test_looks_end_where_nothing_is_in_doubt_and_no_plan_is_visited_twice() -> None:
    levels = {(): 1.0, ("fast",): 0.5, ("other",): 1.0, ("fast", "other"): 0.5}
    for off in ({}, {("fast", "other"): [1.0, 0.9, 1.1] * 20, ("fast",): [1.1, 0.9] * 30}):
        bench = ByChance(levels, off)
        made = search(bench, Fast(), Other(), together=True, budget=10_000.0)
        made.screening.run()
        settle(made)
        assert len(bench.asked) < 50


def test_a_faster_enemy_comes_in_the_place_of_a_member() -> None:
    levels = {(): 1.0, ("layout",): 0.5, ("graphs",): 0.3}
    made = search(ByChance(levels, NOISY | {("graphs",): [1.75]}), Layout(), Graphs(), budget=200.0)
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["layout"]
    settle(made)
    assert [str(choice) for choice in made.found.plan] == ["graphs"]
    assert [(one.technique, one.reason) for one in made.found.rejected] == [("layout", "cannot live with graphs")]


class Odd(Made):
    """One of the script's own trials is slow by chance."""

    def __init__(self, slow: int, levels: dict[tuple[str, ...], float | str]) -> None:
        super().__init__(levels)
        self._slow = slow

    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        made = super()._measured(plan, label, role)
        is_odd = len(self.asked) == self._slow and isinstance(made, Timed)
        return dataclasses.replace(made, level=1.65 * made.level) if is_odd else made


@pytest.mark.parametrize("slow", [2, 3])
def test_one_odd_trial_of_the_script_does_not_hide_a_gain(slow: int) -> None:
    """A third one tells which was odd; and a gain of a half is looked at whatever the script's own noise is."""
    bench = Odd(slow, LEVELS)
    made = search(bench, Fast())
    assert bench.asked == [()] * 4 and made.found.level == 1.0
    made.screening.run()
    assert [str(choice) for choice in made.found.plan] == ["fast"]
    assert made.found.smallest_gain > 1.5, "what is claimed is held to the noise there was"


class Scattered(Made):
    """The script takes another time in every trial, and a plan always the same."""

    def __init__(self, script: Sequence[float], plan: float) -> None:
        super().__init__({("fast",): plan})
        self._script = itertools.cycle(script)

    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        self._levels[()] = next(self._script)
        return super()._measured(plan, label, role)


@pytest.mark.parametrize(
    ("plan", "proven", "most"),
    [
        (0.5, True, 30),  # a large gain in every trial: a little more time than was asked for shows it
        (0.75, False, 20),  # some trials tell of one, some do not: the budget is what it is
        (0.95, False, 20),
    ],
)
def test_a_large_gain_is_not_thrown_away_because_the_budget_is_over(plan: float, proven: bool, most: int) -> None:
    bench = Scattered([1.9, 1.0, 1.0, 1.9, 0.9], plan)
    found = Found(plan=[Choice(Fast(), {})], baselines=[2.0, 1.0])
    bench.asked += [()] * 13  # what the search took
    Proof(bench, found, 20.0, 1.0, "").confirm()
    assert found.confirmed is proven
    assert 20 - 2 < bench.spent <= most and (bench.spent > 20) is proven
    assert any("more pairs, until 30 s at most" in line for line in bench._listener.said_so) is proven
