"""What may be reused of an earlier tuning, and what not: whole tunings of a script that mostly sleeps, one of them
killed in the middle, then with one thing changed at a time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotlap.measure import sandbox

pytestmark = pytest.mark.skipif(sandbox.available() is not None, reason="trials cannot be protected here")
HERE = Path(__file__).parent

SCRIPT = """
import sys, time, torch
import pauses

torch.set_num_threads(1)  # two would wait for each other on a busy machine
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.arange(64) % 2)
for epoch in range(10**6):
    for x, y in torch.utils.data.DataLoader(rows, batch_size=4):
        time.sleep(pauses.SECONDS)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def start(folder: Path, *arguments: str, tuning: Path = HERE / "tuning.py", **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(tuning), str(folder / "report"), "train.py", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=os.environ | variables, **pipes)  # type: ignore[call-overload,no-any-return]


def tune(folder: Path, *arguments: str, **wishes: Any) -> tuple[dict[str, Any], list[str]]:
    process = start(folder, *arguments, **wishes)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    *said, report = out.splitlines()
    return json.loads(report), said


def run(said: list[str]) -> list[str]:
    """Trials that were really run, beside the script as it is."""
    roles = ("screen: ", "parity: ", "confirm: ", "ablation: ")
    return [line for line in said if line.startswith(roles) and ", known" not in line]


def write(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pauses.py").write_text("SECONDS = 0.04\n")
    return folder


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], list[str]]:
    """A tuning that was killed in the middle of its proof, and the one that went on from there."""
    folder = write(tmp_path_factory.mktemp("known") / "project")
    killed = start(folder)
    assert killed.stdout is not None
    first = []
    for line in killed.stdout:
        first.append(line.strip())
        if line.startswith("confirm"):
            break
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    report, said = tune(folder)
    return folder, report, [*first, "---", *said]


@pytest.fixture
def again(tuned: tuple[Path, dict[str, Any], list[str]]) -> Path:
    """The same folder: what a test changes in it is its own. Where it lies is part of the conditions."""
    folder = tuned[0]
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield folder
    shutil.rmtree(folder)
    kept.rename(folder)


def test_a_killed_tuning_goes_on_where_it_stopped(tuned) -> None:
    _, report, said = tuned
    first, second = said[: said.index("---")], said[said.index("---") + 1 :]
    before_pairs = [line for line in run(first) if not line.startswith("confirm")]
    assert {line.split(":")[0] for line in before_pairs} == {"screen", "ablation", "parity"}, said
    assert not [line for line in run(second) if line.startswith(("screen", "parity"))], second
    assert [line for line in run(second) if line.startswith("confirm")], "the proof was not finished, so it is run"
    assert report["kept"][0]["technique"] == "sleeps-less" and report["confirmed"]
    assert report["reused_trials"] == len(before_pairs)
    assert any("trials known from" in line and "--fresh" in line for line in second), second


def test_earlier_cost_is_told_apart_and_paid_back_too(tuned) -> None:
    _, report, _ = tuned
    saved = report["before_seconds"] - report["after_seconds"]
    assert report["earlier_seconds"] > 0
    total = report["cost_seconds"] + report["earlier_seconds"]
    assert report["payback_steps"] == pytest.approx(total / saved, rel=0.05)


def test_nothing_changed_and_nothing_but_the_script_is_run(again: Path) -> None:
    report, said = tune(again)
    assert run(said) == []
    assert report["confirmed"] and report["kept"][0]["technique"] == "sleeps-less"
    assert report["parity"] and any("--fresh measures it again" in caveat for caveat in report["caveats"])
    assert {trial["role"] for trial in report["trials"] if not trial["reused"]} == {"baseline"}
    assert any(trial["role"] == "confirm" and trial["reused"] for trial in report["trials"])
    reasons = {one["technique"]: one["reason"] for one in report["rejected"]}
    assert "planted to fail" in reasons["breaks"]


def first_screening(folder: Path, *arguments: str, **wishes: Any) -> str:
    """What was said of the first trial. On record once the next is heard of; the rest is not waited for."""
    process = start(folder, *arguments, **wishes)
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        if said:
            break
        said += [line] if line.startswith("screen: ") else []
    process.kill()
    process.communicate(timeout=60)
    return said[0]


@pytest.mark.parametrize("change", ["nothing", "script", "module", "argument", "variable", "fresh"])
def test_what_rests_on_something_that_changed_is_measured_anew(again: Path, change: str) -> None:
    arguments, variables = [], {}
    if change == "script":
        (again / "train.py").write_text(SCRIPT + "\n# another script\n")
    elif change == "module":
        (again / "pauses.py").write_text("SECONDS = 0.0400001\n")
    elif change == "argument":
        arguments = ["--again"]
    elif change == "variable":
        variables = {"OMP_NUM_THREADS": "1"}
    elif change == "fresh":
        variables = {"FRESH": "1"}
    assert ("known" in first_screening(again, *arguments, **variables)) == (change == "nothing")


def test_a_changed_settings_file_is_noticed(again: Path) -> None:
    (again / "settings.yaml").write_text("rate: 1")
    arguments = ["--settings=settings.yaml"]
    assert "known" not in first_screening(again, *arguments)
    assert "known" in first_screening(again, *arguments)
    (again / "settings.yaml").write_text("rate: 2")
    assert "known" not in first_screening(again, *arguments)


def test_a_changed_technique_is_measured_anew(again: Path, tmp_path: Path) -> None:
    for name in ("tuning.py", "planted.py"):
        shutil.copy(HERE / name, tmp_path)
    elsewhere = {"tuning": tmp_path / "tuning.py", "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}"}
    assert "known" in first_screening(again, **elsewhere), "the same content at another place is the same technique"
    with open(tmp_path / "planted.py", "a") as file:
        file.write("\n# changed\n")
    assert "known" not in first_screening(again, **elsewhere)


def test_a_torn_line_costs_that_line_only(again: Path) -> None:
    record = again / "report" / "trials.jsonl"
    lines = record.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if '"level"' in line)
    record.write_text("\n".join([lines[first][:200], *lines[:first], *lines[first + 1 :]]) + '\n{"key": "torn')
    _, said = tune(again)
    measured = {tuple(line.split(": ")[:2]) for line in run(said)}
    looks = {one for one in measured if one[0] == "ablation"}  # a little more noise in it may ask for second looks
    assert measured - looks == {("screen", "3 techniques together")}
    assert all(json.loads(line) for line in record.read_text().splitlines())


def test_where_nothing_can_be_kept_the_tuning_goes_on_and_says_so(tmp_path: Path) -> None:
    folder = write(tmp_path / "project")
    (folder / "report" / "trials.jsonl").mkdir(parents=True)
    report, _ = tune(folder)
    assert report["confirmed"]
    assert any("could not be kept for the next tuning" in caveat for caveat in report["caveats"])
