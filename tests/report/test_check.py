from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotlap.errors import HotlapError
from hotlap.report import check
from hotlap.report.findings import Finding

from . import samples


def test_text_shows_the_place_and_the_way_on() -> None:
    assert check.render(samples.findings(), "text").splitlines() == [
        "src/train.py:12:9: host-syncs: `.item()` waits for the device every step [*]",
        "  12 |         total += loss.item()",
        "     |         ^",
        "",
        "src/train.py:40:10: pinned-loader: batches are copied from pageable memory [!]",
        "  40 | \tloader = DataLoader(data)",
        "     | \t        ^",
        "",
        "eval, odd 100%.py:3:1: grad-free-eval: gradients are kept in evaluation: 100% waste",
        "3 findings in 2 files; [*] 1 can be fixed safely by `hotlap fix`; "
        "[!] 1 by `hotlap fix --unsafe`, after a look at its `--diff`",
    ]


def test_the_caret_stands_under_wide_letters() -> None:
    found = [Finding("x", "a.py", 1, 5, "m", None, "'训练' + y")]
    assert check.render(found).splitlines()[2] == "    |       ^"


def test_nothing_found() -> None:
    assert check.render([], "text") == "nothing found\n"
    assert json.loads(check.render([], "json")) == []
    assert check.render([], "github") == ""
    assert json.loads(check.render([], "sarif"))["runs"][0]["results"] == []


def test_json_is_exactly_what_is_promised() -> None:
    found = json.loads(check.render(samples.findings(), "json"))
    assert [set(one) for one in found] == [{"technique", "path", "line", "column", "message", "fix"}] * 3
    assert [one["fix"] for one in found] == ["safe", "unsafe", None]


def test_annotations_escape_what_would_end_them() -> None:
    lines = check.render(samples.findings(), "github").splitlines()
    assert lines[0] == (
        "::warning file=src/train.py,line=12,col=9,title=hotlap host-syncs::`.item()` waits for the device every step"
    )
    assert lines[2] == (
        "::warning file=eval%2C odd 100%25.py,line=3,col=1,title=hotlap grad-free-eval::"
        "gradients are kept in evaluation:%0A100%25 waste"
    )


def test_sarif_has_the_members_the_standard_asks_for(tmp_path: Path) -> None:
    rules = [("unused", "A rule that found nothing."), ("host-syncs", "Fewer waits.")]
    inside = Finding("host-syncs", str(tmp_path / "a b.py"), 1, 1, "m", "safe")
    outside = Finding("host-syncs", "/elsewhere/x.py", 1, 1, "m", "safe")
    found = [*samples.findings(), inside, outside]
    log = json.loads(check.render(found, "sarif", rules, root=tmp_path, version="0.1.0"))
    assert log["version"] == "2.1.0"
    assert "sarif-2.1.0" in log["$schema"]
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("hotlap", "0.1.0")
    assert [rule["id"] for rule in driver["rules"]] == ["unused", "host-syncs", "pinned-loader", "grad-free-eval"]
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    uris = []
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == "warning"
        assert result["message"]["text"]
        place = result["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] >= 1
        assert place["region"]["startColumn"] >= 1
        uris.append(place["artifactLocation"]["uri"])
    assert uris[0] == "src/train.py"
    assert uris[2] == "eval%2C%20odd%20100%25.py"
    assert uris[3:] == ["a%20b.py", "file:///elsewhere/x.py"]


def test_an_unknown_format_names_the_known() -> None:
    with pytest.raises(HotlapError, match="text, json, sarif, github"):
        check.render([], "xml")


def odd_ones() -> list[Finding]:
    """A cell of a notebook, something only likely, and something that spoils the training."""
    return [
        Finding("a", "book.ipynb", 5, 3, "m", None, "x = 1", cell=3),
        Finding("a", "x.py", 1, 1, "m", None, doubtful=True),
        Finding("a", "x.py", 1, 1, "m", None, severity="correctness"),
    ]


def test_cells_doubts_and_errors_in_text_and_json() -> None:
    lines = check.render(odd_ones()).splitlines()
    assert lines[0] == "book.ipynb:cell 3:line 5: a: m"
    assert "x.py:1:1: a: likely: m" in lines
    found = json.loads(check.render(odd_ones(), "json"))
    assert [one.get("cell") for one in found] == [3, None, None] and "cell" not in found[1]


def test_cells_doubts_and_errors_for_code_hosts() -> None:
    lines = check.render(odd_ones(), "github").splitlines()
    assert lines[0] == "::warning file=book.ipynb,title=hotlap a::cell 3, line 5: m"
    assert lines[1].startswith("::notice file=x.py,line=1") and lines[2].startswith("::error ")
    results = json.loads(check.render(odd_ones(), "sarif"))["runs"][0]["results"]
    assert [one["level"] for one in results] == ["warning", "note", "error"]
    regions = [one["locations"][0]["physicalLocation"]["region"] for one in results]
    assert regions[0] == {"startLine": 1} and results[0]["message"]["text"] == "cell 3, line 5: m"
