"""The parity test as it is run: the script as it is, the script again, then whatever is to be held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from hotlap.measure.bench import Bench
from hotlap.measure.order import Role
from hotlap.measure.parity import FORCED, SEED, STEPS, judge, may_be_rounding
from hotlap.measure.trial import Trial
from hotlap.observe.run import Compared
from hotlap.report.findings import ParityCheck
from hotlap.technique import Choice, Parity

_PAST_AN_EPOCH = 4  # steps, so that what happens between two epochs is compared


class Sameness:
    """Two runs of the reference, made once, serve any number of candidates."""

    def __init__(self, bench: Bench, folder: str) -> None:
        self._bench, self._folder = bench, folder
        self._reference: dict[str, Any] = {}
        self._repeat: dict[str, Any] = {}
        self.seconds = 0.0  # that one run takes
        self.losses: list[float] = []  # of the latest plan that was held against the script

    def start(self) -> Trial | None:
        """Run the reference twice, if that was not done. Gives back the run that did not serve, if one did not."""
        if self._reference:
            return None
        steps = self._steps
        trial = self._run([], "reference", "reference")
        if trial.good and trial.run is not None and self._bench.see_past_an_epoch(trial.run) and self._steps > steps:
            trial = self._run([], "reference, through an epoch", "reference")
        if trial.parity is None or not trial.good:
            return trial
        reference, self.seconds = trial.parity, trial.seconds
        trial = self._run([], "reference again", "candidate")
        if trial.parity is None or not trial.good:
            return trial
        self._reference, self._repeat = reference, trial.parity
        return None

    @property
    def _steps(self) -> int:
        """To compare: past the end of an epoch, where that is affordable."""
        return max(STEPS, self._bench.epoch_steps + _PAST_AN_EPOCH)

    def _run(self, plan: Sequence[Choice], label: str, role: Role, seed: int = SEED) -> Trial:
        return self._bench.parity(plan, label, role, self._folder, self._steps, seed)

    @property
    def saw_an_epoch_end(self) -> bool:
        return bool(self._reference["epoch_ends"])

    @property
    def reference_losses(self) -> list[float]:
        losses: list[float] = self._reference["losses"]
        return losses

    def spread(self, seeds: int) -> list[list[float]]:
        """The lowest and highest loss of each step, over the reference and as many runs of it with other seeds."""
        curves = [self.reference_losses]
        for seed in range(SEED + 1, SEED + 1 + seeds):
            trial = self._run([], f"reference, seed {seed}", "other seed", seed)
            if trial.parity is not None and trial.good:
                curves.append(trial.parity["losses"])
        return [[min(losses), max(losses)] for losses in zip(*curves, strict=False)] if len(curves) > 1 else []

    @cached_property
    def _shaken(self) -> dict[str, Any] | None:
        """Made once, and only where somebody needs it: how far rounding may move this training. Whatever the budget: a
        plan would go that has cost all of it."""
        trial = self._run([], "reference, weights shaken", "shaken")
        return trial.parity if trial.good else None

    @property
    def repeats_itself(self) -> bool:
        return not any(figure.get("gradient", 0) for figure in self._repeat["figures"])

    @property
    def forced_steps(self) -> int:
        """How many could be compared between the script and itself."""
        checks = judge(Parity.IDENTICAL, self._reference, self._repeat, self._repeat)
        return int(next(check.figure for check in checks if check.what == FORCED))

    @property
    def too_little(self) -> str:
        """Why nothing can be said of any plan, if so: it would be blamed for what the script does not give."""
        return "too few training steps to compare" if self.forced_steps < 2 else ""

    def checks(self, plan: Sequence[Choice], label: str, parities: Mapping[str, Parity]) -> list[ParityCheck]:
        """Run it with this plan and judge: bit for bit only where every technique in it promises that."""
        trial = self._run(plan, f"parity of {label}", "candidate")
        if trial.parity is None or not trial.good:
            return [ParityCheck(f"ended with {trial.ending}", 1.0, "= 0", False)]
        if trial.run is not None and trial.run.withdrawn:  # the script alone would pass in the plan's name
            return [ParityCheck(f"could not be applied: {trial.run.withdrawn[0]}", 1.0, "= 0", False)]
        self.losses = trial.parity["losses"]
        tolerance = max((choice.technique.batch_tolerance for choice in plan), default=0.0)
        level = level_of(plan, parities)
        checks = judge(level, self._reference, self._repeat, trial.parity, tolerance)
        if level is not Parity.IDENTICAL and not passed(checks) and may_be_rounding(checks):
            checks = judge(level, self._reference, self._repeat, trial.parity, tolerance, self._shaken)
        return checks + [shown(one) for one in (trial.run.compared if trial.run is not None else ())]


def shown(compared: Compared) -> ParityCheck:
    """What a technique showed of itself on the way."""
    what, limit = f"{compared.what}, of {compared.count}", f"<= {compared.limit:g}"
    return ParityCheck(what, compared.difference, limit, compared.difference <= compared.limit)


def level_of(plan: Sequence[Choice], parities: Mapping[str, Parity]) -> Parity:
    levels = {parities[choice.technique.id] for choice in plan}
    return Parity.IDENTICAL if levels == {Parity.IDENTICAL} else Parity.EQUIVALENT


def passed(checks: list[ParityCheck]) -> bool:
    return all(check.passed for check in checks)


def failure(checks: list[ParityCheck]) -> str:
    failed = next(check for check in checks if not check.passed)
    return f"{failed.what} {failed.figure:.3g}, allowed {failed.limit}"
