"""Which techniques are meant, and at which settings: by the names to take or to leave out, or by a plan."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from importlib.util import find_spec

from hotlap import plan as plans
from hotlap.catalogue import TECHNIQUES, find
from hotlap.errors import HotlapError
from hotlap.observe.launch import Target
from hotlap.observe.machine import Machine
from hotlap.source.fix import reached_from
from hotlap.technique import Choice, Technique


def chosen(only: Sequence[str], skip: Sequence[str]) -> list[Technique]:
    wanted = {find(name).id for name in only} or {one.id for one in TECHNIQUES}
    unwanted = {find(name).id for name in skip}
    return [one for one in TECHNIQUES if one.id in wanted - unwanted]


def writable(only: Sequence[str], skip: Sequence[str]) -> tuple[list[Choice], dict[str, str]]:
    """Those that source can be given, at their defaults; and those left out, with the package that is not installed."""
    writing = [one for one in chosen(only, skip) if "rewrite" in one.verbs]
    needed = {one.id: one.needs.package for one in writing if one.needs.package}
    missing = {name: package for name, package in needed.items() if find_spec(package) is None}
    return [Choice(one, one.default) for one in writing if one.id not in missing], missing


def planned(target: Target) -> tuple[list[Choice], str]:
    """What the plan beside a script keeps, and what is to be said about it."""
    plan = plans.read(target.path)
    if plan is None:
        return [], "no plan for this script: `hotlap tune` writes one if it finds something that helps"
    machine = Machine.read()
    changed = plan.mismatches(target.path, shlex.join(target.arguments), machine.hardware, machine.torch)
    words = f"{' and '.join(changed)} changed since it was tuned: tune again for a new proof" if changed else ""
    return plan.choices(find), words


def without_a_gpu(choices: Sequence[Choice]) -> str:
    """What can do nothing here, said before hours are spent. Nothing is left out: torch may see what we do not."""
    names = [one.technique.id for one in choices if one.device == "cuda"]
    if not names or Machine.read().gpus:
        return ""
    return f"{' and '.join(names)} need{'s' if len(names) == 1 else ''} a GPU, and none is seen here"


def planned_files(plan: str) -> dict[str, list[Choice]]:
    """What a hotlap.toml keeps, for each file its scripts are made of."""
    found: dict[str, list[Choice]] = {}
    kept = plans.read_file(plan)
    if not kept:
        raise HotlapError(f"{plan} holds no plan: run `hotlap tune` first")
    for one in kept:
        script = os.path.join(os.path.dirname(os.path.abspath(plan)), one.script)
        for path in reached_from(script):
            found.setdefault(os.path.realpath(path), one.choices(find))
    return found
