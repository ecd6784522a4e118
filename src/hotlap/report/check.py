"""What was found in source: as text for people, as JSON for tools, as SARIF and annotations for code hosts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hotlap.errors import HotlapError
from hotlap.report import figures
from hotlap.report.findings import Finding

FORMATS = ("text", "json", "sarif", "github")
MARKS = {"safe": " [*]", "unsafe": " [!]", None: ""}


def render(
    findings: Sequence[Finding],
    format: str = "text",
    rules: Iterable[tuple[str, str]] = (),
    root: Path | None = None,
    version: str = "",
) -> str:
    """The findings in one of `FORMATS`. `rules` are (technique, summary); SARIF paths are relative to `root`."""
    if format == "text":
        return _text(findings)
    if format == "json":
        return json.dumps([_plain(finding) for finding in findings], indent=2, ensure_ascii=False) + "\n"
    if format == "sarif":
        return json.dumps(_sarif(findings, list(rules), root or Path.cwd(), version), indent=2) + "\n"
    if format == "github":
        return "".join(_annotation(finding, root or Path.cwd()) for finding in findings)
    raise HotlapError(f"there is no format {format!r}: choose one of {', '.join(FORMATS)}")


def _plain(finding: Finding) -> dict[str, Any]:
    plain = {
        "technique": finding.technique,
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "message": finding.message,
        "fix": finding.fix,
    }
    return plain if finding.cell is None else {**plain, "cell": finding.cell}


def _text(findings: Sequence[Finding]) -> str:
    return "".join([*map(_paragraph, findings), _summary(findings)])


def _paragraph(finding: Finding) -> str:
    likely = "likely: " if finding.doubtful else ""
    said = f"{finding.place}: {finding.technique}: {likely}{figures.line(finding.message)}{MARKS[finding.fix]}\n"
    if not finding.excerpt.strip():
        return said
    source = finding.excerpt.rstrip()
    number = str(finding.line)
    before = source[: finding.column - 1].ljust(finding.column - 1)
    return f"{said}  {number} | {source}\n  {' ' * len(number)} | {_blank(before)}^\n\n"


def _blank(text: str) -> str:
    """As wide as the text: a tab stays a tab, a wide character takes two."""
    return "".join("\t" if c == "\t" else "  " if unicodedata.east_asian_width(c) in "WF" else " " for c in text)


def _summary(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing found\n"
    files = len({finding.path for finding in findings})
    said = [f"{figures.plural(len(findings), 'finding')} in {figures.plural(files, 'file')}"]
    safe = sum(finding.fix == "safe" for finding in findings)
    unsafe = sum(finding.fix == "unsafe" for finding in findings)
    if safe:
        said.append(f"[*] {safe} can be fixed safely by `hotlap fix`")
    if unsafe:
        said.append(f"[!] {unsafe} by `hotlap fix --unsafe`, after a look at its `--diff`")
    return "; ".join(said) + "\n"


def _annotation(finding: Finding, root: Path) -> str:
    """One GitHub workflow command; percent first, since the other escapes bring their own."""
    values: dict[str, object] = {"file": _relative(finding.path, root)}
    if finding.cell is None:  # a line of a notebook's cell is no line of its file
        values |= {"line": finding.line, "col": finding.column}
    values["title"] = f"hotlap {finding.technique}"
    said = ",".join(f"{key}={_escaped(str(value), True)}" for key, value in values.items())
    level = {"note": "notice"}.get(_level(finding), _level(finding))
    return f"::{level} {said}::{_escaped(_message(finding), False)}\n"


def _level(finding: Finding) -> str:
    """As SARIF calls it: what spoils the training is an error, what is only likely a note."""
    return "note" if finding.doubtful else "error" if finding.severity == "correctness" else "warning"


def _message(finding: Finding) -> str:
    return finding.message if finding.cell is None else f"cell {finding.cell}, line {finding.line}: {finding.message}"


def _escaped(text: str, is_property: bool) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if is_property else text


def _sarif(findings: Sequence[Finding], rules: list[tuple[str, str]], root: Path, version: str) -> dict[str, Any]:
    known = {technique for technique, _ in rules}
    rules = rules + [(name, name) for name in dict.fromkeys(one.technique for one in findings) if name not in known]
    order = {technique: index for index, (technique, _) in enumerate(rules)}
    driver: dict[str, Any] = {"name": "hotlap", "rules": [_rule(*rule) for rule in rules]}
    if version:
        driver["version"] = version
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding, order[finding.technique], root) for finding in findings],
            }
        ],
    }


def _rule(technique: str, summary: str) -> dict[str, Any]:
    return {
        "id": technique,
        "shortDescription": {"text": summary},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance"]},
    }


def _result(finding: Finding, index: int, root: Path) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": finding.line, "startColumn": finding.column}
    if finding.cell is not None:
        region = {"startLine": 1}
    elif finding.excerpt:
        region["snippet"] = {"text": finding.excerpt}
    artifact = {"uri": _uri(finding.path, root)}
    if not artifact["uri"].startswith("file:"):
        artifact["uriBaseId"] = "%SRCROOT%"
    return {
        "ruleId": finding.technique,
        "ruleIndex": index,
        "level": _level(finding),
        "message": {"text": _message(finding)},
        "locations": [{"physicalLocation": {"artifactLocation": artifact, "region": region}}],
        "properties": {"fix": finding.fix, "severity": finding.severity},
    }


def _relative(path: str, root: Path) -> str:
    """From the root, with forward slashes; a file outside of it keeps its whole path."""
    try:
        return (root.resolve() / path).resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        return (root.resolve() / path).resolve().as_posix()


def _uri(path: str, root: Path) -> str:
    relative = _relative(path, root)
    return Path(relative).as_uri() if Path(relative).is_absolute() else quote(relative)
