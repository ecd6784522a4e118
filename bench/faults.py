"""Planted faults over many seeds: how often each is rejected, by what, and how often what is right is accepted.

    python bench/faults.py [--seeds 20] [--minutes 30] [--network cnn] [--only LabelSmoothing]

Four small trainings with the techniques of tests/measure/planted.py, seed after seed until the minutes are over.
Correctness only: nothing here is timed. Writes bench/results/faults-MACHINE.json, unless --only asks for a part."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

_TESTS = str(Path(__file__).resolve().parent.parent / "tests" / "measure")
sys.path.insert(0, _TESTS)
os.environ["PYTHONPATH"] = os.pathsep.join([_TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])  # for trials
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")  # some virtual machines announce matrix units they refuse

import planted  # noqa: E402
from exhaustive import RESULTS, machine_name  # noqa: E402
from networks import NETWORKS, UNSTEADY, script  # noqa: E402

from hotlap.catalogue import find  # noqa: E402
from hotlap.measure.order import Order, Role  # noqa: E402
from hotlap.measure.parity import STEPS, judge, may_be_rounding  # noqa: E402
from hotlap.measure.sameness import passed  # noqa: E402
from hotlap.measure.trial import Trials  # noqa: E402
from hotlap.measure.tune import facts  # noqa: E402
from hotlap.observe.launch import Target  # noqa: E402
from hotlap.records import to_json  # noqa: E402
from hotlap.report.findings import ParityCheck  # noqa: E402
from hotlap.technique import Choice, Parity  # noqa: E402


def cases(network: str) -> Iterator[tuple[str, list[Choice], bool]]:
    """What to hold against the script, and whether it is right."""
    for kind in planted.RIGHT:
        yield kind.__name__, [Choice(kind(), {})], True
    yield "loader-workers", [Choice(find("loader-workers"), {"num_workers": 2})], True
    yield "mixed-precision", [Choice(find("mixed-precision"), {"dtype": "bfloat16"})], True
    yield "fused-optimizer", [Choice(find("fused-optimizer"), {})], True
    if network == "cnn":
        yield "channels-last", [Choice(find("channels-last"), {})], True
    for kind in planted.WRONG:
        if network in kind.applies_to or (network == UNSTEADY and "mlp" in kind.applies_to and not _drops(kind)):
            yield kind.__name__, [Choice(kind(), {})], False
    for kind in planted.BESIDE_OTHER_DRAWS if network != UNSTEADY else ():
        yield f"{kind.__name__} + other draws", [Choice(planted.DropoutDrawsOthers(), {}), Choice(kind(), {})], False


def _drops(kind: type) -> bool:
    return "Dropout" in kind.__name__


@dataclass
class Row:
    """What became of one technique on one network."""

    network: str
    technique: str
    is_right: bool
    seeds: int = 0
    rejected: int = 0
    died: Counter[str] = field(default_factory=Counter)  # trials that gave nothing to judge, by their ending
    by: Counter[str] = field(default_factory=Counter)  # the first check that failed

    def take_in(self, reference: Reference, evidence: dict[str, Any] | None, ending: str) -> None:
        self.seeds += 1
        if evidence is None:
            self.died[ending] += 1
            return
        failed = [one for one in reference.judge(evidence) if not one.passed]
        self.rejected += bool(failed)
        self.by.update(re.sub(r" \(.*|, of \d+", "", one.what) for one in failed[:1])

    def __str__(self) -> str:
        why = ", ".join(f"{reason} {times}" for reason, times in (self.by + self.died).most_common(3))
        verdict = "right" if self.is_right else "wrong"
        return f"{self.network:12} {self.technique:38} {verdict:6} {self.rejected:4} of {self.seeds:2}  {why}"


class Reference:
    """The script as it is, and with its weights shaken where that is asked for, as in `measure.sameness`."""

    def __init__(self, trials: Trials, order: dict[str, Any]) -> None:
        self._trials, self._order = trials, order
        self._plain = self._run("reference")

    def _run(self, role: Role) -> dict[str, Any]:
        found = self._trials.run(Order(parity=role, **self._order)).parity
        assert found is not None, role
        return found

    @cached_property
    def _shaken(self) -> dict[str, Any]:
        return self._run("shaken")

    def judge(self, evidence: dict[str, Any]) -> list[ParityCheck]:
        held = Parity.EQUIVALENT, self._plain, self._plain, evidence
        checks = judge(*held)
        is_last = passed(checks) or not may_be_rounding(checks)
        return checks if is_last else judge(*held, shaken=self._shaken)


class Tally(dict[tuple[str, str], Row]):
    def row(self, network: str, technique: str, is_right: bool) -> Row:
        return self.setdefault((network, technique), Row(network, technique, is_right))

    def show(self) -> None:
        print(f"{'network':12} {'technique':38} {'is':6} {'rejected':>10}  by")
        for row in self.values():
            print(row)

    def record(self, words: list[str]) -> None:
        about = facts(Target("bench/faults.py"), sum(row.seeds for row in self.values()))
        about = replace(about, command=shlex.join(["python", "bench/faults.py", *words]))
        path = RESULTS / f"faults-{machine_name()}.json"
        rows = [{**vars(row), "died": dict(row.died), "by": dict(row.by)} for row in self.values()]
        path.write_text(json.dumps({"facts": to_json(about), "rows": rows}, indent=1) + "\n")
        print(f"wrote {os.path.relpath(path)}")


def main() -> None:
    wishes = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wishes.add_argument("--seeds", type=int, default=20)
    wishes.add_argument("--minutes", type=float, default=math.inf)
    wishes.add_argument("--network", choices=(*NETWORKS, UNSTEADY))
    wishes.add_argument("--only", default="")
    wish = wishes.parse_args()
    began, tally = time.monotonic(), Tally()
    with Trials() as trials, tempfile.TemporaryDirectory() as folder:
        for seed in range(wish.seeds):
            if time.monotonic() - began > 60 * wish.minutes:
                break
            for network in [wish.network] if wish.network else (*NETWORKS, UNSTEADY):
                path = Path(folder, f"{network}_{seed}.py")
                path.write_text(script(network, seed))
                order = {"name": str(path), "cwd": folder, "steps": STEPS, "limit_seconds": 120.0}
                order["parity_folder"] = trials.exchange(f"{network}-{seed}")
                reference = Reference(trials, order)
                for name, choices, is_right in cases(network):
                    if wish.only in name:
                        plan = [choice.to_json() for choice in choices]
                        trial = trials.run(Order(parity="candidate", choices=plan, **order))
                        tally.row(network, name, is_right).take_in(reference, trial.parity, trial.ending)
    tally.show()
    if not wish.only and not wish.network:
        tally.record(sys.argv[1:])


if __name__ == "__main__":
    main()
