"""Notebooks, and files nobody would like to meet."""

import importlib.util
import json
import os
import sysconfig
import types
from pathlib import Path

import pytest

from hotlap.source import files
from hotlap.source.check import check
from hotlap.source.fix import fix_files

FUZZ = Path(__file__).resolve().parent.parent.parent / "bench" / "fuzz.py"


class Prints:
    """Finds every call of torch.f."""

    id = "prints"
    verbs = ("spot", "rewrite")
    written_last = False
    default = {}  # noqa: RUF012

    def spot(self, source):
        for call in source.calls("torch.f"):
            yield source.site(call.node, "prints", "safe")

    def places(self, source, setting):
        return self.spot(source)


def book(*cells):
    made = [{"cell_type": kind, "source": text.splitlines(keepends=True), "metadata": {}} for kind, text in cells]
    return json.dumps({"cells": made, "nbformat": 4, "nbformat_minor": 5, "metadata": {}})


def test_a_notebook_is_checked_cell_by_cell_with_names_from_the_cells_before(tmp_path):
    text = book(
        ("markdown", "# torch"),
        ("code", "%matplotlib inline\nimport torch\n!pip install x"),
        ("code", "if cuda:\n    !nvidia-smi\nfiles = !ls\nx = (1\n     % 2)\ntorch.f()"),
        ("code", "%%bash\ntorch.f()"),
        ("code", "%%time\ntorch.f()  # hotlap: ignore\ntorch.f()"),
        ("code", "x = [1\n % 2]\ntorch.f()"),
        ("code", "torch.f?\ntorch.f()"),
    )
    (tmp_path / "a.ipynb").write_text(text)
    found, troubles = check([tmp_path], [Prints()])
    assert [(one.cell, one.line, one.fix) for one in found] == [(5, 3, None), (6, 3, None), (7, 2, None)]
    assert len(troubles) == 1 and "a.ipynb:cell 3:line" in troubles[0]  # a magic inside an expression is past us
    assert found[1].excerpt == "torch.f()"


def test_a_cell_that_does_not_parse_is_said_and_the_rest_checked(tmp_path):
    (tmp_path / "a.ipynb").write_text(book(("code", "import torch\nx = ("), ("code", "import torch\ntorch.f()")))
    found, troubles = check([tmp_path], [Prints()])
    assert [(one.cell, one.line) for one in found] == [(2, 2)]
    assert "a.ipynb:cell 1:line 2: not valid Python" in troubles[0]


@pytest.mark.parametrize("text", ["torch", '{"torch": 1}', '{"cells": "torch"}', '{"cells": [{"torch": 1}]}'])
def test_what_is_no_notebook_is_one_sentence(tmp_path, text):
    (tmp_path / "a.ipynb").write_text(text)
    found, (trouble,) = check([tmp_path], [Prints()])
    assert not found and "not a notebook" in trouble and "\n" not in trouble


def test_a_notebook_is_never_rewritten(tmp_path):
    (tmp_path / "a.ipynb").write_text(book(("code", "import torch\ntorch.f()")))
    (tmp_path / "b.py").write_text("x = 1")
    choice = types.SimpleNamespace(technique=Prints(), setting={})
    assert list(fix_files([str(tmp_path)], lambda path: [choice], True, [])) == []
    troubles: list[str] = []
    assert list(fix_files([str(tmp_path / "a.ipynb")], lambda path: [choice], True, troubles)) == []
    assert "is a notebook" in troubles[0]


def test_python_2_is_called_by_its_name(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nprint 'x'\n")
    assert "a.py:2: Python 2" in check([tmp_path], [Prints()])[1][0]


def test_huge_files_are_said_where_they_matter(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_MOST_BYTES", 1000)
    (tmp_path / "a.py").write_text("import torch\n" + "x = 1\n" * 500)
    (tmp_path / "b.py").write_text("x = 1\n" * 500)
    (tmp_path / "c.py").write_text("import torch\ntorch.f()\n")
    found, (trouble,) = check([tmp_path], [Prints()])
    assert [os.path.basename(one.path) for one in found] == ["c.py"] and "a.py was not checked" in trouble


def test_folders_without_python_and_things_that_are_no_files(tmp_path):
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "self").symlink_to(tmp_path / "self")
    _, troubles = check([tmp_path / "empty", tmp_path / "pipe.py", tmp_path / "self"], [Prints()])
    assert ["holds no Python" in troubles[0], "no file" in troubles[1], "no file" in troubles[2]] == [True] * 3
    (tmp_path / "a.py").write_text("import torch\ntorch.f()\n")
    found, troubles = check([tmp_path], [Prints()])
    assert len(found) == 1 and troubles == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_said(tmp_path):
    (tmp_path / "a.py").write_text("import torch\n")
    (tmp_path / "a.py").chmod(0)
    assert "cannot be read" in check([tmp_path], [Prints()])[1][0]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_line_ending_and_a_bom(tmp_path, ending):
    (tmp_path / "a.py").write_bytes(b"\xef\xbb\xbf" + f"import torch{ending}x = '\x0c'{ending}torch.f()".encode())
    assert [(one.line, one.excerpt) for one in check([tmp_path], [Prints()])[0]] == [(3, "torch.f()")]


def test_deep_nesting_ends_in_a_sentence(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nx = " + "(" * 5000 + ")" * 5000)
    (tmp_path / "b.py").write_text("import torch\nx = torch" + ".a" * 20000 + "()\n")
    (tmp_path / "c.py").write_text("import torch\nx = 1" + " + 1" * 5000 + "\ntorch.f()\n")
    found, troubles = check([tmp_path], [Prints()])
    assert len(troubles) >= 1 and all("\n" not in one for one in troubles)
    assert all(one.path.endswith("c.py") for one in found)


def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", FUZZ)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_sample_of_the_standard_library_neither_crashes_nor_breaks():
    tool = fuzz()
    paths = [path for path in tool.python_files([sysconfig.get_path("stdlib")]) if "site-packages" not in path]
    sample = [path for path in paths[:: max(1, len(paths) // 36)] if os.path.getsize(path) < 60_000]
    assert len(sample) > 20
    assert [(path, failure) for path in sample for failure in tool.failures(path)] == []


def test_the_fuzzer_sees_a_planted_fault(tmp_path, monkeypatch):
    tool = fuzz()

    class Crashes(Prints):
        def spot(self, source):
            raise KeyError("planted")

    (tmp_path / "a.py").write_text("x = 1\n")
    monkeypatch.setattr(tool, "TECHNIQUES", [Crashes()])
    assert any("planted" in failure for failure in tool.failures(str(tmp_path / "a.py")))
