"""The observed script behaves as under `python`. Every case runs both ways and the two are compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

PYTHON = [sys.executable]
HOTLAP = [sys.executable, "-m", "hotlap", "run", "--quiet"]


def both(tmp_path: Path, script: str, *arguments: str, stdin: str | None = None, **files: str):
    """Run `script` under python and under hotlap in two equal folders: two CompletedProcess."""
    results = []
    for name, command in (("python", PYTHON), ("hotlap", HOTLAP)):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {"train_py": script, **files}.items():
            path = folder / (file.replace("_py", ".py").replace("__in__", "/"))
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text))
        line = [part.replace("{folder}", str(folder)) for part in (arguments or ("train.py",))]
        done = subprocess.run(
            [*command, *line], cwd=folder, input=stdin or "", capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        done.stdout = done.stdout.replace(str(folder), "{folder}")
        done.stderr = done.stderr.replace(str(folder), "{folder}")
        results.append(done)
    return results


def same(results) -> None:
    plain, observed = results
    assert observed.stdout == plain.stdout
    assert observed.returncode == plain.returncode
    assert observed.stderr == plain.stderr


@pytest.mark.parametrize(
    "script",
    [
        "import sys; print(sys.argv, __name__, __file__)",
        "import os, sys; print(os.getcwd(), sys.path[0])",
        "print(__spec__, __package__, __doc__, __cached__)",
        "import __main__; value = 3; print(__main__.value)",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('a message')",
        "raise SystemExit",
        "import atexit; atexit.register(print, 'at exit'); print('body')",
        "def f():\n    raise ValueError('a wrong value')\nf()",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
        "import sys\nsys.excepthook = lambda *a: print('own hook', a[0].__name__)\nraise OSError",
        "import threading; t = threading.Thread(target=lambda: print('thread')); t.start(); t.join()",
        "import sys; print(sys.stdin.isatty(), sys.stdout.isatty())",
        "import warnings; warnings.warn('careful')",
        "import helper; print(helper.where)",
    ],
)
def test_like_python(tmp_path: Path, script: str) -> None:
    same(both(tmp_path, script, "train.py", "--lr", "0.1", "-m", "x", helper_py="where = __file__"))


def test_stdin(tmp_path: Path) -> None:
    same(both(tmp_path, "print(input() + '!', input())", "train.py", stdin="one\ntwo\n"))


def test_module(tmp_path: Path) -> None:
    script = (
        "import sys; from . import part; print(__name__, __package__, __spec__.name, sys.argv, part.x, sys.path[0])"
    )
    same(both(tmp_path, "", "-m", "pkg.train", "--steps", "3", pkg__in____init___py="", pkg__in__train_py=script,
              pkg__in__part_py="x = 1"))  # fmt: skip


def test_package_with_main(tmp_path: Path) -> None:
    same(
        both(tmp_path, "", "-m", "pkg", "a", pkg__in____init___py="", pkg__in____main___py="print(__name__, __file__)")
    )


def test_traceback_shows_only_the_users_frames(tmp_path: Path) -> None:
    script = """
        import torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
            def forward(self, x):
                return self.layer(x).explode()
        model = Net()
        for _ in range(3):
            try:
                model(torch.ones(1, 2))
            except AttributeError:
                pass
        model(torch.ones(1, 2)).sum().backward()
    """
    plain, observed = both(tmp_path, script)
    assert observed.returncode == plain.returncode == 1
    assert "hotlap" not in observed.stderr.replace("{folder}", "")
    assert observed.stderr.strip().split("\n")[-1] == plain.stderr.strip().split("\n")[-1]


def test_interrupt(tmp_path: Path) -> None:
    """Ctrl-C: the script's own handler runs, and the process dies of SIGINT as python does."""
    (tmp_path / "train.py").write_text(
        "import time\ntry:\n    print('ready', flush=True)\n    time.sleep(600)\n"
        "finally:\n    print('tidied', flush=True)\n"
    )
    seen = []
    for command in (PYTHON, HOTLAP):
        process = subprocess.Popen(
            [*command, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        seen.append((out, process.returncode, [line for line in err.split("\n") if "train.py" in line], err[-18:]))
    assert seen[0] == seen[1]
    assert seen[0][1] == -signal.SIGINT


def test_terminated(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    for command in (PYTHON, HOTLAP):
        process = subprocess.Popen([*command, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGTERM


def test_spawned_workers(tmp_path: Path) -> None:
    script = """
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Squares(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return torch.tensor(float(i * i))

        if __name__ == "__main__":
            loader = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
            print([batch.tolist() for batch in loader])
    """
    for name in "abc":  # now and then Python itself warns of its semaphores
        (tmp_path / name).mkdir()
        pair = both(tmp_path / name, script)
        if not any("resource_tracker" in one.stderr for one in pair):
            break
    same(pair)


def test_pickles_of_its_own_classes(tmp_path: Path) -> None:
    """A class of `__main__` pickled under hotlap is what plain python reads back, and the other way round."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import pickle, sys, torch
        class Config:
            rate = 0.1
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(3, 1)
            def forward(self, x):
                return self.layer(x)
        def write(name):
            torch.manual_seed(0)
            net = Net()
            opt = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(8):
                opt.zero_grad(); net(torch.ones(2, 3)).sum().backward(); opt.step()
            torch.save(net, name); torch.save(net.state_dict(), name + ".state")
            pickle.dump(Config(), open(name + ".config", "wb"))
        def read(name):
            net = torch.load(name, weights_only=False)
            print(net(torch.ones(1, 3)).item(), sorted(vars(net)), list(torch.load(name + ".state")))
            print(pickle.load(open(name + ".config", "rb")).rate)
        for verb, name in zip(sys.argv[1::2], sys.argv[2::2]):
            globals()[verb](name)
        """)
    )
    runs = ((HOTLAP, "write", "ours"), (PYTHON, "write", "theirs", "read", "ours"), (HOTLAP, "read", "theirs"))
    said = [
        subprocess.run(
            [*command, "train.py", *words],
            cwd=tmp_path, check=True, timeout=PATIENCE_SECONDS, capture_output=True, text=True,
        ).stdout
        for command, *words in runs
    ]  # fmt: skip
    assert said[0] == "" and said[1] and said[1] == said[2]


def test_same_weights_and_losses(tmp_path: Path) -> None:
    """A training with a loader, dropout and checkpoints gives bit for bit what python gives."""
    script = """
        import hashlib, torch
        from torch.utils.data import DataLoader, TensorDataset
        torch.manual_seed(1)
        data = TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,)))
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 3))
        opt = torch.optim.AdamW(net.parameters())
        for epoch in range(3):
            for x, y in DataLoader(data, batch_size=8, shuffle=True):
                opt.zero_grad()
                loss = torch.nn.functional.cross_entropy(net(x), y)
                loss.backward()
                opt.step()
            print(epoch, loss.item())
        print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
        groups = opt.state_dict()["param_groups"]
        print(sorted(net.state_dict()), [sorted(g) for g in groups], groups[0]["fused"])
    """
    same(both(tmp_path, script))


def test_environment_is_the_scripts_own_when_it_imports_torch(tmp_path: Path) -> None:
    """torch is imported by the script, not before it: what the script sets beforehand still counts."""
    same(both(tmp_path, "import os, sys\nassert 'torch' not in sys.modules\nos.environ['OMP_NUM_THREADS'] = '1'\n"
              "import torch\nprint(torch.get_num_threads())"))  # fmt: skip


def test_bytecode_is_not_left_behind(tmp_path: Path) -> None:
    both(tmp_path, "print(1)")
    assert sorted(os.listdir(tmp_path / "hotlap")) == sorted(os.listdir(tmp_path / "python"))
