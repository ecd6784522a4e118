"""SARIF against a schema: ours always, the standard's own where it can be had.

`OURS` says in JSON Schema what SARIF 2.1.0 asks of the objects we write, and forbids every member we do not. The
standard's own file is large and not ours to copy: HOTLAP_SARIF_SCHEMA names one, which .ci/run fetches."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hotlap.catalogue import TECHNIQUES
from hotlap.report import check
from hotlap.report.findings import Finding

from . import samples

jsonschema = pytest.importorskip("jsonschema")
STANDARD = os.environ.get("HOTLAP_SARIF_SCHEMA", "")


def closed(required: str, **members: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "properties": members,
        "additionalProperties": False,
    }


TEXT = {"type": "string", "minLength": 1}
COUNTED = {"type": "integer", "minimum": 1}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
TOLD = closed("text", text=TEXT)
BAG = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True, "items": TEXT}}}
RULE = closed(
    "id",
    id=TEXT,
    shortDescription=TOLD,
    defaultConfiguration=closed("", level=LEVEL),
    properties=BAG,
)
PLACE = closed(
    "artifactLocation",
    artifactLocation=closed("uri", uri={"type": "string", "pattern": r"^[^\s\\]+$"}, uriBaseId={"const": "%SRCROOT%"}),
    region=closed("startLine", startLine=COUNTED, startColumn=COUNTED, snippet=TOLD),
)
RESULT = closed(
    "ruleId message locations",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    message=TOLD,
    locations={"type": "array", "minItems": 1, "items": closed("physicalLocation", physicalLocation=PLACE)},
    properties=BAG,
)
DRIVER = closed("name", name=TEXT, version=TEXT, rules={"type": "array", "uniqueItems": True, "items": RULE})
RUN = closed(
    "tool results",
    tool=closed("driver", driver=DRIVER),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": RESULT},
)
OURS = closed(
    "version runs",
    version={"const": "2.1.0"},
    runs={"type": "array", "minItems": 1, "items": RUN},
    **{"$schema": {"type": "string", "format": "uri"}},
)


def faults(log: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
    validator.check_schema(schema)
    return [f"{error.json_path}: {error.message}" for error in validator(schema).iter_errors(log)]


def logs(root: Path) -> list[dict[str, Any]]:
    """Everything a finding can be, with all rules; nothing at all; and a log without rules or version."""
    odd = [
        Finding("a", "book.ipynb", 5, 3, "m", None, "x = 1", cell=3),
        Finding("a", "x.py", 1, 1, "m", None, doubtful=True),
        Finding("a", str(root / "a b" / "ä%.py"), 1, 1, "m", None, severity="correctness"),
        Finding("a", "/elsewhere/x.py", 1, 1, "m", "safe"),
    ]
    rules = [(one.id, one.summary) for one in TECHNIQUES]
    whole = check.render([*samples.findings(), *odd], "sarif", rules, root=root, version="0.1.0")
    return [json.loads(text) for text in (whole, check.render([], "sarif", rules), check.render(odd, "sarif"))]


def test_sarif_is_what_the_standard_asks_for(tmp_path: Path) -> None:
    for log in logs(tmp_path):
        assert faults(log, OURS) == []
        (run,) = log["runs"]
        rules = run["tool"]["driver"]["rules"]
        assert all(rules[one["ruleIndex"]]["id"] == one["ruleId"] for one in run["results"])


@pytest.mark.skipif(not STANDARD, reason="HOTLAP_SARIF_SCHEMA names no schema")
def test_sarif_holds_against_the_standards_own_schema(tmp_path: Path) -> None:
    schema = json.loads(Path(STANDARD).read_text())
    assert "SARIF" in schema["title"] or "Static Analysis Results" in schema["title"]
    for log in logs(tmp_path):
        assert faults(log, schema) == []
        for broken in planted(log):
            assert faults(broken, schema), "the schema forbids nothing"


def test_planted_faults_are_seen(tmp_path: Path) -> None:
    for log in logs(tmp_path):
        for broken in planted(log):
            assert faults(broken, OURS)


def planted(log: dict[str, Any]) -> list[dict[str, Any]]:
    """The log, spoilt in ways that have happened to others."""
    no_tool, other_level, unknown = copy.deepcopy(log), copy.deepcopy(log), copy.deepcopy(log)
    del no_tool["runs"][0]["tool"]
    found = [no_tool]
    unknown["runs"][0]["tool"]["driver"]["severity"] = "high"
    found.append(unknown)
    for result in other_level["runs"][0]["results"][:1]:
        result["level"] = "notice"
        found.append(other_level)
    return found
