"""Answers kept between runs, files read in parallel, and what pyproject.toml says."""

import json
import os
from pathlib import Path

import pytest

from hotlap.errors import HotlapError
from hotlap.source import check as checking
from hotlap.source.check import check
from hotlap.source.store import Store, cache_folder


class Prints:
    """Finds every call of print, doubtfully where it prints nothing."""

    id = "prints"
    verbs = ("spot",)
    asked = 0

    def spot(self, source):
        Prints.asked += 1
        for call in source.calls("print"):
            yield source.site(call.node, "prints", "safe", not call.node.args, "memory")


class Loops(Prints):
    """Finds training loops, also those that train through another file."""

    id = "loops"

    def spot(self, source):
        yield from (source.site(loop, "loops") for loop in source.training_loops())


class Dies(Prints):
    id = "dies"

    def spot(self, source):
        assert os.getpid() != MAIN, "was to run in a process of its own"
        return super().spot(source)


MAIN = os.getpid()
BAD = "import torch\nprint(1)\n"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def entries():
    return list(Path(cache_folder()).rglob("*.json"))


def asked(*arguments, **options):
    before = Prints.asked
    found, troubles = check(*arguments, cached=True, **options)
    assert troubles == []
    return Prints.asked - before, [(os.path.basename(one.path), one.line) for one in found]


def test_a_second_look_reads_the_first_ones_answer(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(BAD)
    assert asked([tmp_path], [Prints()]) == (1, [("a.py", 2)])
    assert asked([tmp_path], [Prints()]) == (0, [("a.py", 2)])
    monkeypatch.chdir(tmp_path)
    assert check(["a.py"], [Prints()], cached=True)[0][0].path == "a.py"
    (tmp_path / "a.py").write_text("\n" + BAD)
    assert asked([tmp_path], [Prints()]) == (1, [("a.py", 3)])
    assert sorted(os.listdir(tmp_path)) == ["a.py"]


def test_no_cache_leaves_nothing(tmp_path):
    (tmp_path / "a.py").write_text(BAD)
    check([tmp_path], [Prints()])
    assert entries() == []


def test_another_technique_is_another_answer(tmp_path):
    (tmp_path / "a.py").write_text(BAD)
    asked([tmp_path], [Prints()])
    different = Prints()
    different.level = 2
    assert asked([tmp_path], [different])[0] == 1


def test_an_answer_rests_on_the_files_it_asked(tmp_path):
    engine = tmp_path / "engine.py"
    engine.write_text("def step(x):\n    pass\n")
    (tmp_path / "main.py").write_text("import torch\nfrom engine import step\nfor x in data:\n    step(x)\n")
    look = lambda: [one.line for one in check([tmp_path / "main.py"], [Loops()], cached=True)[0]]  # noqa: E731
    assert look() == []
    engine.write_text("def step(x):\n    model(x).backward()\n    optimizer.step()\n")
    assert look() == [3]
    engine.unlink()
    assert look() == []


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"key": 1}', b"\xff\xfe", b'{"key": "KEY", "rests_on": {}, "answer": {"found": 1}}']
)
def test_a_damaged_entry_counts_as_none(tmp_path, damage):
    (tmp_path / "a.py").write_text(BAD)
    asked([tmp_path], [Prints()])
    (entry,) = entries()
    entry.write_bytes(damage.replace(b"KEY", json.loads(entry.read_bytes())["key"].encode()))
    assert asked([tmp_path], [Prints()]) == (1, [("a.py", 2)])
    assert asked([tmp_path], [Prints()])[0] == 0


def test_a_folder_that_cannot_be_written_is_no_trouble(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert asked([tmp_path], [Prints()])[1] == [("a.py", 2)]


def test_old_answers_are_swept(tmp_path):
    store = Store("check")
    store.put("ab" * 32, {})
    store.put("cd" * 32, {"n": 2})
    os.utime(store._path("ab" * 32), (0, 0))
    store.sweep()
    assert store.get("ab" * 32) is None and store.get("cd" * 32) == {"n": 2}


def test_many_bytes_are_read_by_several_processes_in_the_same_order(tmp_path, monkeypatch):
    for name in ("a/x.py", "b/y.py", "b/z.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BAD)
    alone = check([tmp_path], [Prints()])
    assert len(alone[0]) == 3
    monkeypatch.setattr(checking, "_PAYS_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert check([tmp_path], [Prints()]) == alone
    assert len(check([tmp_path], [Dies()])[0]) == 3

    class Local(Prints):
        """Cannot travel to another process."""

    assert check([tmp_path], [Local()]) == alone


def test_doubtful_sites_are_withheld(tmp_path):
    (tmp_path / "a.py").write_text(BAD + "print()\n")
    assert [one.line for one in check([tmp_path], [Prints()])[0]] == [2]
    found = check([tmp_path], [Prints()], doubtful=True)[0]
    assert [(one.line, one.doubtful, one.severity) for one in found] == [(2, False, "memory"), (3, True, "memory")]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", ["a.py", "old/b.py", "tests/c.py"]),
        ('exclude = ["old"]', ["a.py", "tests/c.py"]),
        ('exclude = ["code/old/*.py", "c.py"]', ["a.py"]),
        ('exclude = ["b.py/x"]', ["a.py", "old/b.py", "tests/c.py"]),
        ('ignore = ["Prints"]', []),
        ('select = ["loops"]', []),
        ('select = ["prints"]', ["a.py", "old/b.py", "tests/c.py"]),
        ('per-path-ignores = { "code/tests/*" = ["prints"], "old" = ["loops"] }', ["a.py", "old/b.py"]),
    ],
)
def test_pyproject_is_found_upwards_and_heeded(tmp_path, table, expected):
    for name in ("a.py", "old/b.py", "tests/c.py"):
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(BAD)
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n[tool.hotlap]\n{table}\n")
    found = check([tmp_path / "code"], [Prints(), Loops()])[0]
    assert [os.path.relpath(one.path, tmp_path / "code") for one in found] == expected


def test_the_command_line_comes_before_pyproject(tmp_path):
    (tmp_path / "a.py").write_text(BAD)
    (tmp_path / "pyproject.toml").write_text("[tool.hotlap]\nselect = ['loops']\n")
    assert len(check([tmp_path], [Prints()], only=["prints"])[0]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[tool.hotlap]\nselects = []\n", "has no 'selects'"),
        ("[tool.hotlap]\nselect = 'prints'\n", "lists of strings"),
        ("[tool.hotlap]\nper-path-ignores = 1\n", "table of patterns"),
        ("[tool]\nhotlap = 1\n", "is a table"),
        ("[tool.hotlap\n", "cannot be read"),
    ],
)
def test_a_wrong_table_is_one_sentence(tmp_path, text, words):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(HotlapError, match=words):
        check([tmp_path], [Prints()])
