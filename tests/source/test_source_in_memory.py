"""Rewriting as modules are imported: every case in a process of its own, compared with plain `python`."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"

# `torch` here is a stand-in beside the script: what is tested is the hook, and it starts in no time.
TORCH = "def f(n=0):\n    return n\n"
RUNNER = """
import os, sys
sys.path.insert(0, "")
from hotlap.observe.launch import Target, execute
from hotlap.source.edits import insert_argument, insert_before
from hotlap.source.in_memory import rewrite_in_memory

class Fixes:
    id, verbs, default, written_last = "fixes", ("spot", "rewrite"), {}, False
    def spot(self, source):
        for call in source.calls("torch.f"):
            if not call.node.keywords:
                yield source.site(call.node, "message", "unsafe")
    def places(self, source, setting):
        return self.spot(source)
    def rewrite(self, site, setting):
        added = insert_before(site.source, site.source.statement(site.node), "added = 1\\nadded = 2")
        return [*insert_argument(site.node, f"n={setting['n']}", source=site.source), *added]

class Choice:
    technique, setting = Fixes(), {"n": 7}

undo = []
target = Target(sys.argv[1], tuple(sys.argv[3:]), sys.argv[2] == "-m")
memory = rewrite_in_memory([Choice], os.getcwd(), undo.append)
try:
    execute(target, memory.code)
finally:
    print("written", list(memory.written), "troubles", memory.troubles)
    undo[0]()
    assert memory not in sys.meta_path
"""


@pytest.fixture
def run(tmp_path):
    """Writes files, runs one under the hook (or plainly), and gives back what it printed."""
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path.parent / f"{tmp_path.name}-runner.py").write_text(RUNNER)
    runner = str(tmp_path.parent / f"{tmp_path.name}-runner.py")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(tmp_path.parent / f"{tmp_path.name}-cache")}

    def ran(script="main.py", *arguments, plainly=False, module=False, **files):
        for name, text in files.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
        command = ["-m", script] if module else [script]
        command = command if plainly else [runner, script, "-m" if module else "-"]
        done = subprocess.run(
            [sys.executable, *command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    return ran


def test_main_and_its_modules_are_rewritten_and_no_pyc_is_poisoned(run, tmp_path):
    said = run(
        main="import torch, other\nprint(torch.f(), other.g())\n",
        other="import torch\ndef g():\n    return torch.f()\n",
    )
    assert said == "7 7\nwritten ['fixes'] troubles []\n"
    assert run(plainly=True) == "0 0\n"
    assert run().startswith("7 7\n")
    assert run(plainly=True) == "0 0\n"
    assert (tmp_path / "main.py").read_text() == "import torch, other\nprint(torch.f(), other.g())\n"


def test_by_dash_m_and_relative_imports(run):
    files = {"pkg/__init__": "", "pkg/a": "import torch\nx = torch.f()\n"}
    files["pkg/main"] = "import torch\nfrom .a import x\nprint(torch.f(), x, __name__, __package__)\n"
    assert run("pkg.main", module=True, **files).startswith("7 7 __main__ pkg\n")


def test_tracebacks_show_the_users_lines(run):
    main = """
        import torch
        import other
        def fails():
            x = torch.f()
            y = [1, 2][
                torch.f() + 5]
        try:
            other.g()
        except ZeroDivisionError:
            import traceback; traceback.print_exc()
        fails()
    """
    other = "import torch\ndef g():\n    torch.f()\n    return 1 / 0\n"
    said = run(main=main, other=other)
    assert 'other.py", line 4, in g\n    return 1 / 0\n           ~~^~~\n' in said
    assert 'main.py", line 12, in <module>\n    fails()\n' in said
    assert 'main.py", line 6, in fails\n    y = [1, 2][\n' in said and "IndexError" in said
    assert "added" not in said and "hotlap" not in said


def test_inspect_pickle_and_spawned_processes_see_the_file_as_it_is(run):
    main = """
        import inspect, multiprocessing, pickle, torch
        class Data:
            def __init__(self):
                self.n = torch.f()
        def work(data):
            return data.n, torch.f()
        if __name__ == "__main__":
            print("added" in inspect.getsource(Data), pickle.loads(pickle.dumps(Data())).n)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                print(pool.map(work, [Data()]))
    """
    assert run(main=main).startswith("False 7\n[(7, 0)]\n")


def test_installed_modules_and_others_folders_are_left_alone(run, tmp_path):
    for folder in ("venv/lib/site-packages", "../elsewhere-" + tmp_path.name):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / "venv/lib/site-packages/theirs.py").write_text("import torch\nx = torch.f()\n")
    (tmp_path.parent / f"elsewhere-{tmp_path.name}" / "far.py").write_text("import torch\nx = torch.f()\n")
    main = f"""
        import sys, torch
        sys.path += ["venv/lib/site-packages", "../elsewhere-{tmp_path.name}"]
        import theirs, far
        print(torch.f(), theirs.x, far.x)
    """
    assert run(main=main).startswith("7 0 0\n")


def test_the_second_start_reads_the_first_ones_rewriting(run, tmp_path):
    run(main="import torch\nprint(torch.f())\n")
    (entry,) = (tmp_path.parent / f"{tmp_path.name}-cache").rglob("*.json")
    entry.write_text(entry.read_text().replace("n=7", "n=8"))
    assert run() == "8\nwritten ['fixes'] troubles []\n"
    entry.write_text("{")
    assert run() == "7\nwritten ['fixes'] troubles []\n"


def test_what_cannot_be_rewritten_runs_as_it_is(run, tmp_path):
    """A technique that stumbles, and a module that is no Python, which must fail as it would under python."""
    runner = tmp_path.parent / f"{tmp_path.name}-runner.py"
    runner.write_text(
        RUNNER.replace("    def rewrite(self, site, setting):\n", "    def rewrite(self, site, setting):\n        oh\n")
    )
    said = run(
        main="import torch\nprint(torch.f())\ntry:\n    import bad\nexcept SyntaxError as e:\n    print(e)\n",
        bad="torch (\n",
    )
    assert said.startswith("0\n'(' was never closed (bad.py, line 1)\n")
    assert "main.py runs as it is written (NameError" in said


def test_the_users_modules_are_those_of_the_whole_project(tmp_path, monkeypatch) -> None:
    from hotlap.source.in_memory import InMemory

    script, package = tmp_path / "work" / "projects" / "deep", tmp_path / "work" / "package"
    for folder in (script, package):
        folder.mkdir(parents=True)
    module = str(package / "trainer.py")
    assert not InMemory([], str(script)).is_users(module), "nothing says that the two belong together"
    (tmp_path / "work" / "setup.py").touch()
    assert InMemory([], str(script)).is_users(module)
    assert not InMemory([], str(script)).is_users(str(tmp_path / "elsewhere.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    assert not InMemory([], str(script)).is_users(module), "a home folder is no project"
