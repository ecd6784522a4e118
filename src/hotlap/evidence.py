"""hotlap.proof.json: why a plan may be trusted, beside hotlap.toml and as plain as it. Data only, never code.

One entry for each script, written and removed together with its plan; `hotlap verify` holds today against it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from hotlap import plan as plans
from hotlap.errors import HotlapError
from hotlap.plan import Plan
from hotlap.records import from_json, to_json
from hotlap.report.findings import Facts, Interval, Kept, ParityCheck

FILE = "hotlap.proof.json"
VERSION = 1


@dataclass(frozen=True)
class Evidence:
    """What was measured when the plan was kept, and on what."""

    script: str  # the file's name
    fingerprint: str
    arguments: str
    device: str
    facts: Facts  # the date is among them
    plan: list[Kept]  # each technique with its setting and the parity it promised
    speedup: Interval  # confirmed by the pairs below
    script_seconds: list[float]  # a step, pair by pair: the script as it is ...
    plan_seconds: list[float]  # ... and with the plan
    a_against_a: Interval | None
    parity: list[ParityCheck]
    forced_steps: int
    seeds: list[int]

    def proves(self, plan: Plan) -> bool:
        """Whether this is about that very plan: a hotlap.toml may be edited, or come from another tuning."""
        ours = [(kept.technique, kept.setting) for kept in self.plan]
        return ours == [(entry.technique, entry.setting) for entry in plan.entries]

    def changes(self, plan: Plan, script: str, arguments: str, facts: Facts) -> list[str]:
        """What is no longer as it was, each with both values where they are short enough to read."""
        changed = [] if self.proves(plan) else ["the plan (it was edited, or tuned apart from this proof)"]
        changed += [] if plans.fingerprint(script) == self.fingerprint else ["the script"]
        then = {"the arguments": self.arguments, "the machine": self.facts.hardware, "its driver": self.facts.driver}
        now = {"the arguments": arguments, "the machine": facts.hardware, "its driver": facts.driver}
        then |= {"torch": self.facts.torch, "hotlap": self.facts.hotlap}
        now |= {"torch": facts.torch, "hotlap": facts.hotlap}
        return changed + [
            f"{name} ({then[name] or '-'} -> {now[name] or '-'})" for name in now if now[name] != then[name]
        ]


def path_for(script: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(script)), FILE)


def read(script: str) -> Evidence | None:
    """The evidence for this script, if there is some beside it."""
    name = os.path.basename(script)
    return next((one for one in read_file(path_for(script)) if one.script == name), None)


def read_file(path: str) -> list[Evidence]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise HotlapError(f"{path} cannot be read ({error}): delete it and tune again") from None
    if not isinstance(data, dict) or data.get("version") != VERSION:
        raise HotlapError(f"{path} was written by another version of hotlap: delete it and tune again")
    try:
        found = [from_json(Evidence, one) for one in data["proof"]]
        if not all(isinstance(check.figure, (int, float)) for one in found for check in one.parity):
            raise TypeError("a figure that is no number")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HotlapError(f"{path} is not a proof ({error!r}): delete it and tune again") from None
    return found


def write(script: str, evidence: Evidence) -> str:
    """Put it into the file beside the script, in one move; that of other scripts stays."""
    path = path_for(script)
    others = [other for other in read_file(path) if other.script != evidence.script]
    _replace(path, [*others, evidence])
    return path


def remove(script: str) -> None:
    path = path_for(script)
    found = read_file(path)
    others = [one for one in found if one.script != os.path.basename(script)]
    if others:
        _replace(path, others)
    elif found:
        os.unlink(path)


def _replace(path: str, found: list[Evidence]) -> None:
    entries = [to_json(one) for one in sorted(found, key=lambda one: one.script)]
    plans.replace_file(path, json.dumps({"version": VERSION, "proof": entries}, indent=1) + "\n")
