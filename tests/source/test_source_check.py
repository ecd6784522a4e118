"""Walking files and folders."""

import os
import subprocess
import sys

import pytest

from hotlap.source.check import check


class Prints:
    """Finds every call of print."""

    id = "prints"
    verbs = ("spot",)

    def spot(self, source):
        for call in source.calls("print"):
            yield source.site(call.node, "prints", "safe")


class Advice(Prints):
    id = "advice"
    verbs = ()


class Stumbles(Prints):
    id = "stumbles"

    def spot(self, source):
        raise KeyError("oh")


BAD = "import torch\nprint(1)\n"


def places(findings):
    return [(os.path.basename(one.path), one.line) for one in findings]


def test_folders_are_walked_in_order_and_skip_what_is_not_the_users(tmp_path):
    for name in ("b.py", "a.py", "sub/c.py", "notes.txt", ".hidden/d.py", ".venv/e.py", "x/site-packages/f.py",
                 "node_modules/g.py", "__pycache__/h.py"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BAD)
    (tmp_path / "plain.py").write_text("print(1)")  # never mentions the library
    findings, troubles = check([tmp_path], [Prints()])
    assert places(findings) == [("a.py", 2), ("b.py", 2), ("c.py", 2)] and troubles == []


def test_a_file_named_is_read_wherever_it_lies_and_only_once(tmp_path):
    path = tmp_path / ".hidden" / "script"
    path.parent.mkdir()
    path.write_text(BAD)
    assert places(check([path, path, tmp_path], [Prints()])[0]) == [("script", 2)]


def test_links_that_lead_back_end(tmp_path):
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    findings, troubles = check([tmp_path], [Prints()])
    assert places(findings) == [("a.py", 2)] and troubles == []


def test_bad_files_do_not_stop_the_rest(tmp_path):
    (tmp_path / "a.py").write_text("import torch\nx = (\n")
    (tmp_path / "b.py").write_bytes(b"import torch\nx = '\xff'\n")
    (tmp_path / "c.py").write_text(BAD)
    findings, troubles = check([tmp_path / "missing.py", tmp_path], [Prints()])
    assert places(findings) == [("c.py", 2)]
    assert len(troubles) == 3 and all("\n" not in trouble for trouble in troubles)
    assert "missing.py does not exist" in troubles[0] and "a.py:2" in troubles[1] and "b.py:2" in troubles[2]


def test_a_technique_that_stumbles_does_not_stop_the_others(tmp_path):
    (tmp_path / "a.py").write_text(BAD)
    findings, troubles = check([tmp_path], [Stumbles(), Prints()])
    assert places(findings) == [("a.py", 2)] and len(troubles) == 1 and "stumbles" in troubles[0]


def test_ignores_silence(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        "import torch\n"
        "print(1)  # hotlap: ignore[prints]\n"
        "print(\n    2,\n)  # hotlap: ignore\n"
        "print(3)  # hotlap: ignore[other]\n"
        "x = 4  # hotlap: ignore\n"
    )
    assert places(check([path], [Prints()])[0]) == [("a.py", 6)]


@pytest.mark.parametrize(
    ("only", "skip", "count"), [((), (), 1), (("Prints",), (), 1), (("other",), (), 0), ((), ("prints",), 0)]
)
def test_only_and_skip(tmp_path, only, skip, count):
    (tmp_path / "a.py").write_text(BAD)
    assert len(check([tmp_path], [Prints(), Advice()], only, skip)[0]) == count


def test_findings_come_in_the_order_of_the_text(tmp_path):
    class Second(Prints):
        id = "second"

        def spot(self, source):
            return reversed(list(super().spot(source)))

    (tmp_path / "a.py").write_text("import torch\nprint(1); print(2)\nprint(3)\n")
    found = check([tmp_path], [Second()])[0]
    assert [(one.line, one.column) for one in found] == [(2, 1), (2, 11), (3, 1)]


def test_reading_source_and_the_catalogue_imports_no_torch():
    code = "import sys, hotlap.catalogue, hotlap.source.check, hotlap.source.fix; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
