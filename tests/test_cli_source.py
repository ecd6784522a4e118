"""`hotlap check` and `hotlap fix` as they are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap import plan as plans
from hotlap.plan import Entry, Plan

TRAIN = """import torch
from data import loader, model

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
DATA = """import torch
from torch.utils.data import DataLoader
from torchvision import datasets

model = torch.nn.Linear(4, 1)
loader = DataLoader(datasets.MNIST("x"), batch_size=8)
"""


@pytest.fixture
def hotlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / f"{tmp_path.name}-cache"))

    def called(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hotlap", *arguments], cwd=tmp_path, capture_output=True, text=True
        )

    return called


def plan_for(script: Path, *entries: Entry) -> None:
    plans.write(str(script), Plan(script.name, "", "", "", "", "", "", 1.5, 1.4, 1.6, list(entries)))


def test_of_what_could_not_be_read_nothing_is_claimed(hotlap, tmp_path: Path) -> None:
    missing = hotlap("check", "missing.py")
    assert missing.returncode == 2 and missing.stdout == "" and "missing.py does not exist" in missing.stderr
    (tmp_path / "clean.py").write_text("x = 1\n")
    assert hotlap("check", "clean.py").stdout == "nothing found\n"


def test_checking_loads_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    code = (
        "import sys; sys.argv = ['hotlap', 'check', '--no-cache', 'train.py']\nfrom hotlap.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'matplotlib', 'jinja2', 'psutil', 'rich', 'multiprocessing', 'hotlap.observe')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "fused-optimizer" in done.stdout and done.stdout.strip().endswith("[]"), done.stdout


def test_notebooks_are_named_by_cell_and_line(tmp_path: Path, hotlap) -> None:
    cells = [{"cell_type": "markdown", "source": "hello"}, {"cell_type": "code", "source": TRAIN}]
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": cells}))
    done = hotlap("check", "--only", "fused", "book.ipynb")
    assert done.returncode == 1 and "book.ipynb:cell 2:line 4: fused-optimizer:" in done.stdout
    (found,) = json.loads(hotlap("check", "--only", "fused", "--format", "json", "book.ipynb").stdout)
    assert (found["path"], found["cell"], found["line"], found["fix"]) == ("book.ipynb", 2, 4, None)


def test_the_cache_is_the_users_and_can_be_left_out(tmp_path: Path, hotlap) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    cache = tmp_path.parent / f"{tmp_path.name}-cache"
    first = hotlap("check", "--no-cache", ".")
    assert not cache.exists()
    assert hotlap("check", ".").stdout == first.stdout == hotlap("check", ".").stdout
    assert list(cache.rglob("*.json")) and sorted(os.listdir(tmp_path)) == ["train.py"]


def test_pyproject_knows_every_name_a_technique_goes_by(tmp_path: Path, hotlap) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "pyproject.toml").write_text('[tool.hotlap]\nselect = ["fused"]\n')
    assert "1 finding " in hotlap("check", ".").stdout
    (tmp_path / "pyproject.toml").write_text('[tool.hotlap]\nignore = ["fussed"]\n')
    done = hotlap("check", ".")
    assert done.returncode == 2 and "did you mean fused-optimizer" in done.stderr and done.stderr.count("\n") == 1


def test_a_plan_is_written_into_all_files_of_its_script_and_nowhere_else(tmp_path: Path, hotlap) -> None:
    for folder in (tmp_path, tmp_path / "elsewhere"):
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(TRAIN)
        (folder / "data.py").write_text(DATA)
    plan_for(
        tmp_path / "train.py",
        Entry("loader-workers", {"num_workers": 3}, 1.2),
        Entry("fused-optimizer", {}, 1.1),
        Entry("sample-cache", {}, 1.1),
    )
    done = hotlap("fix", "--plan", "hotlap.toml", "--diff", ".")
    assert '+loader = DataLoader(datasets.MNIST("x"), batch_size=8, num_workers=3)' in done.stdout
    assert "elsewhere" not in done.stdout and (tmp_path / "data.py").read_text() == DATA
    done = hotlap("fix", "--plan", "hotlap.toml")
    assert sorted(done.stdout.split("\n")) == ["", "fixed data.py", "fixed train.py"]
    assert "fused=True" in (tmp_path / "train.py").read_text()
    assert done.stderr.count("\n") == 1 and "sample-cache" in done.stderr
    assert (tmp_path / "elsewhere" / "train.py").read_text() == TRAIN
    again = hotlap("fix", "--plan", "hotlap.toml")
    assert again.stdout == "nothing to fix\n" and again.returncode == 0


def test_a_plan_measured_with_lasting_workers_is_written_with_them(tmp_path: Path, hotlap) -> None:
    script, lasting = tmp_path / "train.py", {"num_workers": 3, "persistent_workers": True}
    lines = (TRAIN.replace("from data import loader, model\n", "") + "\n").split("import torch\n", 1)[1]
    kept = ("", "loader.sampler.set_epoch(1)\n", "zip(loader, [1, 1])\n", "batch = next(iter(loader))\n")
    left = ("loader.dataset.set_epoch(1)\n", "loader.dataset.fold = 1\n", "zip(loader, loader)\n")
    left += ("batches = iter(loader)\nfor batch in loader: pass\n",)
    left += ("for batch in loader:\n    for other in loader: pass\n", "for batch in loader: next(iter(loader))\n")
    for change in (*kept, *left):
        script.write_text(DATA + lines + change)
        plan_for(script, Entry("loader-workers", lasting, 1.2))
        assert hotlap("fix", "--plan", "hotlap.toml").returncode == 0
        assert ("num_workers=3, persistent_workers=True)" in script.read_text()) is (change in kept), change
    (tmp_path / "hotlap.toml").unlink()
    script.write_text(DATA + lines)
    hotlap("fix", "--unsafe", "--only", "loader-workers", "train.py")
    assert "num_workers=4)" in script.read_text()


REPLACED = [  # what the loader has beside its data, the setting that was kept, and what is written
    ("num_workers=2", {"num_workers": 8, "replacing": 2}, "num_workers=8"),
    ("num_workers=n", {"num_workers": 8, "replacing": 2}, "num_workers=8"),
    ("num_workers=2, prefetch_factor=4", {"num_workers": 8, "replacing": 2}, "num_workers=8, prefetch_factor=4"),
    ("num_workers=2", {"num_workers": 2, "prefetch_factor": 8, "replacing": 2}, "num_workers=2, prefetch_factor=8"),
    ("num_workers=2", {"num_workers": 0, "replacing": 2}, "num_workers=0"),
    ("num_workers=2, timeout=9", {"num_workers": 0, "replacing": 2}, None),  # torch refuses it without workers
    ("num_workers=3", {"num_workers": 8, "replacing": 2}, None),
    ("num_workers=options.j", {"num_workers": 8, "replacing": 2}, None),
    ("", {"num_workers": 8, "replacing": 2}, None),
]


@pytest.mark.parametrize(("has", "setting", "written"), REPLACED)
def test_a_plan_that_replaces_a_number_changes_that_argument(tmp_path: Path, hotlap, has, setting, written) -> None:
    script = tmp_path / "train.py"
    options = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('-j', type=int, default=2)\n"
    lines = f"{options}options = parser.parse_args()\nn = 2\n{DATA.replace('batch_size=8', f'batch_size=8, {has}')}"
    script.write_text(lines)
    plan_for(script, Entry("loader-workers", setting, 1.2))
    done = hotlap("fix", "--plan", "hotlap.toml")
    assert done.returncode == 0, done.stderr
    assert script.read_text() == (
        lines.replace(f"batch_size=8, {has}", f"batch_size=8, {written}") if written else lines
    )
    assert ("its value comes from an option" in done.stderr) is (written is None)
    assert hotlap("fix", "--plan", "hotlap.toml").stdout == "nothing to fix\n"


def test_only_loaders_that_surely_gain_are_replaced_where_there_are_several(tmp_path: Path, hotlap) -> None:
    script = tmp_path / "train.py"
    photos = DATA.replace("batch_size=8", "batch_size=8, num_workers=2")
    script.write_text(photos + "def other(data):\n    return DataLoader(data, num_workers=2)\n")
    assert "loader-workers" not in hotlap("check", "--doubtful", "train.py").stdout, "that number was somebody's choice"
    plan_for(script, Entry("loader-workers", {"num_workers": 8, "replacing": 2}, 1.2))
    assert hotlap("fix", "--plan", "hotlap.toml").returncode == 0
    assert "batch_size=8, num_workers=8)" in script.read_text() and "(data, num_workers=2)" in script.read_text()


def test_without_a_path_or_a_plan_there_is_nothing_to_fix(hotlap) -> None:
    done = hotlap("fix")
    assert done.returncode == 2 and "--plan" in done.stderr


def test_nothing_is_written_that_needs_a_package_nobody_installed(tmp_path: Path, hotlap) -> None:
    text = "def shuffle(x, g):\n    N, C, H, W = x.size()\n"
    text += "    return x.view(N, g, C // g, H, W).permute(0, 2, 1, 3, 4).reshape(N, C, H, W)\n"
    (tmp_path / "net.py").write_text("import torch\n" + text)
    hidden = "import sys; sys.argv = ['hotlap', 'fix', '--unsafe', 'net.py', *sys.argv[1:]]"
    code = f"{hidden}\nimport importlib.util as u; f = u.find_spec\n"
    code += "u.find_spec = lambda name, *rest: None if name == 'einops' else f(name, *rest)\n"
    code += "from hotlap.cli import main\nmain()"

    def fixed(*more: str) -> str:
        return subprocess.run([sys.executable, "-c", code, *more], cwd=tmp_path, capture_output=True, text=True).stderr

    assert fixed() == "" and "needs einops, which is not installed" in fixed("--only", "einops")
    assert (tmp_path / "net.py").read_text() == "import torch\n" + text
    (tmp_path / "einops.py").write_text("")  # there now
    hotlap("fix", "--unsafe", "net.py")
    assert "rearrange(x" in (tmp_path / "net.py").read_text()


def test_a_plan_writes_what_was_doubtful_before_it_was_measured(tmp_path: Path, hotlap) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TRAIN.replace("from data import loader, model", "from data import loader\nmodel = torch.nn.Linear(4, 1)")
    )
    assert hotlap("fix", "--unsafe", "train.py").returncode == 0 and "fused=True" not in script.read_text()
    plan_for(script, Entry("fused-optimizer", {}, 1.2))
    assert hotlap("fix", "--plan", "hotlap.toml").returncode == 0 and "fused=True" in script.read_text()


def test_a_plan_does_not_vouch_for_other_code_than_it_has_measured(tmp_path: Path, hotlap) -> None:
    script = tmp_path / "train.py"
    text = TRAIN + (
        "def attend(q, k, v):\n    return torch.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v\n"
    )
    script.write_text(text)
    (tmp_path / "data.py").write_text(DATA)
    plan_for(script, Entry("fused-attention", {}, 1.2), Entry("fused-optimizer", {}, 1.2))
    done = hotlap("fix", "--plan", "hotlap.toml")
    assert done.returncode == 0 and "fused-attention is left out" in done.stderr and "no place" not in done.stderr
    assert script.read_text() == text.replace("lr=0.01", "lr=0.01, fused=True")
    done = hotlap("fix", "--plan", "hotlap.toml", "--unsafe")
    assert "left out" not in done.stderr and "scaled_dot_product_attention" in script.read_text()
