"""What earlier trials found out and may still be believed: one line each, in a file beside the report.

A line is believed while all that it rests on is as it was: script, arguments, machine, versions, the technique's own
source, the user's modules. Machines drift from day to day, so a level is kept with the baselines of its own tuning and
used only as a ratio to them; where today's baselines are too far from those, it is not used at all."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import inspect
import json
import math
import os
import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hotlap
from hotlap.measure.stats import calibration_sd
from hotlap.observe.run import Run
from hotlap.plan import fingerprint, replace_file
from hotlap.records import from_json, to_json
from hotlap.technique import Choice

FILE = "trials.jsonl"
_DAYS = 30  # older lines are neither believed nor kept
_DRIFT = 2.0  # times the spread of identical processes: baselines further apart are of another machine state


@dataclass(frozen=True)
class Line:
    key: str  # what was asked, and under which conditions
    scope: str  # the conditions alone: lines that share them are the cost of one plan
    session: str
    date: str
    spent: float  # seconds, by its session until then
    trials: int  # processes it took
    length: list[float]  # of each, as it was asked for
    baselines: list[float]  # levels of the script as it is, in its session
    sources: dict[str, str]  # the user's modules that were imported, each with its content
    found: Any


@dataclass(frozen=True)
class Recalled:
    found: Any
    scale: float | None  # from its levels to today's; None: the machine has drifted too far
    line: Line


class Known:
    """Without a path it remembers for as long as it lives. `fresh` believes nothing that is older than this session."""

    def __init__(self, path: str = "", conditions: Any = None, fresh: bool = False) -> None:
        self._path, self._scope, self._fresh = path, _digest(conditions), fresh
        self._session, self._shape, self._baselines = uuid.uuid4().hex[:12], "", [1.0]
        self._lines = _read(path) if path else []
        self._used: dict[str, Line] = {}
        self.trouble = ""  # why nothing more could be written

    def begin(self, run: Run, baselines: Sequence[float]) -> None:
        """The script as it is has been measured: from here on there is something to hold lines against."""
        self._shape, self._baselines = _shape(run), list(baselines)

    def recall(self, kind: str, plan: Sequence[Choice], length: Sequence[float] = ()) -> Recalled | None:
        """The newest line that answers this and still holds."""
        key = self._key(kind, plan)
        for line in reversed(self._lines):
            is_ours = line.session == self._session
            if line.key != key or (self._fresh and not is_ours):
                continue
            is_long = all(there >= wanted for there, wanted in zip(line.length, length, strict=False))
            if is_ours or (is_long and all(_content(path) == then for path, then in line.sources.items())):
                return Recalled(line.found, 1.0 if is_ours else self._scale(line.baselines), line)
        return None

    def use(self, recalled: Recalled) -> str:
        """Take down that a line was believed; the day it is from, empty where that is this very session."""
        line = recalled.line
        if line.session == self._session:
            return ""
        self._used[line.key] = line
        return line.date[:10]

    def keep(
        self, kind: str, plan: Sequence[Choice], found: Any, spent: float, trials: int,
        length: Sequence[float] = (), sources: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        now = _now().isoformat(timespec="seconds")
        about = (self._key(kind, plan), self._scope, self._session, now, spent, trials)
        self._lines.append(Line(*about, list(length), self._baselines, sources or {}, found))
        if self._path and not self.trouble:
            try:
                _append(self._path, json.dumps(to_json(self._lines[-1])))
            except OSError as error:
                self.trouble = error.strerror or str(error)

    @property
    def reused(self) -> int:
        """Trials that did not have to be run."""
        return sum(line.trials for line in self._used.values())

    @property
    def days(self) -> str:
        """When what was reused was measured."""
        days = sorted({line.date[:10] for line in self._used.values()})
        return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""

    @property
    def earlier_seconds(self) -> float:
        """What sessions under the same conditions spent before this one."""
        spent: dict[str, float] = {}
        for line in self._lines:
            if line.scope == self._scope and line.session != self._session:
                spent[line.session] = max(line.spent, spent.get(line.session, 0.0))
        return sum(spent.values())

    def _scale(self, then: list[float]) -> float | None:
        now = self._baselines
        moved = statistics.fmean(map(math.log, now)) - statistics.fmean(map(math.log, then))
        return None if abs(moved) > _DRIFT * max(calibration_sd(now), calibration_sd(then)) else math.exp(moved)

    def _key(self, kind: str, plan: Sequence[Choice]) -> str:
        return _digest([kind, self._scope, self._shape, [[one.to_json(), _source(one)] for one in plan]])


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:24]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def _shape(run: Run) -> str:
    """What the script built. Settings may come from files and variables nobody told us of: they mostly show here."""
    loaders = [[one.dataset, one.length, one.batch_size, one.num_workers] for one in run.loaders if one.trains]
    roots = [[one.kind, one.elements, one.layers, one.autocast, one.compiled] for one in run.roots]
    optimizers = [[one.kind, one.elements, one.dtypes] for one in run.optimizers]
    parts = {json.dumps(part, sort_keys=True) for part in (*loaders, *roots, *optimizers)}
    return _digest([sorted(parts), run.device, run.cores, run.threads])


def _source(choice: Choice) -> str:
    """The technique's own file, and every part it could install."""
    parts = os.path.join(os.path.dirname(hotlap.__file__), "parts")
    names = sorted(name for name in os.listdir(parts) if name.endswith(".py"))
    own = inspect.getsourcefile(type(choice.technique)) or ""
    return _digest([_content(path) for path in (own, *(os.path.join(parts, name) for name in names))])


def _content(path: str) -> str:
    try:
        found = os.stat(path)
        return _content_of(path, found.st_mtime_ns, found.st_size, found.st_ino)
    except OSError:
        return ""


@functools.cache
def _content_of(path: str, *_: int) -> str:
    return fingerprint(path)


def _read(path: str) -> list[Line]:
    """Every whole line that is young enough; the others are taken out of the file. What a kill tore is no line."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            texts = file.read().splitlines()
    except OSError:
        return []
    oldest = (_now() - datetime.timedelta(days=_DAYS)).isoformat(timespec="seconds")
    lines = []
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            line = from_json(Line, json.loads(text))
            if line.date >= oldest:
                lines.append(line)
    if len(lines) < len(texts):
        with contextlib.suppress(OSError):
            replace_file(path, "".join(json.dumps(to_json(line)) + "\n" for line in lines))
    return lines


def _append(path: str, text: str) -> None:
    """On disk before the next trial begins."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
