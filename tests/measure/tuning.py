"""One tuning of a script that mostly sleeps, in a process of its own: `python tuning.py FOLDER [SCRIPT ARGS]...`, where
the report folder is FOLDER. Prints what a listener hears, and at last the report."""

from __future__ import annotations

import json
import os
import sys

import planted

from hotlap.measure import known
from hotlap.measure.tune import Wishes, tune
from hotlap.observe.launch import Target
from hotlap.report.folder import render


class Spoken:
    def started(self, label: str, role: str) -> None: ...

    def stepped(self, steps: int) -> None: ...

    def ended(self, label: str, role: str, verdict: str) -> None:
        print(f"{role}: {label}: {verdict}", flush=True)

    def said(self, sentence: str) -> None:
        print(sentence, flush=True)

    def stopped(self) -> None: ...


def main() -> None:
    folder, script, *arguments = sys.argv[1:]
    known._DRIFT = float(os.environ.get("DRIFT", "inf"))  # how much this machine drifts is not what is tested
    techniques = [planted.SleepsLess(), planted.SleepsLittleLess(), planted.Breaks()]
    wishes = Wishes(60.0, 0.5, folder=folder, fresh="FRESH" in os.environ, accept_writes=True)
    report, _, _ = tune(Target(script, tuple(arguments)), techniques, [], wishes, Spoken())
    print(json.dumps(json.loads(render(report, "json"))))


if __name__ == "__main__":
    main()
