"""The house rules: who may import whom, and what files may be called. Each is shown to turn red."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parent.parent.parent / "src" / "hotlap"
ROOMS = ("catalogue", "source", "observe", "measure", "report", "parts")
FREE = {"errors", "records"}  # words and data formats that belong to no room
MAY_IMPORT = {
    "source": {"source"},
    "observe": {"observe", "parts"},
    "parts": {"parts"},
    "report": {"report"},
    "measure": {"measure", "observe", "source", "report", "technique", "plan", "evidence"},
    "catalogue": {"catalogue", "technique", "source", "observe", "parts"},
    "technique": {"observe", "source"},  # their types only
    "plan": {"technique"},
    "evidence": {"plan", "report"},  # the figures' own types
    "explain": {"technique"},
    "drive": {"observe", "source"},
    "applying": {"catalogue", "technique", "plan", "observe"},  # the way in from Python: takes names, as cli does
    "choosing": {"catalogue", "technique", "plan", "observe", "source"},
    "options": {"observe"},
    "cli_reading": {"catalogue", "source", "observe", "report", "explain", "choosing", "options"},
    "cli": {*ROOMS, "plan", "evidence", "drive", "applying", "choosing", "options", "cli_reading", "front_page"},
}
TORCHS_OWN = {"channels_last", "persistent_workers"}  # words of torch that two techniques share
DRAWERS = {"utils", "util", "common", "core", "helpers", "helper", "base", "misc", "manager"}


def imports(path: Path) -> list[tuple[int, str]]:
    """Every hotlap module a file imports, at any depth of nesting, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            found.append((node.lineno, node.module or ""))
            if node.module == "hotlap":
                found[-1:] = [(node.lineno, f"hotlap.{alias.name}") for alias in node.names]
    return [(line, name) for line, name in found if name == "hotlap" or name.startswith("hotlap.")]


def violations(house: Path) -> list[str]:
    broken = []
    for path in sorted(house.rglob("*.py")):
        inside = path.relative_to(house).with_suffix("")
        room = inside.parts[0]
        if room in DRAWERS or inside.name in DRAWERS:
            broken.append(f"{inside}: a drawer by name")
        if room in ("__init__", "__main__"):
            continue
        allowed = MAY_IMPORT.get(room, set()) | FREE
        for line, name in imports(path):
            target = name.split(".")[1] if "." in name else ""
            if target and target not in allowed:
                broken.append(f"{inside}:{line} imports {name}")
    return broken


def test_the_house_keeps_its_rules() -> None:
    assert violations(HOUSE) == []


def test_the_engine_knows_no_technique_by_name() -> None:
    names = {path.stem for path in (HOUSE / "catalogue").glob("*.py")} - {"__init__"}
    spelled = names | {name.replace("_", "-") for name in names}
    spelled |= {"".join(part.title() for part in name.split("_")) for name in names}
    for room in ("source", "observe", "measure", "report"):
        for path in (HOUSE / room).rglob("*.py"):
            found = [word for word in spelled if word in path.read_text() and word not in TORCHS_OWN]
            assert not found, f"{path}: {found}"


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("measure/search.py", "from hotlap.catalogue import find", "imports hotlap.catalogue"),
        ("parts/pool.py", "def late():\n    import hotlap.observe.run", "imports hotlap.observe.run"),
        ("source/utils.py", "", "a drawer by name"),
        ("technique.py", "from hotlap import catalogue", "imports hotlap.catalogue"),
        ("observe/run.py", "import hotlap.measure.stats", "imports hotlap.measure.stats"),
        ("drive.py", "from hotlap.applying import named", "imports hotlap.applying"),
        ("evidence.py", "from hotlap.catalogue import find", "imports hotlap.catalogue"),
        ("choosing.py", "from hotlap.measure.search import search", "imports hotlap.measure.search"),
        ("cli_reading.py", "from hotlap.drive import drive", "imports hotlap.drive"),
        ("applying.py", "from hotlap.measure.tune import tune", "imports hotlap.measure.tune"),
    ],
)
def test_a_planted_violation_is_red(tmp_path: Path, file: str, line: str, expected: str) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(exist_ok=True)
    planted.write_text(line)
    assert any(expected in one for one in violations(tmp_path))
