"""Trials where namespaces are refused: the script sees its own writes, the real tree stays as it is to the byte."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from redirected import MARK, run, tree

from hotlap.measure import landlock
from hotlap.measure.trial import Trials

pytestmark = pytest.mark.skipif(landlock.available() is not None, reason="no Landlock here")

WRITES = {
    "relative": "open('new.txt', 'w').write('x'); assert open('new.txt').read() == 'x' and exists('new.txt')",
    "absolute": "open(up + '/elsewhere/y.txt', 'w').write('y'); assert os.listdir(up + '/elsewhere') != ['x.txt']",
    "over": "open('old.txt', 'w').write('new'); assert open('old.txt').read() == 'new'",
    "append": "open('old.txt', 'a').write('+'); assert open('old.txt').read() == 'as it was+'",
    "r+": "f = open('old.txt', 'r+b'); f.write(b'AS'); f.close(); assert open('old.txt').read() == 'AS it was'",
    "through a link": "open('link.txt', 'a').write('+'); assert open('old.txt').read() == 'as it was+'",
    "os.open": "os.write(os.open('old.txt', os.O_WRONLY), b'!!'); assert open('old.txt').read() == '!! it was'",
    "entries": """
        open('new.txt', 'w').close()
        with os.scandir('.') as found:
            entries = {entry.name: entry for entry in found}
        names = [name for name in dir(os.DirEntry) if name[0] != '_' and callable(getattr(os.DirEntry, name))]
        assert len(names) >= 5 and all(getattr(entries['new.txt'], name)() is not None for name in names)
    """,
    "os.open dir_fd": "d = os.open('.', os.O_RDONLY); os.open('n', os.O_CREAT, dir_fd=d); assert exists('n')",
    "exclusive": """
        open('n', 'x').write('1')
        for name in ('n', 'old.txt'):
            try: open(name, 'x')
            except FileExistsError as error: assert error.filename in (name, here + '/' + name), error.filename
            else: raise AssertionError
    """,
    "torch": """
        torch.save({'a': torch.ones(3)}, 'm.pt'); torch.save({'a': torch.ones(3)}, pathlib.Path(here) / 'old.txt')
        assert torch.load('m.pt')['a'].sum() == 3 and torch.load('old.txt', mmap=True)['a'].sum() == 3
        torch.save({'b': 1}, f=open('n.pt', 'wb')); assert torch.load('n.pt') == {'b': 1}
    """,
    "numpy": """
        np.save('n.npy', np.ones(4)); assert np.load('n.npy', mmap_mode='r+').sum() == 4
        m = np.memmap('old.txt', np.uint8, 'r+'); m[:] = 65; m.flush(); assert open('old.txt').read() == 'A' * 9
        np.ones(2).tofile('raw'); assert np.fromfile('raw').sum() == 2
    """,
    "sqlite": """
        base = sqlite3.connect('runs.db'); base.execute("insert into runs values ('one')"); base.commit(); base.close()
        assert sqlite3.connect('file:runs.db?mode=ro', uri=True).execute('select * from runs').fetchall() == [('one',)]
        base = sqlite3.connect('fresh.db'); base.execute('create table t (x)'); base.commit()
    """,
    "rename": """
        os.rename('old.txt', 'new.txt'); assert open('new.txt').read() == 'as it was' and not exists('old.txt')
        open('tmp', 'w').write('t'); os.replace('tmp', 'gone.txt'); assert open('gone.txt').read() == 't'
    """,
    "rename a folder": """
        os.rename('data', 'moved'); assert not exists('data') and not exists('data/a.txt')
        assert open('moved/deep/b.txt').read() == 'b' and sorted(os.listdir('moved')) == ['a.txt', 'deep']
        os.mkdir('data'); assert os.listdir('data') == [] and not exists('data/deep/b.txt')
    """,
    "unlink": """
        os.remove('gone.txt'); os.unlink('link.txt'); names = os.listdir('.')
        assert 'gone.txt' not in names and not exists('gone.txt') and 'old.txt' in names
        assert 'link.txt' not in names and not os.path.lexists('link.txt')
        assert not os.access('gone.txt', os.R_OK) and not glob.glob('g*.txt')
        try: open('gone.txt')
        except FileNotFoundError as error: assert error.filename.endswith('/gone.txt')
        else: raise AssertionError('it is still seen')
        open('gone.txt', 'a').write('again'); assert open('gone.txt').read() == 'again'
    """,
    "folders": """
        os.mkdir('d'); os.makedirs('data/more/e', exist_ok=True); open('data/more/e/f', 'w').close()
        assert sorted(e.name for e in os.scandir('data')) == ['a.txt', 'deep', 'more']
        assert [e.path for e in os.scandir('data/more') if e.is_dir()] == ['data/more/e']
        found = [(os.path.basename(top), sorted(files)) for top, _, files in os.walk('data')]
        assert sorted(found) == [('data', ['a.txt']), ('deep', ['b.txt']), ('e', ['f']), ('more', [])], found
        os.chdir('data/more'); open('g', 'w').close(); assert os.getcwd() == here + '/data/more'
        assert exists('../a.txt') and exists(here + '/data/more/g'); os.chdir(here)
        try: os.rmdir('data')
        except OSError as error: assert error.errno == errno.ENOTEMPTY
        os.rmdir('d'); assert not exists('d')
    """,
    "shutil": """
        shutil.copy('old.txt', 'c.txt'); shutil.copy2('c.txt', 'data'); shutil.move('gone.txt', 'data/deep/')
        assert open('data/c.txt').read() == 'as it was' and open('data/deep/gone.txt').read() == 'still here'
        shutil.copytree('data', 'copy'); shutil.rmtree('data'); assert not exists('data') and exists('copy/deep/b.txt')
        shutil.rmtree('copy'); assert not exists('copy')
    """,
    "pathlib": """
        p, Path = pathlib.Path('p.txt'), pathlib.Path
        p.write_text('p'); assert p.read_text() == 'p' and p.exists() and p in Path().iterdir()
        p.rename('q.txt'); Path('old.txt').unlink(); Path('link.txt').unlink(); Path('k').touch()
        assert sorted(map(str, Path().glob('*.txt'))) == ['gone.txt', 'q.txt'], list(Path().glob('*.txt'))
        assert Path('k').exists() and not Path('old.txt').exists()
        pathlib.Path('a/b').mkdir(parents=True); assert pathlib.Path('a/b').is_dir()
    """,
    "links": """
        os.symlink(here + '/new.txt', 'latest'); open('new.txt', 'w').write('n'); assert open('latest').read() == 'n'
        os.link('old.txt', 'hard'); open('hard', 'a').write('+'); assert open('old.txt').read() == 'as it was+'
        os.symlink('data', 'folder'); open('folder/a.txt', 'a').write('+'); assert open('data/a.txt').read() == 'a+'
        assert os.path.realpath('folder/a.txt') == here + '/data/a.txt' and os.readlink('folder') == 'data'
    """,
    "about a file": """
        os.chmod('old.txt', 0o600); os.utime('gone.txt', (1, 1)); os.truncate('data/a.txt', 0)
        assert os.stat('old.txt').st_mode & 0o777 == 0o600 and os.path.getmtime('gone.txt') == 1
        assert os.path.getsize('data/a.txt') == 0
        f = open('runs.db')
        try: os.fchmod(f.fileno(), 0o600)
        except PermissionError: pass
        else: raise AssertionError
    """,
    "home and temp": """
        home = os.path.expanduser('~/' + mark); open(home, 'w').write('h'); assert open(home).read() == 'h'
        open('/tmp/' + mark, 'w').write('t'); assert exists('/tmp/' + mark)
        with tempfile.NamedTemporaryFile('w', suffix=mark) as f: assert exists(f.name)
        with tempfile.TemporaryDirectory(suffix=mark) as d: subprocess.run(['sh', '-c', f'echo x > {d}/y'], check=True)
        tempfile.mkdtemp(suffix=mark); open('/dev/shm/' + mark, 'w').write('s'); open(os.devnull, 'w').write('x')
    """,
    "workers": """
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, i):
                open(f'item-{i}', 'w').write(str(i)); open('old.txt', 'a').write('+'); return torch.full((9999,), i)
        for strategy in ('file_descriptor', 'file_system'):
            torch.multiprocessing.set_sharing_strategy(strategy)
            assert sum(int(x[0, 0]) for x in torch.utils.data.DataLoader(Data(), 1, num_workers=2)) == 28
        assert open('item-7').read() == '7' and open('old.txt').read() == 'as it was' + '+' * 16
    """,
}
SPAWNED = """
import os, torch
os.makedirs("runs", exist_ok=True)
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): torch.save(i, f"runs/{i}.pt"); return torch.tensor(i)
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Data(), 1, num_workers=1, multiprocessing_context="spawn")
    assert sum(int(x) for x in loader) == 6 and sorted(os.listdir("runs")) == [f"{i}.pt" for i in range(4)]
"""
HEAD = f"""
import errno, glob, os, pathlib, shutil, sqlite3, subprocess, sys, tempfile
import numpy as np, torch
exists, here, up, mark = os.path.exists, os.getcwd(), os.path.dirname(os.getcwd()), {MARK!r}
"""


@pytest.mark.parametrize("what", WRITES)
def test_the_trial_sees_its_writes_and_nobody_else(server: Trials, project: Path, what: str) -> None:
    trial = run(server, project, HEAD + textwrap.dedent(WRITES[what]) + "\nprint('all seen')\n")
    assert (trial.ending, trial.log) == ("finished", "all seen\n")


AS_NOBODY = """
import os, sys
from hotlap.measure.redirect import Redirect
project, scratch = sys.argv[1:]
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.chdir(project)
assert Redirect(scratch).enter()
open("new.txt", "w").write("x"); open("old.txt", "a").write("+"); os.rename("old.txt", "renamed.txt")
os.remove("gone.txt"); os.chmod("data/a.txt", 0o600)
assert open("renamed.txt").read() == "as it was+" and "gone.txt" not in os.listdir(".")
for refused in (lambda: open("/etc/passwd", "a"), lambda: open("/etc/new", "w"), lambda: os.remove("/etc/passwd")):
    try: refused()
    except PermissionError: continue
    raise AssertionError("what the user may not write, a trial may not either")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
def test_without_any_privilege() -> None:
    with tempfile.TemporaryDirectory() as name:
        project, scratch = Path(name, "project"), Path(name, "scratch")
        (project / "data").mkdir(parents=True)
        for file in ("old.txt", "gone.txt", "data/a.txt"):
            (project / file).write_text("as it was")
        scratch.mkdir()
        for path in (Path(name), scratch, project, *project.rglob("*")):
            os.chown(path, 65534, 65534)
        before = tree(project)
        done = subprocess.run([sys.executable, "-c", AS_NOBODY, project, scratch], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert tree(project) == before


def test_spawned_workers_are_redirected_too(server: Trials, project: Path) -> None:
    trial = run(server, project, SPAWNED)
    assert trial.ending == "finished", trial.log


@pytest.mark.parametrize("name", ["open", "unlink", "rename", "mkdir", "symlink"])
def test_a_hole_in_the_redirection_ends_at_the_seal(server: Trials, project: Path, name: str) -> None:
    """One function as it was before: what it would have changed stays, and the ending says what could not be."""
    call = {
        "open": "posix.open('new.txt', os.O_CREAT | os.O_WRONLY)",
        "unlink": "posix.unlink('gone.txt')",
        "rename": "posix.rename('old.txt', 'x')",
        "mkdir": "posix.mkdir('d')",
        "symlink": "posix.symlink('old.txt', 'y')",
    }[name]
    trial = run(server, project, f"import os, posix\n{call}\n")
    assert trial.ending.startswith(f"rejected: writes {project}/"), trial.ending
    assert trial.ending.endswith("which cannot be redirected here")


def test_a_hole_the_seal_does_not_know_is_noticed(server: Trials, project: Path) -> None:
    """The comparison itself: were chmod not redirected, it would be red."""
    with pytest.raises(AssertionError, match="a trace was left"):
        run(server, project, "import posix; posix.chmod('old.txt', 0o600)")


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("subprocess.run(['sh', '-c', 'echo x > sh.txt'], check=True)", "{project}/sh.txt"),
        ("torch.from_file('{project}/c.bin', shared=True, size=4)", "{project}/c.bin"),
        ("torch.jit.script(torch.nn.Linear(2, 2)).save('c.pt')", "a file from outside Python at train.py:7"),
        ("sqlite3.connect(':memory:').execute('attach \"a.db\" as a').execute('create table a.t (x)')", "a file from"),
    ],
)
def test_what_cannot_be_redirected_is_refused(server: Trials, project: Path, code: str, named: str) -> None:
    trial = run(server, project, f"{HEAD}\n\n{code.format(project=project)}\n")
    assert trial.ending.startswith("rejected: writes " + named.format(project=project)), (trial.ending, trial.log)
    assert trial.ending.endswith(", which cannot be redirected here")


def test_errors_of_the_script_stay_its_own(server: Trials, project: Path) -> None:
    trial = run(server, project, "raise PermissionError(13, 'Permission denied', '/nowhere/at/all')")
    assert trial.ending.startswith("raised: PermissionError")
    assert run(server, project, "open('missing.txt')").ending.startswith("raised: FileNotFoundError")
