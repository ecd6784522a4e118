from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotlap import cli
from hotlap.errors import HotlapError
from hotlap.report import folder

from . import samples

ALL: dict[str, Callable[[], Any]] = {f"tune, {name}": make for name, make in samples.TUNES.items()} | {
    f"profile, {name}": make for name, make in samples.PROFILES.items()
}


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    report = ALL[name]()
    (tmp_path / "report.json").write_text(folder.render(report, "json"), encoding="utf-8")
    # nan is not equal to itself, but as text it is; inf comes back as nan, or as nothing where nothing may stand
    assert re.sub("inf|None", "nan", repr(folder.read(tmp_path))) == re.sub("inf|None", "nan", repr(report))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("format", folder.FORMATS)
def test_every_report_has_every_format(name: str, format: str) -> None:
    assert folder.render(ALL[name](), format).strip()


def test_several_formats_are_files_beside_the_data(tmp_path: Path, monkeypatch, capsys) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["hotlap", "report", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return int(ended.value.code or 0), "".join(capsys.readouterr())

    data = tmp_path / "first.json"
    data.write_text(folder.render(samples.tune(), "json"), encoding="utf-8")
    before = data.stat().st_ino
    code, words = said(str(data), "--format", "html, md,json,text,md")
    assert code == 0 and words.split() == [str(tmp_path / f"first.{end}") for end in ("html", "md", "json", "txt")]
    assert (tmp_path / "first.md").read_text() == folder.render(samples.tune(), "md")
    assert "<html" in (tmp_path / "first.html").read_text() and data.stat().st_ino == before, "the data stays"
    assert said(str(data), "--format", "md")[1] == folder.render(samples.tune(), "md") + "\n"
    for wrong in ("tex,pdf", ","):
        code, words = said(str(data), "--format", wrong)
        assert code == 2 and "choose among html, md, tex, json, text" in words and words.count("\n") == 1
    assert not (tmp_path / "first.tex").exists()


def test_the_folder_holds_what_is_promised(tmp_path: Path) -> None:
    folder.write(samples.tune(), tmp_path)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    charts = {f"figures/{chart}.{end}" for chart in ("step", "ablation", "losses", "trials") for end in ("pdf", "svg")}
    assert names == {"report.json", "report.html", "report.md", "report.tex"} | charts
    data = json.loads((tmp_path / "report.json").read_text())
    assert (data["kind"], data["version"]) == ("tune", 1)
    promised = {"speedup", "kept", "rejected", "not_tried", "ablation", "parity", "a_against_a", "cost_seconds"}
    assert promised | {"payback_steps", "trials"} <= set(data)
    assert set(data["speedup"]) == {"ratio", "low", "high"}
    assert len(data["trials"][0]["step_seconds"]) == 56


def test_a_second_report_leaves_no_chart_of_the_first(tmp_path: Path) -> None:
    folder.write(samples.tune(), tmp_path)
    folder.write(samples.nothing_kept(), tmp_path)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "step.pdf",
        "step.svg",
        "trials.pdf",
        "trials.svg",
    }


def test_a_profile_leaves_no_chart_of_a_tuning(tmp_path: Path) -> None:
    folder.write(samples.tune(), tmp_path)
    folder.write(samples.profile(), tmp_path)
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == {"steps", "parts", "roofline"}


def test_the_json_of_a_profile_keeps_its_promises() -> None:
    data = json.loads(folder.render(samples.profile(), "json"))
    assert (data["kind"], data["version"]) == ("profile", 2)
    promised = {"steps", "step_seconds", "shares", "cpu_busy", "device_busy", "syncs", "memory", "layers"}
    assert promised | {"device", "torch"} <= set(data)
    assert {"path", "line", "count", "seconds"} <= set(data["syncs"][0])
    assert sum(data["shares"].values()) == pytest.approx(1)


def test_a_profile_is_read_from_its_file_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "before").write_text(folder.render(samples.profile(), "json"), encoding="utf-8")
    assert folder.read_profile(tmp_path / "before") == samples.profile()
    folder.write(samples.tune(), tmp_path / "tuned")
    with pytest.raises(HotlapError, match="the report of a tuning, not of a profile"):
        folder.read_profile(tmp_path / "tuned")
    with pytest.raises(HotlapError, match=r"no report at .*nowhere.json: run `hotlap profile --json"):
        folder.read_profile(tmp_path / "nowhere.json")


def test_json_has_no_nan(tmp_path: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    json.loads(folder.render(samples.awkward_tune(), "json"), parse_constant=refuse)
    folder.write(samples.awkward_tune(), tmp_path / "new" / "dir")
    found = folder.read(tmp_path / "new" / "dir" / "report.json")
    assert math.isnan(found.parity[0].figure)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no report"),
        ("{", "damaged"),
        ("[]", "not a report of hotlap"),
        ('{"kind": "other"}', "not a report of hotlap"),
        ('{"kind": []}', "not a report of hotlap"),
        ('{"kind": "tune", "version": 99}', "version 99"),
        ('{"kind": "tune", "version": 1}', "lacks parts"),
        ('{"kind": "profile", "version": 1}', "version 1, this hotlap reads version 2"),
        ('{"kind": "profile", "version": 2, "syncs": 3}', "lacks parts"),
        (b"\xff\xfe\x00", "damaged"),
    ],
)
def test_what_is_no_report_is_one_sentence(content: str | bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(HotlapError) as caught:
        folder.read(tmp_path)
    assert said in str(caught.value)
    assert "hotlap profile" in str(caught.value) or "hotlap tune" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HotlapError, match="choose another folder"):
        folder.write(samples.tune(), tmp_path / "file")


def test_an_unknown_format_names_the_known() -> None:
    with pytest.raises(HotlapError, match="html, md, tex, json, text"):
        folder.render(samples.tune(), "docx")
