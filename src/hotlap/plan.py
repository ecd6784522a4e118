"""hotlap.toml: what `tune` kept, beside the script, small and readable. Data only, never code.

One file serves all scripts of a folder: each has its own [[plan]]."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hotlap.errors import HotlapError
from hotlap.technique import Choice, Technique

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "hotlap.toml"
_WORDS = ("script", "fingerprint", "arguments", "date", "hardware", "torch", "device")
_FIGURES = ("ratio", "low", "high")
_HEAD = "# Written by `hotlap tune`, read by `hotlap run`. Data only: edit it, commit it, or delete it.\nversion = 1\n"


@dataclass(frozen=True)
class Entry:
    technique: str
    setting: dict[str, Any]
    ratio: float | None  # screened: what it added when it was taken in; None where it came in with others


@dataclass(frozen=True)
class Plan:
    script: str  # the file's name
    fingerprint: str
    arguments: str
    date: str
    hardware: str
    torch: str
    device: str
    ratio: float
    low: float
    high: float
    entries: list[Entry] = field(default_factory=list)

    def choices(self, find: Callable[[str], Technique]) -> list[Choice]:
        found = [(find(entry.technique), entry.setting) for entry in self.entries]
        for technique, setting in found:
            if why_not := technique.why_not(setting):
                raise HotlapError(
                    f"the plan for {self.script} in {FILE} is not understood ({technique.id}: {why_not}): mend it, or"
                    " delete it and tune again"
                )
        return [Choice(technique, {**technique.default, **setting}) for technique, setting in found]

    def mismatches(self, script: str, arguments: str, hardware: str, torch: str | None) -> list[str]:
        """What is no longer as it was when this was measured."""
        now = {"the script": fingerprint(script), "the arguments": arguments, "the machine": hardware}
        then = {"the script": self.fingerprint, "the arguments": self.arguments, "the machine": self.hardware}
        now["torch"], then["torch"] = torch or "", self.torch
        return [name for name in now if now[name] != then[name]]


def fingerprint(script: str) -> str:
    with open(script, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


def path_for(script: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(script)), FILE)


def read(script: str) -> Plan | None:
    """The plan for this script, if there is one beside it."""
    name = os.path.basename(script)
    return next((plan for plan in read_file(path_for(script)) if plan.script == name), None)


def read_file(path: str) -> list[Plan]:
    try:
        with open(path, "rb") as file:
            data = tomllib.load(file)
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise HotlapError(f"{path} cannot be read ({error}): mend it, or delete it and tune again") from None
    if data.get("version") != 1:
        raise HotlapError(f"{path} was written by another version of hotlap: delete it and tune again")
    try:
        return [_plan(table) for table in data.get("plan", [])]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise HotlapError(f"{path} is not a plan ({error!r}): mend it, or delete it and tune again") from None


def write(script: str, plan: Plan) -> str:
    """Put the plan into the file beside the script, in one move; other scripts' plans stay."""
    path = path_for(script)
    others = [other for other in read_file(path) if other.script != plan.script]
    return _replace(path, sorted([*others, plan], key=lambda one: one.script))


def remove(script: str) -> None:
    """Take this script's plan out: nothing helped, so nothing must be applied."""
    path = path_for(script)
    plans = read_file(path)
    others = [plan for plan in plans if plan.script != os.path.basename(script)]
    if others:
        _replace(path, others)
    elif plans:
        os.unlink(path)


def replace_file(path: str, text: str) -> None:
    """In one move, so that nobody ever reads half of it."""
    handle, new = tempfile.mkstemp(prefix=".hotlap-", dir=os.path.dirname(path))
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(new, 0o644)
    os.replace(new, path)


def _replace(path: str, plans: list[Plan]) -> str:
    replace_file(path, _HEAD + "".join(map(_text, plans)))
    return path


def _plan(table: dict[str, Any]) -> Plan:
    entries = [
        Entry(str(row["id"]), dict(row.get("setting", {})), float(row["ratio"]) if "ratio" in row else None)
        for row in table.get("technique", [])
    ]
    words: dict[str, Any] = {key: str(table[key]) for key in _WORDS}
    figures: dict[str, Any] = {key: float(table["speedup"][key]) for key in _FIGURES}
    return Plan(**words, **figures, entries=entries)


def _text(plan: Plan) -> str:
    lines = ["", "[[plan]]"]
    for key in _WORDS:
        lines.append(f"{key} = {_value(getattr(plan, key))}")
    speed = ", ".join(f"{key} = {getattr(plan, key):.3f}" for key in _FIGURES)
    lines.append(f"speedup = {{ {speed} }}")
    for entry in plan.entries:
        lines += ["", "[[plan.technique]]", f"id = {_value(entry.technique)}"]
        lines += [f"ratio = {entry.ratio:.3f}"] if entry.ratio is not None else []
        if entry.setting:
            inside = ", ".join(f"{key} = {_value(value)}" for key, value in entry.setting.items())
            lines.append(f"setting = {{ {inside} }}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
