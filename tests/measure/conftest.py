import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotlap.measure.trial import Trials

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the planted techniques beside the tests


@pytest.fixture(scope="module")
def server() -> Iterator[Trials]:
    """Forced by the variable, as a user would."""
    with pytest.MonkeyPatch.context() as patch, Trials() as trials:
        patch.setenv("HOTLAP_SANDBOX", "redirect")
        trials._serving()
        yield trials


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with something to spoil, and a neighbour."""
    here = tmp_path / "project"
    (here / "data" / "deep").mkdir(parents=True)
    (here / "old.txt").write_text("as it was")
    (here / "gone.txt").write_text("still here")
    (here / "data" / "a.txt").write_text("a")
    (here / "data" / "deep" / "b.txt").write_text("b")
    (here / "link.txt").symlink_to("old.txt")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x.txt").write_text("x")
    with sqlite3.connect(here / "runs.db") as base:
        base.execute("create table runs (name text)")
    base.close()
    return here
