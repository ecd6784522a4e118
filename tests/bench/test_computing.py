"""bench/computing.py: who is asked, what goes together, how factors are made of processes, and that it ends in time."""

from __future__ import annotations

import json
import math
import random
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import arms
import computing
from arms import Course
from factors import factor, gains

from hotlap.errors import HotlapError
from hotlap.measure.order import Order
from hotlap.measure.timed import Timed, Untimed
from hotlap.measure.trial import Trials
from hotlap.technique import CannotHelp, Choice, Family, Parity, Technique, Try


class Sharp(Technique):
    family = Family.COMPUTE
    traits = frozenset({"low precision"})

    def parity(self, run):
        return Parity.EQUIVALENT

    def settings(self, run):
        return [Try({"kind": "first"}, 0.5), Try({"kind": "second"}, 0.5)]

    def apply(self, patch, setting): ...


class Turned(Sharp):
    traits = frozenset({"image layout"})
    helps_with = frozenset({"low precision"})


class Slow(Sharp):
    traits = frozenset({"compiled"})
    excludes = frozenset({"image layout"})
    start_up_seconds = 40.0


class Absent(Sharp):
    def settings(self, run):
        return CannotHelp("not here")


class Tiny(Sharp):
    def settings(self, run):
        return [Try({}, 0.001)]


class Written(Sharp):
    """In source only."""

    apply = Technique.apply

    def rewrite(self, site, setting):
        return ()


RUN = SimpleNamespace(device="cpu", torch="2.13")


def choice(kind: type[Technique]) -> Choice:
    return Choice(kind(), {})


def test_techniques_are_asked_and_have_their_first_setting_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    asked = [Sharp(), Absent(), Tiny(), Written()]
    found, skipped = computing.candidates(asked, RUN, str(tmp_path / "train.py"))
    assert [(one.technique.id, one.setting) for (one, *_) in found] == [("sharp", {"kind": "first"})]
    assert skipped["absent"] == "not here" and "at most 0.1 %" in skipped["tiny"]
    assert skipped["written"] == "finds no place in this script's source"


def test_together_goes_what_gained_then_its_company() -> None:
    sharp, turned, slow = choice(Sharp), choice(Turned), choice(Slow)
    assert computing.chosen([(sharp, 1.3), (turned, 1.5)]) == [turned, sharp]
    assert computing.chosen([(sharp, 1.3), (turned, 0.9)]) == [sharp, turned]  # worth more beside the other
    assert computing.chosen([(sharp, 1.0), (turned, 1.01)]) == []  # in no company at all
    assert computing.chosen([(slow, 1.4), (turned, 1.5)]) == [turned]  # they clash: the larger stays
    assert computing.chosen([(slow, 1.4), (sharp, 1.3), (turned, 0.9)]) == [slow, sharp]


def test_a_trial_is_held_against_the_script_beside_it() -> None:
    """A machine that becomes twice as slow changes no factor."""
    session = [("script", 4.0), ("alone a", 2.0), ("script", 4.0), ("script", 8.0), ("alone a", 4.0), ("script", 8.0)]
    assert [math.exp(one) for one in gains([session])["alone a"]] == pytest.approx([2.0, 2.0])
    drifting = [("script", 1.0), ("alone a", 1.0), ("script", 4.0)]
    assert math.exp(gains([drifting])["alone a"][0]) == pytest.approx(2.0)
    other_day = [("script", 40.0), ("alone a", 20.0)]
    assert [math.exp(one) for one in gains([session, other_day])["alone a"]] == pytest.approx([2.0] * 3)
    assert gains([[("alone a", 1.0)]]) == {}


def test_the_interval_is_over_processes() -> None:
    calm, restless = [[1.0, 1.001, 0.999, 1.0]], [[1.0, 1.3, 0.8, 1.1]]
    two = [math.log(2.0)] * 2
    narrow, wide = factor(two, [], calm), factor(two, [], restless)
    assert narrow.ratio == wide.ratio == pytest.approx(2.0)
    assert wide.low < 1.7 < 1.9 < narrow.low and narrow.high < 2.1
    single = factor(two[:1], [], restless)
    assert single.low < wide.low
    scattered = factor([math.log(1.0), math.log(4.0)], [], calm)
    assert scattered.ratio == pytest.approx(2.0) and scattered.low < narrow.low
    worth = factor([math.log(3.0)], [math.log(2.0)], calm)
    assert worth.ratio == pytest.approx(1.5)
    unknown = factor(two[:1], [], [[1.0]])
    assert unknown.low == 0.0 and math.isinf(unknown.high)


@dataclass
class Clock:
    """Trials that take no time but the clock's."""

    now: float = 0.0
    until: float = math.inf

    @property
    def left_seconds(self) -> float:
        return self.until - self.now


@dataclass
class FakeBench:
    clock: Clock
    levels: dict[str, float]
    trial_seconds: float = 10.0
    longer: dict[str, float] = field(default_factory=dict)  # than anyone could expect
    aside: tuple[str, ...] = ()  # kinds that are withdrawn
    ran: list[str] = field(default_factory=list)
    times: list = field(default_factory=list)

    def time(self, plan, label, role):
        wanted = self.trial_seconds + sum(one.technique.start_up_seconds for one in plan) + self.longer.get(label, 0.0)
        self.ran.append(label)
        taken = min(wanted, self.clock.left_seconds)
        self.clock.now += taken
        if taken < wanted:
            return Untimed("hang: no end within its limit", None, "")
        if self.levels[label] == 0:
            return Untimed("raised: ValueError", None, "")
        if plan and plan[0].setting.get("kind") in self.aside:
            return Untimed("could not be applied: not like this", None, "")
        return Timed(self.levels[label], RUN, "enough", taken, True)


LEVELS = {"script": 8.0, "alone sharp": 4.0, "alone turned": 8.2, "alone slow": 0.0}
LEVELS |= {"together": 2.0, "without sharp": 8.0, "without turned": 4.0}


def worked(
    until: float = math.inf, repeats: int = 2, course: Course | None = None, asked=(Sharp, Turned, Slow), **more
):
    clock = Clock(until=until)
    bench = FakeBench(clock, LEVELS, **more)
    progress = SimpleNamespace(said=lambda sentence: None)
    work = computing.Work(course or Course(), bench, clock, progress, random.Random(0), lambda: None)
    computing.run_course(work, [kind() for kind in asked], "train.py", repeats, parity=False)
    return work.course, bench, clock


def test_each_arm_has_its_trials_with_the_script_in_between() -> None:
    course, bench, _ = worked(repeats=3)
    done = [arm for arm, _ in course.sessions[0]]
    assert all(done.count(name) == 3 for name in LEVELS if name not in ("script", "alone slow"))
    assert bench.ran.count("alone slow") == 1 and course.arms["alone slow"].trouble == "raised: ValueError"
    places = [place for place, name in enumerate(bench.ran) if name == "script"]
    assert places[0] == 0 and places[-1] == len(bench.ran) - 1
    assert max(b - a for a, b in pairwise(places)) <= computing.SCRIPT_EVERY + 1
    first = [name for name, _ in course.sessions[0] if name != "script"]
    assert all(set(pair) == {"alone sharp", "alone turned"} for pair in (first[:2], first[2:4]))
    assert first[4] in ("together", "without sharp", "without turned")
    assert first[5:10] != first[10:]  # an order drawn anew
    rows = {row["name"]: row for row in arms.listed(course)}
    assert rows["alone sharp"]["factor"]["ratio"] == pytest.approx(2.0)
    assert rows["together"]["factor"]["ratio"] == pytest.approx(4.0)
    assert rows["without sharp"]["worth"]["ratio"] == pytest.approx(4.0)
    assert rows["without turned"]["worth"]["ratio"] == pytest.approx(2.0)
    assert "factor" not in rows["alone slow"] and not course.late
    shown = arms.table(arms.listed(course))
    assert "sharp                    2.0x" in shown and "raised: ValueError" in shown


@pytest.mark.parametrize("until", range(25, 200, 15))
def test_it_ends_in_time_and_says_what_was_left_out(until: int) -> None:
    course, bench, clock = worked(until=until)
    assert clock.now <= until
    assert course.late and all(not arm.trouble for arm in course.arms.values() if arm.name != "alone slow")
    assert bench.ran.count("script") >= 2 and bench.ran[-1] == "script"


def test_a_slow_starter_that_does_not_fit_lets_others_by() -> None:
    course, bench, _ = worked(until=65)
    assert "alone slow" not in bench.ran and "alone slow, trial 1" in course.late
    assert {"alone sharp", "alone turned"} <= set(bench.ran)


def test_one_that_the_limit_ended_has_not_failed() -> None:
    course, _, clock = worked(until=130, asked=[Sharp, Turned], longer={"together": 1000.0})
    assert clock.now == 130 and course.arms["together"].trouble == ""
    assert course.late[0] == "together, ended at the limit"


def test_trials_are_cut_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr(Trials, "run", lambda self, order, on_progress=None: given.append(order.limit_seconds))
    with computing.OnTime(time.monotonic() + computing.ENDING_SECONDS + 30) as trials:
        trials.run(Order("train.py", limit_seconds=180.0))
        trials.run(Order("train.py", limit_seconds=5.0))
        trials.until = time.monotonic()
        trials.run(Order("train.py", limit_seconds=180.0))
    assert 20 < given[0] <= 30 and given[1:] == [5.0, 1.0]


def test_a_record_can_be_added_to(tmp_path: Path) -> None:
    course, _, _ = worked(repeats=1)
    about = {"hardware": "a machine", "torch": "2.13", "trials": 9, "date": "2026-11-15 12:00 UTC"}
    path = tmp_path / "resnet50-machine.json"
    arms.record(path, "resnet50", about, course, [], [{"label": "script"}])
    assert json.loads(path.read_text())["course"] == "resnet50" and not list(tmp_path.glob("*.part"))
    again, trials = arms.resumed(path, about)
    assert trials == [{"label": "script"}] and again.earlier == [about]
    for name, arm in course.arms.items():
        assert again.arms[name].trials == arm.trials and list(map(str, again.arms[name].plan)) == list(
            map(str, arm.plan)
        )
    more, bench, _ = worked(repeats=2, course=again)
    assert len(more.sessions) == 2 and all(
        more.arms[name].trials == 2 for name in LEVELS if name not in ("script", "alone slow")
    )
    assert "alone slow" not in bench.ran  # it failed before
    with pytest.raises(HotlapError, match="another torch"):
        arms.resumed(path, {**about, "torch": "2.14"})


@pytest.mark.parametrize(("aside", "last"), [((), "first"), (("first",), "second"), (("first", "second"), "second")])
def test_what_stands_aside_by_itself_is_tried_with_its_next_setting(aside: tuple[str, ...], last: str) -> None:
    course, bench, _ = worked(repeats=2, asked=[Sharp], aside=aside)
    arm = course.arms["alone sharp"]
    assert arm.plan[0].setting == {"kind": last} and bool(arm.trouble) is (last in aside)
    assert bench.ran.count("alone sharp") == (3 if aside == ("first",) else 2)
    assert list(course.skipped) == (["sharp (kind first)"] if aside else [])


def test_one_that_gained_alone_has_no_company() -> None:
    course, _, _ = worked(repeats=1, asked=[Sharp])
    assert list(course.arms) == ["script", "alone sharp"]


@pytest.mark.alone
def test_a_script_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(64, 64)\noptimizer = torch.optim.Adam(model.parameters())\n"
        "while True:\n    optimizer.zero_grad()\n    model(torch.randn(8, 64)).square().mean().backward()\n"
        "    optimizer.step()\n"
    )
    given = [str(script), "--techniques", "fused-optimizer", "--repeats", "1", "--seconds", "0.1", "--minutes", "10"]
    computing.main([*given, "--parity", "--results", str(tmp_path / "results")])
    (path,) = (tmp_path / "results").glob("train-*.json")
    found = json.loads(path.read_text())
    assert [row["name"] for row in found["arms"]] == ["script", "alone fused-optimizer"]
    assert found["arms"][1]["trials"] == 1 and found["arms"][1]["parity"] == "passed"
    assert [arm for arm, _ in found["sessions"][0]] == ["script", "alone fused-optimizer", "script"]
    assert found["facts"]["trials"] == len(found["trials"]) >= 4 and found["trials"][0]["step_seconds"]
    assert str(tmp_path) not in json.dumps({**found, "trials": []})
    assert "fused-optimizer" in capsys.readouterr().out


def test_what_is_combined_is_expected_to_take_what_its_members_took() -> None:
    course, bench, clock = Course(), FakeBench(Clock(), LEVELS), Clock()
    work = computing.Work(course, bench, clock, SimpleNamespace(said=print), random.Random(0), lambda: None)
    slow, sharp = (Choice(kind(), {}) for kind in (Slow, Sharp))
    course.arms["script"].seconds = 10.0
    both = course.arm(computing.TOGETHER, [slow, sharp])
    said = slow.technique.start_up_seconds + sharp.technique.start_up_seconds
    assert said > 0 and work._expected(both) == 10.0 + said
    course.arm(computing.alone_name([slow]), [slow]).seconds = 12.0
    course.arm(computing.alone_name([sharp]), [sharp]).seconds = 9.0
    assert work._expected(both) == 12.0
