"""Acting on an import that the script may make now, later, or never."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from hotlap.observe.imports import on_import


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package nobody has imported, and a finder list that comes back as it was."""
    (tmp_path / "freshly").mkdir()
    (tmp_path / "freshly" / "__init__.py").write_text("ready = 1\n")
    (tmp_path / "freshly" / "part.py").write_text("import freshly\nready = freshly.ready + 1\n")
    (tmp_path / "broken_once.py").write_text(
        "import os\nif not os.environ.get('MENDED'): raise ImportError('not yet')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield tmp_path
    for name in ("freshly.part", "freshly", "broken_once", "appears_later"):
        sys.modules.pop(name, None)
    assert sys.meta_path == before


def test_before_the_import_the_action_waits(fresh: Path) -> None:
    seen = []
    on_import("freshly.part", lambda: seen.append(sys.modules["freshly.part"].ready))
    import freshly

    assert seen == [] and freshly.ready == 1
    import freshly.part

    assert seen == [2], "the module is complete when the action runs"
    importlib.reload(freshly.part)
    assert seen == [2]


def test_after_the_import_it_runs_at_once() -> None:
    seen = []
    on_import("sys", lambda: seen.append(1))()
    assert seen == [1]


def test_cancelled_it_never_runs(fresh: Path) -> None:
    seen = []
    cancel = on_import("freshly", lambda: seen.append(1))
    cancel()
    cancel()
    import freshly  # noqa: F401

    assert seen == []


def test_two_actions_for_one_module(fresh: Path) -> None:
    seen = []
    on_import("freshly", lambda: seen.append("first"))
    on_import("freshly", lambda: seen.append("second"))
    import freshly

    assert seen == ["first", "second"]
    assert "exec_module" not in vars(freshly.__spec__.loader)


def test_being_looked_for_is_not_being_imported(fresh: Path) -> None:
    """Libraries ask `find_spec("torch")` first, to see whether it is there; the import comes later."""
    seen = []
    on_import("freshly", lambda: seen.append(1))
    assert importlib.util.find_spec("freshly") is not None
    assert importlib.util.find_spec("freshly") is not None
    assert seen == []
    import freshly  # noqa: F401

    assert seen == [1]


def test_a_missing_module_is_missing_and_may_come_later(fresh: Path) -> None:
    seen = []
    on_import("appears_later", lambda: seen.append(1))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("appears_later")
    assert importlib.util.find_spec("appears_later") is None
    assert seen == []
    (fresh / "appears_later.py").write_text("")
    importlib.invalidate_caches()
    importlib.import_module("appears_later")
    assert seen == [1]


def test_an_import_that_fails_is_not_the_import(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    on_import("broken_once", lambda: seen.append(1))
    with pytest.raises(ImportError, match="not yet"):
        importlib.import_module("broken_once")
    assert seen == []
    monkeypatch.setenv("MENDED", "1")
    importlib.import_module("broken_once")
    assert seen == [1]


def test_a_package_that_imports_itself_a_second_time(fresh: Path) -> None:
    """As cv2 does, to take over what its compiled half holds: the action sees the one that stays."""
    (fresh / "freshly" / "native").mkdir()
    (fresh / "freshly" / "native" / "freshly.py").write_text("def read(): ...\n")
    (fresh / "freshly" / "__init__.py").write_text(
        "import importlib, os, sys\n"
        "own = sys.modules.pop('freshly')\n"
        "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'native'))\n"
        "native = importlib.import_module('freshly')\n"
        "del sys.path[0]\n"
        "sys.modules['freshly'] = own\n"
        "read = native.read\n"
    )
    seen = []
    on_import("freshly", lambda: seen.append(sys.modules["freshly"]))
    import freshly

    assert seen == [freshly] and freshly.native is not freshly
