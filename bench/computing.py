"""What each computing technique is worth on one course: alone, and left out of everything that gained together.

    python bench/computing.py resnet50 --repeats 2 --seconds 1 --minutes 9

Every technique for computing, updates and waits that says it can help here is asked, not named, and tried with its
first setting, or with the next where that stands aside. What gained, and what that makes worth more, goes together in
the order of gains; then each of these is left out. First every technique has two trials by itself, then all arms have
theirs in turns, in an order drawn anew, with the script as it is before every fourth. A factor is taken against the
script's trials before and after; its interval is over processes. With --minutes no trial outlives the limit, and the
record says what was left out; --resume adds to a record of the same machine. Writes
bench/results/computing/COURSE-MACHINE.json after every trial."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from arms import TOGETHER, Arm, Course, alone_name, listed, record, resumed, table, without_name
from exhaustive import Progress, machine_name
from factors import SCRIPT, gains

from hotlap.catalogue import TECHNIQUES, find
from hotlap.errors import HotlapError
from hotlap.measure.bench import Bench
from hotlap.measure.candidates import Candidate, Skipped, clash, consider, partners
from hotlap.measure.found import KEEP_GAIN
from hotlap.measure.order import Order
from hotlap.measure.sameness import Sameness, failure, passed
from hotlap.measure.timed import Timed
from hotlap.measure.trial import Trial, Trials
from hotlap.measure.tune import facts, order_for
from hotlap.observe.launch import Target
from hotlap.observe.run import Run
from hotlap.records import to_json
from hotlap.source.fix import finds_a_place
from hotlap.technique import Choice, Family, Technique

HERE = Path(__file__).resolve().parent
FAMILIES = (Family.COMPUTE, Family.UPDATE, Family.SYNC)
SCRIPT_EVERY = 4
STOOD_ASIDE = "could not be applied: "
ENDING_SECONDS = 20.0  # kept back: a trial at its limit is ended, and the record written


class OnTime(Trials):
    """Trials that all end before one hour strikes."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until

    @property
    def left_seconds(self) -> float:
        return self.until - ENDING_SECONDS - time.monotonic()

    def run(self, order: Order, on_progress: Callable[[int], None] | None = None) -> Trial:
        limit = max(1.0, min(order.limit_seconds, self.left_seconds))
        return super().run(dataclasses.replace(order, limit_seconds=limit), on_progress)


def candidates(techniques: Sequence[Technique], run: Run, path: str) -> tuple[list[list[Choice]], dict[str, str]]:
    """Whoever can help here, with the settings worth trying, the first one first; and why the others cannot."""
    found, skipped = [], {}
    for technique in techniques:
        verdict = consider(technique, run)
        if isinstance(verdict, Skipped):
            skipped[technique.id] = verdict.reason
        elif "apply" not in technique.verbs and not finds_a_place(technique, path):
            skipped[technique.id] = "finds no place in this script's source"
        else:
            assert isinstance(verdict, Candidate)
            found.append([Choice(technique, one.setting) for one in verdict.tries])
    return found, skipped


def chosen(alone: Sequence[tuple[Choice, float]]) -> list[Choice]:
    """What gained by itself, the largest first, skipping what cannot live with that; then what gained nothing by itself
    but is worth more in that company, such as a layout beside the precision it was made for."""
    ordered = sorted(alone, key=lambda entry: -entry[1])
    plan: list[Choice] = []
    for choice, gain in ordered:
        if gain >= KEEP_GAIN and not clash(choice, plan):
            plan.append(choice)
    for choice, gain in ordered:
        if gain < KEEP_GAIN and partners(choice, plan) and not clash(choice, plan):
            plan.append(choice)
    return plan


class Work:
    """One session of trials, within its time."""

    def __init__(
        self,
        course: Course,
        bench: Bench,
        trials: OnTime,
        progress: Progress,
        dice: random.Random,
        save: Callable[[], None],
    ) -> None:
        self.course, self._bench, self._trials = course, bench, trials
        self._progress, self._dice, self._save = progress, dice, save
        self._since_script = 0
        course.sessions.append([])

    def look(self) -> Run:
        """A first trial, cold, for the record of what the script does; then one that counts."""
        first = self._bench.time([], SCRIPT, "baseline")
        if not isinstance(first, Timed):
            raise HotlapError(f"the script cannot be timed: {first.ending} {first.log.strip()[-300:]}")
        self.time(self.course.arms[SCRIPT])
        return first.run

    def take(self, arms: Sequence[Arm], wanted: int) -> None:
        """Each that has had fewer trials, once, in an order drawn anew."""
        for arm in self._dice.sample(list(arms), len(arms)):
            if arm.trouble or arm.trials >= wanted:
                continue
            if not self._fits(arm):
                self.course.late.append(f"{arm.name}, trial {arm.trials + 1}")
                self._progress.said(f"no time left for {arm.name}")
                continue
            if self._since_script == SCRIPT_EVERY:
                self.time(self.course.arms[SCRIPT])
            self.time(arm)

    def take_others(self, arm: Arm, settings: Sequence[Choice]) -> None:
        """The next settings of what stood aside by itself, until one does not."""
        for choice in settings:
            if not arm.trouble.startswith(STOOD_ASIDE):
                return
            self.course.skipped[str(arm.plan[0])] = arm.trouble
            arm.plan, arm.trouble = (choice,), ""
            self.take([arm], 1)

    def time(self, arm: Arm) -> None:
        timing = self._bench.time(arm.plan, arm.name, "confirm" if arm.plan else "baseline")
        self._since_script = self._since_script + 1 if arm.plan else 0
        if isinstance(timing, Timed):
            arm.trials += 1
            arm.seconds = max(arm.seconds, timing.seconds)
            self.course.sessions[-1].append((arm.name, timing.level))
        elif self._trials.left_seconds <= 1.0:
            self.course.late.append(f"{arm.name}, ended at the limit")
        else:
            arm.trouble = timing.ending
        self._save()

    def close(self) -> None:
        """The last arms need the script after them as well."""
        if self._since_script and self._trials.left_seconds > self.course.arms[SCRIPT].seconds:
            self.time(self.course.arms[SCRIPT])

    def same_training(self, arms: Sequence[Arm], run: Run) -> None:
        same = Sameness(self._bench, self._trials.exchange("parity"))
        for arm in arms:
            if arm.trouble or arm.parity or not arm.trials:
                continue
            needed = same.seconds or 3 * self.course.arms[SCRIPT].seconds
            if self._trials.left_seconds < needed + arm.start_up_seconds:
                self.course.late.append(f"{arm.name}, parity")
                continue
            if (trouble := same.start()) is not None:
                self._progress.said(f"parity cannot be checked: {trouble.ending}")
                return
            parities = {choice.technique.id: choice.technique.parity(run) for choice in arm.plan}
            checks = same.checks(arm.plan, arm.name, parities)
            if self._trials.left_seconds <= 1.0 and not passed(checks):
                self.course.late.append(f"{arm.name}, parity")  # the limit ended it
                continue
            arm.parity = "passed" if passed(checks) else failure(checks)
            self._save()

    def _fits(self, arm: Arm) -> bool:
        """With the script once more after it, and before it where that is due."""
        script = self.course.arms[SCRIPT].seconds
        needed = (arm.seconds or self._expected(arm)) + script * (1 + (self._since_script == SCRIPT_EVERY))
        return self._trials.left_seconds > needed

    def _expected(self, arm: Arm) -> float:
        """Of an arm not tried yet: each of its members takes as much longer than the script as it did by itself, or as
        its technique says."""
        script, longer = self.course.arms[SCRIPT].seconds, 0.0
        for choice in arm.plan:
            alone = self.course.arms.get(alone_name([choice]))
            is_known = alone is not None and alone.seconds > 0
            longer += max(0.0, alone.seconds - script) if is_known else choice.technique.start_up_seconds
        return script + longer


def run_course(work: Work, techniques: Sequence[Technique], path: str, repeats: int, parity: bool) -> None:
    course = work.course
    run = work.look()
    found, course.skipped = candidates(techniques, run, path)
    for first, *_ in found:
        course.arm(alone_name([first]), [first])
    work.take(course.alone, 1)
    for first, *others in found:
        arm = course.arms[alone_name([first])]
        work.take_others(arm, [one for one in others if str(one) not in (str(arm.plan[0]), *course.skipped)])
    work.take(course.alone, min(repeats, 2))  # what goes together is not chosen by one trial of each
    if not course.combined:
        by_arm = gains(course.sessions)
        single = [(arm.plan[0], math.exp(by_arm[arm.name][0])) for arm in course.alone if arm.name in by_arm]
        plan = chosen(single)
        if len(plan) > 1:
            course.arm(TOGETHER, plan)
            for choice in plan:
                course.arm(without_name(choice), [other for other in plan if other is not choice])
    work.take(course.combined, 1)
    for number in range(2, repeats + 1):
        work.take([arm for arm in course.arms.values() if arm.plan], number)
    work.close()
    if parity:
        work.same_training([*course.alone, *(arm for arm in course.combined if arm.name == TOGETHER)], run)


def options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(path.stem for path in (HERE / "courses").glob("*.py"))
    parser.add_argument("course", help=f"{', '.join(known)}; or the path of a script")
    parser.add_argument("--techniques", help="comma-separated; else all that say they can help")
    parser.add_argument("--repeats", type=int, default=3, help="trials of each arm")
    parser.add_argument("--seconds", type=float, default=1.5, help="of training, for each trial, and at least 24 steps")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for everything")
    parser.add_argument("--parity", action="store_true", help="also whether each alone is the same training")
    parser.add_argument("--small", action="store_true", help="the course in its small form, to try things out")
    parser.add_argument("--resume", action="store_true", help="add to the record that is there")
    parser.add_argument("--seed", type=int, help="of the order")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "computing", help="folder for the record")
    parser.add_argument("arguments", nargs="*", help="the script's own, after --")
    given = parser.parse_args(arguments)
    given.words = list(arguments)
    return given


def main(arguments: Sequence[str] | None = None) -> None:
    given, progress = options(sys.argv[1:] if arguments is None else arguments), Progress()
    until = time.monotonic() + 60 * given.minutes
    script = Path(given.course) if given.course.endswith(".py") else HERE / "courses" / f"{given.course}.py"
    target = Target(os.path.relpath(script), (*(["--small"] if given.small else []), *given.arguments))
    name = script.stem + ("-small" if given.small else "")
    path = given.results / f"{name}-{machine_name()}.json"
    techniques = [one for one in TECHNIQUES if one.family in FAMILIES]
    if given.techniques:
        techniques = [find(one) for one in given.techniques.split(",")]
    order = order_for(target, False, False, 180.0)
    words = [os.path.basename(word) if os.path.isabs(word) else word for word in given.words]
    about = to_json(facts(target, 0)) | {"command": shlex.join(["python", "bench/computing.py", *words])}
    course, older = resumed(path, about) if given.resume and path.exists() else (Course(), [])
    with OnTime(until) as trials:
        order = dataclasses.replace(order, kept_folder=trials.exchange("compiled"))
        bench = Bench(trials, order, given.seconds, progress)

        def save() -> None:
            record(path, name, about | {"trials": len(older) + len(bench.times)}, course, bench.times, older)

        work = Work(course, bench, trials, progress, random.Random(given.seed), save)
        try:
            run_course(work, techniques, target.path, given.repeats, given.parity)
        except KeyboardInterrupt:
            course.late.append("everything after a Ctrl-C")
        save()
    print(f"\n{name}, {about['hardware']}\n{table(listed(course))}")
    for what in dict.fromkeys(course.late):
        print(f"left out for time: {what}")
    print(f"wrote {os.path.relpath(path)}")


if __name__ == "__main__":
    try:
        main()
    except HotlapError as error:
        sys.exit(f"computing: {error}")
