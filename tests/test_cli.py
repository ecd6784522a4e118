"""The commands as a user types them: bad input is one sentence with the next step in it, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tuning import MadeUpTimes
from waiting import PATIENCE_SECONDS
from warm import Warm

from hotlap import cli
from hotlap.measure.trial import Trials
from hotlap.observe.machine import Machine

TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1).to(device := "cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in DataLoader(data, batch_size=8):
        optimizer.zero_grad()
        loss = (model(x.to(device)) - y.to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
    print("epoch", epoch, loss.item() < 100)
"""
NEVER_TRAINS = "import torch\nprint(torch.ones(2).sum().item())\n"


def hotlap(*arguments: str, cwd: Path, **more) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hotlap", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS, **more)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refused(*arguments)` types them in this process and gives the one sentence that says why not."""

    def type_in(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["hotlap", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed, said = capfd.readouterr()
        assert (ended.value.code, printed) == (2, "")
        assert len(said.strip().split("\n")) == 1 and said.startswith("hotlap: "), said
        return said

    return type_in


@pytest.mark.parametrize("command", ["run", "profile", "tune", "verify"])
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("missing.py", None, "no file missing.py"),
        ("folder", "/", "is a folder"),
        ("empty.py", "\n\n", "is empty"),
        ("broken.py", "import torch\nfor x in\n", "broken.py line 2 is not valid Python"),
        ("bytes.py", "\0\0", "cannot be read as Python"),
        ("book.ipynb", '{"cells": []}', "is a notebook: save it as a script"),
    ],
)
def test_what_cannot_be_run(tmp_path: Path, refused, command: str, name: str, text: str | None, words: str) -> None:
    if text == "/":
        (tmp_path / name).mkdir()
    elif text is not None:
        (tmp_path / name).write_text(text)
    before = sorted(os.listdir(tmp_path))
    assert words in refused(command, name)
    assert sorted(os.listdir(tmp_path)) == before


def test_a_command_that_does_not_exist(refused) -> None:
    assert refused("tunee", "train.py").strip().endswith("Did you mean 'tune'? See `hotlap --help`")


def test_no_command_shows_the_help_and_says_no_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["hotlap"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    assert ended.value.code == 2 and "Usage: hotlap" in said.out and not said.err


never_trains = pytest.mark.parametrize(
    ("text", "words"),
    [
        (NEVER_TRAINS, "name the script that trains"),
        ("print(1)\n", "name the script that trains"),
        ("import torch\nraise ValueError('bad luck')\n", "mend that first"),
    ],
)


def is_one_sentence_at_the_end(said: str, words: str) -> None:
    last = said.strip().split("\n")[-1]
    assert last.startswith("hotlap: ") and words in last, said
    assert "site-packages/hotlap" not in said and "src/hotlap" not in said, "no traceback of ours"


@never_trains
def test_a_profile_of_what_never_trains(tmp_path: Path, warm: Warm, text: str, words: str) -> None:
    (tmp_path / "train.py").write_text(text)
    started = warm.run if "torch" in text else hotlap  # which comes with the warm one
    done = started("profile", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    is_one_sentence_at_the_end(done.stderr, words)
    assert os.listdir(tmp_path) == ["train.py"]


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)\n", "import missing_as_can_be\n"])
def test_a_profile_of_what_ends_before_torch_says_where(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    done = hotlap("profile", "train.py", cwd=tmp_path)
    assert done.returncode == 2
    is_one_sentence_at_the_end(done.stderr, "before it imported torch: mend that first")


@never_trains
def test_a_tuning_of_what_never_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], trials: Trials, text, words
) -> None:
    """Typed in this process, which has a server for its trials."""
    (tmp_path / "train.py").write_text(text)
    monkeypatch.setattr("hotlap.measure.tune.Trials", lambda: MadeUpTimes(trials, {}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hotlap", "tune", "--budget", "300s", "train.py"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    is_one_sentence_at_the_end(capfd.readouterr().err, words)
    assert os.listdir(tmp_path) == ["train.py"]


def test_run_says_so_when_nothing_trains(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(NEVER_TRAINS)
    done = warm.run("run", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2.0\n")
    assert "no optimizer made an update in this process" in done.stderr


def test_run_does_not_deny_a_training_that_updates_by_hand(tmp_path: Path, warm: Warm) -> None:
    by_hand = "for p in model.parameters():\n            p.data.sub_(0.01 * p.grad)"
    text = TRAIN.replace("optimizer.step()", by_hand).replace("optimizer.zero_grad()", "model.zero_grad()")
    (tmp_path / "train.py").write_text(text)
    done = warm.run("run", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "no training steps" not in done.stderr and "no optimizer made an update" in done.stderr
    assert "if it finds something that helps" in done.stderr  # it may have been tuned, and nothing did


def test_run_with_techniques_and_two_lines(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = hotlap("run", "--with", "fused,nhwc", "train.py", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "".join(f"epoch {i} True\n" for i in range(3))
    lines = done.stderr.strip().split("\n")
    assert len(lines) == 2 and "fused-optimizer (kind fused), channels-last" in lines[0] and "24 updates" in lines[1]
    assert lines[1].endswith(" ms apart on average, tests included")  # a tuning's steps are without these
    assert warm.run("run", "-q", "--with", "fused", "train.py", cwd=tmp_path).stderr == ""
    said = warm.run("run", "--with", "fused", "--with", "nhwc", "train.py", cwd=tmp_path).stderr
    assert "fused-optimizer (kind fused), channels-last" in said, "every name that is given counts"


def test_a_run_of_a_single_step_says_so(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("range(3)", "range(1)").replace("64, ", "8, "))
    said = warm.run("run", "--no-plan", "train.py", cwd=tmp_path).stderr
    assert said.endswith("\nhotlap: 1 update\n"), said


FAILING = [  # a script's text, and whether anything of ours had taken hold by the time it fails
    ("import torch, no_such_package\n", False),
    ("import torch\nopen('no-such-file.yaml')\n" + TRAIN, False),
    (TRAIN + "raise ValueError('bad luck')\n", True),
    (TRAIN.replace("    for x, y", "    raise ValueError('bad luck')\n    for x, y"), True),  # with all built
    ("import torch\nmodel = torch.nn.Linear(4, 1)\nmodel(torch.ones(2, 4))\nmodel(torch.ones(2, 3))\n", True),
]


@pytest.mark.parametrize(("text", "may_be_ours"), FAILING)
def test_what_fails_before_anything_of_ours_took_hold_is_not_blamed_on_it(
    tmp_path: Path, warm: Warm, text: str, may_be_ours: bool
) -> None:
    (tmp_path / "train.py").write_text(text)
    done = warm.run("run", "--with", "fused,nhwc", "train.py", cwd=tmp_path)
    blamed = "hotlap: it failed with fused-optimizer (kind fused), channels-last applied: run it with --no-plan, and if"
    assert done.returncode == 1 and [words in done.stderr for words in (blamed, "--no-plan")] == 2 * [may_be_ours]
    assert "--no-plan" not in warm.run("run", "--no-plan", "train.py", cwd=tmp_path).stderr


@pytest.mark.parametrize(("last", "may_be_ours"), [("import no_such_package", False), ("x / x.nothing", True)])
def test_what_is_written_in_memory_is_not_blamed_for_a_missing_package(
    tmp_path: Path, warm: Warm, last: str, may_be_ours: bool
) -> None:
    (tmp_path / "train.py").write_text(f"import numpy, torch\nx = torch.tensor(numpy.zeros(3))\n{last}\n")
    done = warm.run("run", "--with", "zero-copy-tensors", "train.py", cwd=tmp_path)
    assert done.returncode == 1 and ("zero-copy-tensors applied" in done.stderr) is may_be_ours, done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--with", "fussed", "train.py"], "did you mean fused-optimizer"),
        (["tune", "--budget", "soon", "train.py"], "--budget takes a time"),
        (["tune", "--allow", "all", "train.py"], "--allow takes 'different'"),
        (["run", "--wrong", "train.py"], "no such option: --wrong"),
        (["explain", "warp-drive"], "no technique called 'warp-drive'"),
        (["report", "nowhere"], "nowhere"),
        (["tune", "--report", "/proc/nowhere", "train.py"], "name another folder with --report"),
        (["tune", "--report", "train.py/inside", "train.py"], "name another folder with --report"),
        (["run", "-m", "no.such.module"], "no module no.such.module"),
        (["check", "nowhere.py"], "nowhere.py"),
        (["fix", "--plan", "hotlap.toml", "train.py"], "hotlap tune"),
        (["frobnicate"], "see `hotlap --help`"),
        (["run"], "see `hotlap run --help`"),
        (["run", ""], "the script's name is empty"),
        (["run", "--with", "", "train.py"], "no technique is named"),
        (["run", "--no-plan", "--with", "fused", "train.py"], "leave one of them out"),
        (["tune", "--budget", "0", "train.py"], "--budget takes a time"),
        (["profile", "--steps", "-5", "train.py"], "--steps"),
        (["profile", "--json", ".", "train.py"], ". is a folder: name a file in it"),
        (["fix", "nowhere.py"], "nowhere.py does not exist: check the path"),
    ],
)
def test_wrong_words(tmp_path: Path, refused, arguments: list[str], words: str) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert words.lower() in refused(*arguments).lower()


def test_help_loads_neither_torch_nor_renderers(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['hotlap', '--help']\nfrom hotlap.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = ('torch', 'numpy', 'matplotlib', 'jinja2', 'rich.markdown', 'pydantic')\n"
        "print([m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]")
    listed = "The three that matter", "profile", "tune", "run", "Three that help", "check", "fix", "env", "And the rest"
    order = [done.stdout.index(f" {name} ") for name in ("Options", "--help", *listed, "verify", "explain")]
    assert order == sorted(order)


@pytest.mark.parametrize("command", ["profile", "tune", "run", "check", "fix", "verify"])
def test_help_offers_no_flag_twice(tmp_path: Path, warm: Warm, command: str) -> None:
    said = warm.run(command, "--help", cwd=tmp_path).stdout
    assert "--help" in said and "--no-no-" not in said
    assert "--no-unsafe" not in said and "--no-accept-writes" not in said


@pytest.mark.skipif(bool(Machine.read().gpus), reason="a GPU is here")
def test_what_needs_a_gpu_says_so_before_and_after(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    done = warm.run("run", "--with", "captured-pass,tf32,fused", "train.py", cwd=tmp_path)
    first, *rest = done.stderr.strip().split("\n")
    assert "(captured-pass and tf32-matmul need a GPU, and none is seen here)" in first
    assert "no place" not in done.stderr and done.returncode == 0 and "24 updates" in rest[-1]
    (tmp_path / "train.py").write_text(NEVER_TRAINS)  # nothing to write there, for want of a GPU first of all
    done = warm.run("run", "--with", "captured-pass", "train.py", cwd=tmp_path)
    assert (
        "hotlap: captured-pass needs a GPU, and torch sees none here\n" in done.stderr and "no place" not in done.stderr
    )


def test_check_formats_and_codes(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "clean.py").write_text("x = 1\n")
    assert hotlap("check", "clean.py", cwd=tmp_path).returncode == 0
    done = warm.run("check", "--format", "json", ".", cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert {"technique", "path", "line", "column", "message", "fix"} == set(found[0])
    assert any(one["technique"] == "fused-optimizer" and one["line"] == 6 for one in found)
    sarif = json.loads(warm.run("check", "--format", "sarif", ".", cwd=tmp_path).stdout)
    assert sarif["version"] == "2.1.0" and sarif["runs"][0]["results"]
    assert "::warning file=" in warm.run("check", "--format", "github", ".", cwd=tmp_path).stdout
    assert warm.run("check", "--only", "channels-last", ".", cwd=tmp_path).returncode == 0
    (tmp_path / "bad.py").write_text("import torch\nfor\n")
    broken = warm.run("check", ".", cwd=tmp_path)
    assert broken.returncode == 2 and "bad.py" in broken.stderr and "fused-optimizer" in broken.stdout


def test_fix_diff_writes_nothing_and_fix_writes(tmp_path: Path, warm: Warm) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    done = hotlap("fix", "--unsafe", "--only", "fused", "--diff", "train.py", cwd=tmp_path)
    assert "+optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)" in done.stdout
    assert path.read_text() == TRAIN
    assert warm.run("fix", "--unsafe", "--only", "fused", "train.py", cwd=tmp_path).returncode == 0
    assert "fused=True" in path.read_text()
    assert "nothing to fix" in warm.run("fix", "train.py", cwd=tmp_path).stdout


def test_explain_speaks_and_lists(tmp_path: Path, warm: Warm) -> None:
    assert "## Why it is faster" not in hotlap("explain", cwd=tmp_path).stdout
    page = warm.run("explain", "amp", cwd=tmp_path).stdout
    assert "mixed-precision" in page and "Why it is faster" in page and ":dtype=bfloat16" in page
    rows = json.loads(warm.run("explain", "--json", cwd=tmp_path).stdout)
    assert all(set(row) == {"id", "family", "parity", "summary", "needs", "aliases", "verbs"} for row in rows)


def test_env_runs_here(tmp_path: Path, warm: Warm) -> None:
    done = warm.run("env", "--json", cwd=tmp_path)
    assert done.returncode in (0, 1)
    rows = json.loads(done.stdout)
    assert all(row["remedy"] for row in rows if row["ok"] is False)
    assert done.returncode == int(any(row["ok"] is False for row in rows))


def test_profile_json_and_exit_code(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "import sys; sys.exit(3)\n")
    done = hotlap("profile", "--json", "new/p.json", "--html", "p.html", "train.py", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    data = json.loads((tmp_path / "new" / "p.json").read_text())
    for name in (
        "steps",
        "step_seconds",
        "shares",
        "cpu_busy",
        "device_busy",
        "syncs",
        "memory",
        "layers",
        "device",
        "torch",
    ):
        assert name in data
    assert data["steps"] == 24
    assert sum(data["shares"].values()) == pytest.approx(1)
    assert set(data["shares"]) == {"wait", "copy", "forward", "backward", "update", "sync", "other"}
    assert data["syncs"] == []  # what is read between epochs is no step's
    assert "<html" in (tmp_path / "p.html").read_text()
    assert "epoch 2 True" in done.stdout


def test_profile_stops_when_told(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(TRAIN.replace("range(3)", "range(10**6)") + "print('never here')\n")
    done = warm.run("profile", "--steps", "20", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "never here" not in done.stdout and "Traceback" not in done.stderr


def test_profile_of_a_crash_reports_the_steps_so_far(tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "raise RuntimeError('late')\n")
    done = warm.run("profile", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: late" in done.stderr and "ms a step" in done.stdout.replace("us a step", "ms a step")


def test_names_may_be_given_in_several_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)

    def found(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hotlap", "check", str(tmp_path), *options])
        with pytest.raises(SystemExit):
            cli.main()
        return capsys.readouterr().out

    assert found("--only", "fused,loader-workers") == found("--only", "fused", "--only", "loader-workers")
    assert found("--skip", "fused,loader-workers") == found("--skip", "fused", "--skip", "loader-workers")
