"""The parity test as it is run: the script as it is, the script again, then whatever is to be held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.measure.bench import Bench
from hotlap.measure.parity import FORCED, STEPS, judge
from hotlap.measure.trial import Trial
from hotlap.report.findings import ParityCheck
from hotlap.technique import Choice, Parity


class Sameness:
    """Two runs of the reference, made once, serve any number of candidates."""

    def __init__(self, bench: Bench, folder: str) -> None:
        self._bench, self._folder = bench, folder
        self._reference: dict[str, Any] = {}
        self._repeat: dict[str, Any] = {}

    def start(self) -> Trial | None:
        """Run the reference twice. Gives back the run that did not serve, if one did not."""
        for label, role in (("reference", "reference"), ("reference again", "candidate")):
            trial = self._bench.parity([], label, role, self._folder, STEPS)
            if trial.parity is None or not trial.good:
                return trial
            self._reference, self._repeat = self._repeat, trial.parity
        return None

    @property
    def repeats_itself(self) -> bool:
        return not any(figure.get("gradient", 0) for figure in self._repeat["figures"])

    @property
    def forced_steps(self) -> int:
        """How many could be compared between the script and itself."""
        checks = judge(Parity.IDENTICAL, self._reference, self._repeat, self._repeat)
        return int(next(check.figure for check in checks if check.what == FORCED))

    def checks(self, plan: Sequence[Choice], label: str, parities: Mapping[str, Parity]) -> list[ParityCheck]:
        """Run it with this plan and judge: bit for bit only where every technique in it promises that."""
        trial = self._bench.parity(plan, f"parity of {label}", "candidate", self._folder, STEPS)
        if trial.parity is None or not trial.good:
            return [ParityCheck(f"ended with {trial.ending}", 1.0, "= 0", False)]
        if trial.run is not None and trial.run.withdrawn:  # the script alone would pass in the plan's name
            return [ParityCheck(f"could not be applied: {trial.run.withdrawn[0]}", 1.0, "= 0", False)]
        levels = {parities[choice.technique.id] for choice in plan}
        level = Parity.IDENTICAL if levels == {Parity.IDENTICAL} else Parity.EQUIVALENT
        return judge(level, self._reference, self._repeat, trial.parity)


def passed(checks: list[ParityCheck]) -> bool:
    return all(check.passed for check in checks)


def failure(checks: list[ParityCheck]) -> str:
    failed = next(check for check in checks if not check.passed)
    return f"{failed.what} {failed.figure:.3g}, allowed {failed.limit}"
