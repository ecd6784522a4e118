"""The arms of one course, what their trials came to, and the record that is kept of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from factors import SCRIPT, factor, gains, script_levels

from hotlap.errors import HotlapError
from hotlap.records import to_json
from hotlap.report import figures
from hotlap.report.findings import Interval, TrialTimes
from hotlap.technique import Choice

TOGETHER = "together"


@dataclass
class Arm:
    """One plan, and how its trials went; their levels are in the session."""

    name: str
    plan: tuple[Choice, ...]
    parity: str = ""  # "passed", or what did not
    trouble: str = ""
    trials: int = 0
    seconds: float = 0.0  # of its longest trial

    @property
    def start_up_seconds(self) -> float:
        return sum(choice.technique.start_up_seconds for choice in self.plan)


@dataclass
class Course:
    """All that is known of one course; what the record holds."""

    arms: dict[str, Arm] = field(default_factory=lambda: {SCRIPT: Arm(SCRIPT, ())})
    skipped: dict[str, str] = field(default_factory=dict)
    sessions: list[list[tuple[str, float]]] = field(default_factory=list)
    earlier: list[dict[str, Any]] = field(default_factory=list)  # facts of the sessions before this one
    late: list[str] = field(default_factory=list)  # what the time was too short for, in this session

    def arm(self, name: str, plan: Sequence[Choice]) -> Arm:
        return self.arms.setdefault(name, Arm(name, tuple(plan)))

    @property
    def alone(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.name == alone_name(arm.plan)]

    @property
    def combined(self) -> list[Arm]:
        return [arm for arm in self.arms.values() if arm.plan and arm not in self.alone]


def alone_name(plan: Sequence[Choice]) -> str:
    return f"alone {plan[0].technique.id}" if len(plan) == 1 else ""


def without_name(choice: Choice) -> str:
    return f"without {choice.technique.id}"


def listed(course: Course) -> list[dict[str, Any]]:
    """Every arm with its factor: against the script; of one left out, what its absence costs."""
    by_arm, scripts = gains(course.sessions), script_levels(course.sessions)
    rows = []
    for arm in course.arms.values():
        logs, whole = by_arm.get(arm.name, []), by_arm.get(TOGETHER, [])
        made: dict[str, Interval] = {}
        if logs:
            made["factor"] = factor(logs, [], scripts)
        if logs and whole and arm.name.startswith("without "):
            made["worth"] = factor(whole, logs, scripts)
        shown = {name: _bounded(interval) for name, interval in made.items()}
        plan = [{"id": choice.technique.id, **choice.to_json()} for choice in arm.plan]
        rows.append({**{k: v for k, v in vars(arm).items() if k != "plan"}, "plan": plan, **shown})
    return rows


def _bounded(interval: Interval) -> dict[str, float | None]:
    known = math.isfinite(interval.high)
    return {"ratio": interval.ratio, "low": interval.low if known else None, "high": interval.high if known else None}


def table(rows: Sequence[dict[str, Any]]) -> str:
    named = {row["name"]: row for row in rows}
    lines = [f"{'':<24} {'alone':<22} left out"]
    for row in rows:
        if row["name"].startswith("alone "):
            technique = row["plan"][0]["id"]
            out = named.get(f"without {technique}")
            lines.append(f"{technique:<24} {_said(row, 'factor'):<22} {_said(out, 'worth') if out else '-'}".rstrip())
    if TOGETHER in named:
        lines.append(f"{'together':<24} {_said(named[TOGETHER], 'factor')}")
    return "\n".join(lines)


def _said(row: dict[str, Any], what: str) -> str:
    if what not in row:
        return row["trouble"] or "no time"
    one = row[what]
    if one["low"] is None:
        return figures.ratio(one["ratio"])
    return f"{figures.ratio(one['ratio'])} ({figures.bounds(Interval(**one), ' to ')})"


def record(
    path: Path, name: str, about: dict[str, Any], course: Course, times: Sequence[TrialTimes], older: list[Any]
) -> None:
    raw = [{**to_json(one), "step_seconds": [float(f"{s:.5g}") for s in one.step_seconds]} for one in times]
    data = {
        "kind": "computing",
        "course": name,
        "facts": about,
        "arms": listed(course),
        "skipped": course.skipped,
        "late": course.late,
        "sessions": course.sessions,
        "earlier": course.earlier,
        "trials": [*older, *raw],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(part, path)


def resumed(path: Path, about: dict[str, Any]) -> tuple[Course, list[Any]]:
    """What a record of the same machine and torch holds, to be added to."""
    data = json.loads(path.read_text())
    for fact in ("hardware", "torch"):
        if data["facts"][fact] != about[fact]:
            raise HotlapError(f"{path.name} was measured with another {fact}: leave out --resume, or move it away")
    course = Course(skipped=data["skipped"], sessions=data["sessions"], earlier=[*data["earlier"], data["facts"]])
    for row in data["arms"]:
        arm = course.arm(row["name"], [Choice.from_json(one) for one in row["plan"]])
        arm.parity, arm.trouble, arm.trials, arm.seconds = (row[k] for k in ("parity", "trouble", "trials", "seconds"))
    return course, data["trials"]
