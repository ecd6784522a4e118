"""The tables of results come from the raw records alone: nothing is left out, nothing stale passes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import results

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bench" / "results" / "tune").mkdir(parents=True)
    (tmp_path / "README.md").write_text("before\n<!-- results -->\n<!-- /results -->\nafter\n")
    (tmp_path / "bench" / "results" / "README.md").write_text(
        "".join(f"<!-- {name} -->\n<!-- /{name} -->\n" for name in ("tunings", "experts", "computing", "feed", "data"))
    )
    for name in ("photos", "chars"):
        shutil.copy(ROOT / "bench" / "results" / f"{name}-h200.json", tmp_path / "bench" / "results")
    monkeypatch.setattr(sys, "argv", ["results.py"])
    return tmp_path


def changed(path: Path, to: Path, **values: object) -> None:
    to.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def table(page: Path, name: str) -> list[list[str]]:
    """The rows of one table, by cells."""
    lines = page.read_text().partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0].splitlines()
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("|")][2:]


def test_gains_and_failures_are_both_shown(root: Path) -> None:
    assert results.main(root) == 0
    photos, chars = table(root / "README.md", "results")
    assert photos[:2] == ["`examples/photos.py`", "1 x NVIDIA H200, 16 cores"]
    assert photos[2:] == [
        "61.6 -> 10.1 ms",
        "[6.1x (4.5 to 8.4)](bench/results/photos-h200.json)",
        "loader-workers (num_workers 14), sample-cache",
    ]
    assert chars[2:4] == ["6.20 ms", "[nothing](bench/results/chars-h200.json)"]
    assert "mixed-precision 0.85x" in chars[4] and "1.21x (0.95 to 1.54), not shown" in chars[4]
    text = (root / "README.md").read_text()
    assert text.startswith("before\n") and text.endswith("after\n")


def test_every_record_has_its_row_beside_the_records(root: Path) -> None:
    assert results.main(root) == 0
    photos, chars = table(root / "bench" / "results" / "README.md", "tunings")
    assert photos[:3] == ["[photos-h200](photos-h200.json)", "61.6 -> 10.1 ms", "6.1x (4.5 to 8.4)"]
    assert photos[4:] == ["18", "2026-11-15", "2.11.0"]
    assert chars[0] == "[chars-h200](chars-h200.json)" and chars[2] == "nothing"


def test_public_scripts_go_by_the_name_of_their_record(root: Path) -> None:
    beside = root / "bench" / "results"
    changed(beside / "photos-h200.json", beside / "tune" / "cifar-h200.json", script="main.py")
    changed(beside / "chars-h200.json", beside / "tune" / "mingpt-h200.json", cut_short=True, rejected=[])
    assert results.main(root) == 0
    names = {row[0]: row[3:5] for row in table(root / "README.md", "results")}
    assert names["cifar: `main.py`"][0].startswith("[6.1x")
    expected = ["[not decided](bench/results/tune/mingpt-h200.json)", "nothing; no trial fitted into the budget"]
    assert names["mingpt: `examples/chars.py`"] == expected


def test_of_one_script_the_newest_is_shown_and_all_are_listed(root: Path) -> None:
    beside = root / "bench" / "results"
    for number, source in ((1, "photos"), (2, "chars"), (3, "photos")):
        facts = json.loads((beside / f"{source}-h200.json").read_text())["facts"]
        to = beside / "tune" / f"cifar-{3 - number}00s-h200.json"  # the newest is not the last by name
        changed(beside / f"{source}-h200.json", to, facts={**facts, "date": f"2026-11-15 1{number}:00 UTC"})
    for path in beside.glob("*.json"):
        path.unlink()
    assert results.main(root) == 0
    (row,) = table(root / "README.md", "results")
    assert row[3] == "[6.1x (4.5 to 8.4)](bench/results/tune/cifar-000s-h200.json)"
    listed = table(beside / "README.md", "tunings")
    assert sorted(row[0] for row in listed) == [
        f"[cifar-{number}00s-h200](tune/cifar-{number}00s-h200.json)" for number in (0, 1, 2)
    ]


def test_a_stale_table_is_red(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    results.main(root)
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert results.main(root) == 0
    record = root / "bench" / "results" / "photos-h200.json"
    changed(record, record, before_seconds=0.07)
    before = (root / "README.md").read_text()
    assert results.main(root) == 1
    assert "make results" in capsys.readouterr().out and (root / "README.md").read_text() == before


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"speedup": None}, "it has no interval"),
        ({"before_seconds": None}, "it has no time of a step"),
        ({"facts": {"hardware": ""}}, "it lacks parts of a tune report"),
        ({"kind": "overhead"}, "is not a report of hotlap"),
        ({"version": 0}, "version 0"),
    ],
)
def test_a_record_without_its_row_is_an_error(root: Path, values, expected: str, capsys) -> None:
    record = root / "bench" / "results" / "photos-h200.json"
    changed(record, record, **values)
    assert results.main(root) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "photos-h200.json" in said and expected in said


@pytest.mark.parametrize("page", ["README.md", "bench/results/README.md"])
def test_without_its_marks_nothing_passes(root: Path, page: str) -> None:
    (root / page).write_text("no marks\n")
    assert results.main(root) == 2


def test_what_was_run_against_experts_is_a_table_beside_its_records(root: Path, monkeypatch, capsys) -> None:
    page = root / "bench" / "results" / "README.md"
    assert results.main(root) == 0 and not table(page, "experts")
    pairs = [("script", "hotlap run", 4.5, 4.2, 4.8), ("expert", "hotlap run", 1.02, 0.97, 1.07)]
    pairs += [("script", "lightning", 1.5, 1.4, 1.6), ("lightning", "hotlap run", 3.0, 2.9, 3.1)]
    record = {
        "name": "mnist",
        "facts": {"hardware": "1 x NVIDIA H200 (140 GiB), Intel Xeon, 16 cores", "date": "2026-11-15 12:00 UTC"},
        "rounds": 2,
        "comparisons": [
            {"of": of, "to": to, "figure": "mean", "ratio": ratio, "low": low, "high": high}
            for of, to, ratio, low, high in pairs
        ],
        "laps": [
            {"variant": name, "mean": seconds}
            for name, seconds in (("script", 7e-3), ("script", 8e-3), ("hotlap run", 1.5e-3), ("expert", 1.6e-3))
        ],
    }
    path = root / "bench" / "results" / "experts" / "mnist-h200.json"
    path.parent.mkdir()
    path.write_text(json.dumps(record))
    monkeypatch.setattr(sys, "argv", ["results.py", "--check"])
    assert results.main(root) == 1 and "bench/results/README.md is out of date" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["results.py"])
    assert results.main(root) == 0
    (cells,) = table(page, "experts")
    assert cells[0] == "[mnist](experts/mnist-h200.json)" and cells[2:5] == ["7.50 ms", "1.50 ms", "1.60 ms"]
    assert cells[5:7] == ["4.5x (4.2 to 4.8)", "1.02x (0.97 to 1.07)"]
    assert cells[7:] == ["lightning 3.0x (2.9 to 3.1)", "2", "2026-11-15"]
    without = {
        "comparisons": [one for one in record["comparisons"] if one["of"] != "script"],
        "laps": [lap for lap in record["laps"] if lap["variant"] != "script"],
    }
    path.write_text(json.dumps({**record, **without}))
    assert results.main(root) == 0
    assert table(page, "experts")[0][2:7] == ["-", "1.50 ms", "1.60 ms", "-", "1.02x (0.97 to 1.07)"]
    path.write_text(json.dumps({**record, "comparisons": []}))
    assert results.main(root) == 2 and "mnist-h200.json is no record" in capsys.readouterr().err


def test_what_each_technique_is_worth_is_a_table_of_courses(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, folder = root / "bench" / "results" / "README.md", root / "bench" / "results" / "computing"
    folder.mkdir()
    assert results.main(root) == 0 and not table(page, "computing")

    def arm(name: str, trouble: str = "", **figures: tuple[float, float | None, float | None]) -> dict:
        shown = {what: dict(zip(("ratio", "low", "high"), values, strict=True)) for what, values in figures.items()}
        return {"name": name, "trouble": trouble, **shown}

    facts = {
        "hardware": "1 x NVIDIA H200 (140 GiB), Intel Xeon, 16 cores",
        "date": "2026-11-15 12:00 UTC",
        "trials": 40,
    }
    both = [
        arm("script"),
        arm("alone mixed-precision", factor=(2.3, 2.2, 2.4)),
        arm("alone channels-last", factor=(0.97, 0.95, 0.99)),
        arm("alone compiled-model", trouble="out of memory"),
        arm("together", factor=(4.4, 4.3, 4.5)),
        arm("without mixed-precision", worth=(4.0, 3.9, 4.1)),
        arm("without channels-last", worth=(1.9, None, None)),
    ]
    few = [arm("script"), arm("alone fused-optimizer", factor=(1.2, 1.1, 1.3)), arm("alone mixed-precision")]
    for course, arms in (("resnet50", both), ("gan", few)):
        record = {"kind": "computing", "course": course, "facts": facts, "arms": arms}
        (folder / f"{course}-h200.json").write_text(json.dumps(record))
    assert results.main(root) == 0
    columns = [f"[{name}](computing/{name}-h200.json), 1 x NVIDIA H200, 16 cores" for name in ("gan", "resnet50")]
    assert " | ".join(columns) in page.read_text()
    assert {row[0]: row[1:] for row in table(page, "computing")} == {
        "fused-optimizer": ["1.20x (1.10 to 1.30) / -", "-"],
        "mixed-precision": ["not timed / -", "2.3x (2.2 to 2.4) / 4.0x (3.9 to 4.1)"],
        "channels-last": ["-", "0.97x (0.95 to 0.99) / 1.90x (one trial)"],
        "compiled-model": ["-", "failed / -"],
        "**together**": ["-", "4.4x (4.3 to 4.5)"],
        "trials, date": ["40, 2026-11-15", "40, 2026-11-15"],
    }
    (folder / "gan-h200.json").write_text("[]")
    assert results.main(root) == 2 and "gan-h200.json is no record" in capsys.readouterr().err


def test_loaders_are_listed_with_those_that_are_missing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, path = root / "bench" / "results" / "README.md", root / "bench" / "results" / "feed-h200.json"
    assert results.main(root) == 0 and not table(page, "feed")
    shutil.copy(ROOT / "bench" / "results" / "feed-h200.json", path)
    assert results.main(root) == 0
    first, *_, last = table(page, "feed")
    assert first[:4] == ["hotlap ImageLoader, 8 workers", "9,817", "2.7x", "1"]
    assert last[0] == "FFCV" and last[1].startswith("left out: ffcv is not installed")
    changed(path, path, results=[{"feeder": "DALI"}])
    assert results.main(root) == 2 and "is no record of bench/imagenet_feed.py" in capsys.readouterr().err


def test_what_data_costs_a_step_is_a_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, folder = root / "bench" / "results" / "README.md", root / "bench" / "results" / "data"
    assert results.main(root) == 0 and not table(page, "data")
    folder.mkdir()
    shutil.copy(ROOT / "bench" / "results" / "data" / "chargpt-h200.json", folder)
    assert results.main(root) == 0
    ((script, _, drawn, frozen, ratio, *_),) = table(page, "data")
    assert script == "[chargpt](data/chargpt-h200.json)"
    assert (drawn, frozen, ratio) == ("2.47 ms", "2.41 ms", "1.069 (1.026 to 1.115)")
    changed(folder / "chargpt-h200.json", folder / "other-h200.json", low=None, high=None, techniques=[])
    assert results.main(root) == 0 and table(page, "data")[1][4:] == [
        "1.069 (one turn)",
        "2026-11-18",
        "the script as it is",
    ]
    changed(folder / "chargpt-h200.json", folder / "chargpt-h200.json", ratio=None)
    assert results.main(root) == 2 and "is no record of bench/without_data.py" in capsys.readouterr().err
