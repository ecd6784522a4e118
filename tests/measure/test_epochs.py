"""Whole epochs on a made-up bench: who is tried by them, what stays, and what is kept back of the budget for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hotlap.measure.bench import Bench
from hotlap.measure.epochs import Epochs
from hotlap.measure.found import Found
from hotlap.measure.purse import Purse
from hotlap.measure.timed import Timed, Untimed, whole_epoch
from hotlap.observe.run import LoaderFacts, Run
from hotlap.records import to_json
from hotlap.report.findings import EpochTimes
from hotlap.technique import CannotHelp, Choice, Family, Parity, Technique, Try

EPOCH = 10  # steps


class Step(Technique):
    """Makes steps faster, and is in the plan already."""

    family = Family.COMPUTE
    traits = frozenset({"recorded"})

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def apply(self, patch: Any, setting: Any) -> None: ...


class Tests(Step):
    between_steps = True
    traits = frozenset()

    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        return [Try({"of": "tests"}, 0.0)] if run.epoch_seconds else CannotHelp("no whole epoch was seen")


class Starts(Tests):
    def settings(self, run: Run) -> Sequence[Try] | CannotHelp:
        return [Try({}, 0.0)]


class Recorded(Starts):
    comes_with = frozenset({"recorded"})


class Homeless(Starts):
    comes_with = frozenset({"something else"})


class Enemy(Starts):
    excludes = frozenset({"recorded"})


def loader(trains: bool, workers: int = 0) -> LoaderFacts:
    facts = LoaderFacts("Data", 4, workers, 2, False, False, False, False, 40, False, "fork")
    return LoaderFacts(**{**vars(facts), "trains": trains, "draws": 1})


BEFORE = Run(torch="2.13.0", device="cpu", loaders=[loader(trains=True), loader(trains=False)])


class Made(Bench):
    """Seconds an epoch by the techniques in the plan, and a step where that is not 0.05; every trial takes one second
    of the budget, or `costs`."""

    def __init__(
        self,
        epochs: dict[tuple[str, ...], float | str],
        costs: float = 1.0,
        steps: dict[tuple[str, ...], float] | None = None,
    ) -> None:
        class Silent:
            def __getattr__(self, name: str) -> Any:
                return lambda *_: None

        super().__init__(None, None, 1.0, Silent())  # type: ignore[arg-type]
        self._epochs, self._costs, self._steps = epochs, costs, steps or {}
        self.asked: list[tuple[str, ...]] = []

    @property
    def spent(self) -> float:
        return self._costs * len(self.asked)

    def _measured(self, plan: Sequence[Choice], label: str, role: Any) -> Timed | Untimed:
        assert role == "epochs"
        names = tuple(choice.technique.id for choice in plan)
        self.asked.append(names)
        found = self._epochs[names]
        steps = [self._steps.get(names, 0.05)] * (2 * EPOCH)
        run = Run(torch="2.13.0", device="cpu", loaders=BEFORE.loaders, epoch_seconds=[9.0, 1.0], step_seconds=steps)
        return Timed(found, run, "enough", 1.0, True) if isinstance(found, float) else Untimed(found, run, "")


def epochs(bench: Made, *techniques: Technique, before: Run = BEFORE, seconds: float = 100.0) -> Epochs:
    """With `Step` in the plan: 0.05 s a step, so an epoch of nothing but steps takes half a second."""
    purse, found = Purse(bench, seconds), Found(plan=[Choice(Step(), {})], before=before, level=0.05)
    found.baselines = [0.1, 0.1]
    purse.trial_seconds = purse.plan_seconds = 1.0
    return Epochs(bench, purse, found, techniques)


def plan(made: Epochs) -> list[str]:
    return list(map(str, made.found.plan))


def test_what_saves_between_steps_is_tried_on_top_of_the_plan_by_whole_epochs() -> None:
    levels = {("step",): 1.0, ("step", "tests", "starts"): 0.8, ("step", "tests"): 0.8, ("step", "starts"): 1.0}
    made = epochs(Made(levels), Tests(), Starts())
    made.run()
    assert plan(made) == ["step", "tests (of tests)"]
    assert made.found.epoch == EpochTimes(EPOCH, ["tests"], 1.0, 0.8)
    assert made.found.epoch_of(["tests", "step"]) is made.found.epoch and made.found.epoch_of(["step"]) is None
    assert [(one.technique, one.reason) for one in made.found.rejected] == [
        ("starts", "worth nothing in epochs on top of tests (of tests)")
    ]
    assert made.found.parities["tests"] is Parity.IDENTICAL and made.found.gains["tests"] is None


def test_of_several_settings_the_one_that_steps_show_least() -> None:
    class Both(Tests):
        def settings(self, run: Run) -> Sequence[Try]:
            return [Try({"of": "all"}, 0.5), Try({"of": "tests"}, 0.0)]

    made = epochs(Made({("step",): 1.0, ("step", "both"): 0.8}), Both())
    made.found.reject([Choice(Both(), {"of": "all"})], "could not be applied: at random")
    made.run()
    assert plan(made) == ["step", "both (of tests)"]


def test_what_steps_have_rejected_is_not_tried_again() -> None:
    made = epochs(Made({("step",): 1.0}), Starts())
    made.found.reject([Choice(Starts(), {})], "0.50x: slower in a trial")
    made.run()
    assert plan(made) == ["step"] and made.found.not_tried == []


def test_an_epoch_of_nothing_but_steps_is_left_alone() -> None:
    bench = Made({("step",): 0.505})
    made = epochs(bench, Tests())
    made.run()
    assert plan(made) == ["step"] and bench.asked == [("step",)]
    assert [one.reason for one in made.found.not_tried] == ["could save at most 1.0 % of an epoch"]


def test_what_was_said_before_an_epoch_was_seen_no_longer_holds() -> None:
    bench = Made({("step",): 1.0, ("step", "tests"): 0.9})
    made = epochs(bench, Tests())
    made._note(Tests(), "no whole epoch was seen")
    made.run()
    assert plan(made) == ["step", "tests (of tests)"] and made.found.not_tried == []


@pytest.mark.parametrize("ending", ["hang", "could not be applied: tests: no"])
def test_what_breaks_is_rejected_and_the_next_is_tried(ending: str) -> None:
    levels = {("step",): 1.0, ("step", "tests"): ending, ("step", "starts"): 0.9, ("step", "tests", "starts"): ending}
    bench = Made(levels)
    made = epochs(bench, Tests(), Starts())
    made.run()
    assert plan(made) == ["step", "starts"]
    assert [(one.technique, one.reason) for one in made.found.rejected] == [("tests", ending)]


def test_company_and_enemies_are_minded() -> None:
    bench = Made({("step",): 1.0, ("step", "recorded"): 0.9})
    made = epochs(bench, Homeless(), Enemy(), Recorded())
    made.run()
    assert plan(made) == ["step", "recorded"]
    assert {one.technique: one.reason for one in made.found.not_tried} == {
        "homeless": "nothing that it comes with is in the plan",
        "enemy": "cannot live with step",
    }


LONG = Run(torch="2.13.0", device="cpu", loaders=[LoaderFacts(**{**vars(loader(True)), "length": 400_000})])
ALONE = Run(torch="2.13.0", device="cpu", loaders=[loader(trains=True)])


@pytest.mark.parametrize("before", [LONG, ALONE], ids=["a long epoch", "no tests and no workers"])
def test_where_epochs_cannot_tell_companions_come_by_themselves(before: Run) -> None:
    bench = Made({})
    made = epochs(bench, Tests(), Recorded(), before=before)
    assert made.seconds_wanted == 0.0
    made.run()
    assert plan(made) == ["step", "recorded"] and bench.asked == []
    assert made.found.epoch is None


def test_where_the_plan_shows_no_whole_epoch_companions_come_by_themselves() -> None:
    made = epochs(Made({("step",): "it ended before its second epoch did"}), Tests(), Recorded())
    made.run()
    assert plan(made) == ["step", "recorded"]


def test_workers_that_start_are_worth_a_look_too() -> None:
    before = Run(torch="2.13.0", device="cpu", loaders=[loader(trains=True, workers=2)])
    assert epochs(Made({}), Starts(), before=before).seconds_wanted > 0


def test_what_gains_nothing_is_rejected_with_its_figure() -> None:
    made = epochs(Made({("step",): 1.0, ("step", "tests"): 1.0}), Tests())
    made.run()
    assert plan(made) == ["step"] and made.found.epoch is None
    assert [one.reason for one in made.found.rejected] == ["1.00x of a whole epoch in a trial"]


@pytest.mark.parametrize(
    ("epoch", "step", "is_kept"),
    [
        (0.9, 0.06, True),  # steps were slower by chance: what lies between them is not
        (0.9, 0.04, False),  # only the steps were faster
        (1.3, 0.11, False),  # it saves between steps, and makes them far slower
    ],
)
def test_only_what_lies_between_steps_counts(epoch: float, step: float, is_kept: bool) -> None:
    both = ("step", "tests")
    made = epochs(Made({("step",): 1.0, both: epoch}, steps={both: step}), Tests())
    made.run()
    assert plan(made) == (["step", "tests (of tests)"] if is_kept else ["step"])


@pytest.mark.parametrize("costs", [64.0, 32.0, 21.0])
def test_the_budget_ends(costs: float) -> None:
    """After the plan, after all together, or before the last of them was left out: then it stays."""
    both = ("step", "tests", "recorded")
    bench = Made({("step",): 1.0, both: 0.8, ("step", "recorded"): 0.9}, costs)
    made = epochs(bench, Tests(), Recorded())
    made.run()
    assert plan(made) == (["step", "recorded"] if costs == 64.0 else ["step", "tests (of tests)", "recorded"])
    assert len(bench.asked) == 65 // costs
    words = "the budget ended before whole epochs with it: try a larger --budget"
    assert [one.reason for one in made.found.not_tried] == ([words] if costs == 64.0 else [])


def test_room_for_it_is_kept_while_the_plan_is_made() -> None:
    made = epochs(Made({}), Tests())
    purse = made._purse
    left = purse.until_proof
    assert purse.has_room(int(left))
    purse.for_epochs = lambda: made.seconds_wanted
    assert not purse.has_room(int(left))
    assert purse.has_room(int(left - made.seconds_wanted))


def test_a_plan_that_has_been_timed_starts_from_what_it_compiled() -> None:
    """Else no budget that people give would hold whole epochs of a compiled model."""

    class Slow(Step):
        start_up_seconds = 20.0

    made = epochs(Made({("slow",): 1.0}), Tests())
    made.found.plan = [Choice(Slow(), {})]
    assert not made.seconds_wanted
    made._bench.keep("time", made.found.plan, to_json(Timed(0.05, BEFORE, "enough", 1.0, True)))
    assert 0 < made.seconds_wanted < 20.0


def test_what_a_driver_loads_once_is_not_reckoned_for_every_trial() -> None:
    """Else the proof of a plan whose first trial was cold seems to need all that is left of the budget."""
    purse = epochs(Made({}))._purse
    cold = Run(torch="2.13.0", device="cuda", step_seconds=[12.0, 8.05, *[0.05] * 100])
    purse.learn(Timed(0.05, cold, "enough", 28.0, True))
    assert purse.plan_seconds == pytest.approx(28.0 - 0.75 * 19.95)
    assert purse.once_seconds == pytest.approx(0.75 * 19.95)
    slow = Run(torch="2.13.0", device="cuda", step_seconds=[0.05] * 560)
    purse.learn(Timed(0.05, slow, "enough", 29.0, True))
    assert purse.plan_seconds == 29.0 and purse.once_seconds == 0.0


def test_a_plan_that_takes_long_to_begin_has_more_left_for_its_parity_run() -> None:
    purse = epochs(Made({}))._purse
    purse.seconds, purse.plan_seconds = 100.0, 20.0
    before = purse.until_proof
    purse.once_seconds = 12.0
    assert purse.until_proof == pytest.approx(before - 12.0)


def test_the_first_epoch_does_not_count() -> None:
    assert whole_epoch(Run(torch="2.13.0", device="cpu", epoch_seconds=[9.0])) is None
    assert whole_epoch(Run(torch="2.13.0", device="cpu", epoch_seconds=[9.0, 2.0, 4.0])) == (3.0, True)
