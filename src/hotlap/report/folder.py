"""A report on disk: the data once, and everything that can be made from it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotlap.errors import HotlapError
from hotlap.records import from_json, to_json
from hotlap.report.findings import TuneReport
from hotlap.report.profile_findings import ProfileReport

VERSIONS = {"tune": 1, "profile": 2}
FORMATS = ("html", "md", "tex", "json", "text")
_ENDS = {"text": ".txt"}  # where a file's name ends otherwise than the format is called
FILE = "report.json"
KINDS: dict[str, type[TuneReport] | type[ProfileReport]] = {"tune": TuneReport, "profile": ProfileReport}

AGAIN = {
    "tune": "run `hotlap tune --report DIR SCRIPT` to make one",
    "profile": "run `hotlap profile --json FILE SCRIPT` to make one",
}

AnyReport = TuneReport | ProfileReport


def write(report: AnyReport, folder: str | Path) -> Path:
    """Everything about a report into a folder, made if need be. Data first: it is what cannot be made again."""
    from hotlap.report import charts

    target = Path(folder)
    try:
        (target / "figures").mkdir(parents=True, exist_ok=True)
        for format, name in (("json", FILE), ("html", "report.html"), ("md", "report.md"), ("tex", "report.tex")):
            _replace(target / name, render(report, format).encode())
        drawn = {f"{name}.pdf": content for name, content in charts.pdfs(report).items()}
        drawn |= {f"{name}.svg": text.encode() for name, text in charts.svg_files(report).items()}
        for name, content in drawn.items():
            _replace(target / "figures" / name, content)
        for name in charts.NAMES:  # a chart of an earlier report must not pass for one of this
            for stale in {f"{name}.pdf", f"{name}.svg"} - set(drawn):
                (target / "figures" / stale).unlink(missing_ok=True)
    except OSError as error:
        raise HotlapError(f"cannot write the report to {target}: {_cause(error)}; choose another folder") from error
    return target


def read(folder: str | Path, again: str = AGAIN["tune"]) -> AnyReport:
    """The report saved in a folder; the path of its report.json will do too."""
    path = _data_of(folder)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise HotlapError(f"there is no report at {path}: {again}") from error
    except OSError as error:
        raise HotlapError(f"cannot read {path}: {_cause(error)}; check the path") from error
    except ValueError as error:
        raise HotlapError(f"{path} is damaged: it is not JSON; {again}") from error
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise HotlapError(f"{path} is not a report of hotlap: {again}")
    again = AGAIN[kind]
    if data.get("version") != VERSIONS[kind]:
        found = f"{path} is a {kind} report of version {data.get('version')}"
        raise HotlapError(f"{found}, this hotlap reads version {VERSIONS[kind]}: {again}")
    try:
        return typing.cast(AnyReport, _with_nan(None, from_json(KINDS[kind], data)))
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise HotlapError(f"{path} is damaged: it lacks parts of a {kind} report; {again}") from error


def read_profile(path: str | Path) -> ProfileReport:
    """A saved profile: the file that `hotlap profile --json` wrote, or a folder with a report in it."""
    report = read(path, AGAIN["profile"])
    if isinstance(report, ProfileReport):
        return report
    raise HotlapError(f"{path} is the report of a tuning, not of a profile: {AGAIN['profile']}")


def write_again(folder: str | Path, formats: Sequence[str]) -> list[Path]:
    """A saved report in several formats, as files beside its data, which is left as it is."""
    path, report = _data_of(folder), read(folder)
    texts = {path.with_suffix(_ENDS.get(format, f".{format}")): render(report, format) for format in formats}
    try:
        for place, text in texts.items():
            if place != path:
                _replace(place, text.encode())
    except OSError as error:
        raise HotlapError(f"cannot write beside {path}: {_cause(error)}; render one format at a time") from error
    return list(texts)


def render(report: AnyReport, format: str) -> str:
    """A report in one of `FORMATS`."""
    if format not in FORMATS:
        raise HotlapError(f"there is no format {format!r}: choose among {', '.join(FORMATS)}")
    if format == "json":
        return _json(report)
    if format == "text":
        from hotlap.report import terminal

        return terminal.to_text(terminal.tune(report) if isinstance(report, TuneReport) else terminal.profile(report))
    if format == "html":
        from hotlap.report import html

        return html.tune(report) if isinstance(report, TuneReport) else html.profile(report)
    if format == "md":
        from hotlap.report import markdown

        return markdown.tune(report) if isinstance(report, TuneReport) else markdown.profile(report)
    from hotlap.report import latex

    return latex.tune(report) if isinstance(report, TuneReport) else latex.profile(report)


def write_file(path: str, text: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise HotlapError(f"{path} cannot be written ({error.strerror}): name another place") from None


def check_writable(folder: str, advice: str) -> None:
    """Before minutes are spent on something that could not be written down. Really tried, and nothing stays."""
    place = os.path.abspath(folder)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise HotlapError(f"{folder} cannot be written ({error.strerror}): {advice}") from None


def _data_of(folder: str | Path) -> Path:
    path = Path(folder)
    return path if path.is_file() or path.suffix == ".json" else path / FILE


def _json(report: AnyReport) -> str:
    kind = "tune" if isinstance(report, TuneReport) else "profile"
    data = {"kind": kind, "version": VERSIONS[kind], **_without_nan(to_json(report))}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _without_nan(data: Any) -> Any:
    """JSON has no word for nan and inf: what is not a number is null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _without_nan(value) for key, value in data.items()}
    return [_without_nan(item) for item in data] if isinstance(data, (list, tuple)) else data


def _with_nan(kind: Any, value: Any) -> Any:
    """The way back: null is nan where the field asks for a number, and nothing where it may be missing."""
    if value is None and kind is float:
        return math.nan
    if typing.get_origin(kind) is types.UnionType and value is not None:
        kind = typing.get_args(kind)[0]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds = typing.get_type_hints(type(value))
        names = [field.name for field in dataclasses.fields(value)]
        return dataclasses.replace(value, **{name: _with_nan(kinds[name], getattr(value, name)) for name in names})
    if typing.get_origin(kind) is list:
        return [_with_nan(typing.get_args(kind)[0], item) for item in value]
    if typing.get_origin(kind) is dict:
        return {key: _with_nan(typing.get_args(kind)[1], item) for key, item in value.items()}
    return value


def _replace(path: Path, content: bytes) -> None:
    """Written beside and moved over, so that nobody ever reads half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cause(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
