"""What may be reused of an earlier tuning, and what not: whole tunings, one of them killed in the middle, then with
one thing changed at a time. What trials take is made up."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tuning
from tuning import Spoken

from hotlap.measure import sandbox
from hotlap.measure.trial import Trials

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


def tune(
    server: Trials, folder: Path, *arguments: str, fresh: bool = False, listener: Spoken | None = None
) -> tuple[dict[str, Any], list[str]]:
    listener = listener or Spoken()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        report = tuning.tune(server, str(folder / "report"), ["train.py", *arguments], listener, fresh)
    return report, listener.lines


def run(said: list[str]) -> list[str]:
    """Trials that were really run, beside the script as it is."""
    roles = ("screen: ", "parity: ", "confirm: ", "ablation: ")
    return [line for line in said if line.startswith(roles) and ", known" not in line]


def write(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "pauses.py").write_text("SECONDS = 0.0\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def as_nothing_was_compiled() -> Iterator[None]:
    """Torch sets this when it first compiles in a process, which some other test may have done."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        yield


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, trials: Trials) -> tuple[Path, dict[str, Any], list[str]]:
    """A tuning that was killed in the middle of its proof, and the one that went on from there."""
    folder = write(tmp_path_factory.mktemp("known") / "project")
    command = [sys.executable, str(HERE / "tuning.py"), str(folder / "report"), "train.py"]
    first = []
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            first.append(line.strip())
            if line.startswith("confirm"):
                break
        killed.send_signal(signal.SIGKILL)
    report, said = tune(trials, folder)
    return folder, report, [*first, "---", *said]


@pytest.fixture
def again(tuned: tuple[Path, dict[str, Any], list[str]]) -> Iterator[Path]:
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


def test_nothing_changed_and_nothing_but_the_script_is_run(trials: Trials, again: Path) -> None:
    report, said = tune(trials, again)
    assert run(said) == []
    assert report["confirmed"] and report["kept"][0]["technique"] == "sleeps-less"
    assert report["parity"] and any("--fresh measures it again" in caveat for caveat in report["caveats"])
    assert {trial["role"] for trial in report["trials"] if not trial["reused"]} == {"baseline"}
    assert any(trial["role"] == "confirm" and trial["reused"] for trial in report["trials"])
    reasons = {one["technique"]: one["reason"] for one in report["rejected"]}
    assert "planted to fail" in reasons["breaks"]


class Heard(BaseException):
    """Enough of it."""


def first_screening(server: Trials, folder: Path, *arguments: str, fresh: bool = False) -> str:
    """What was said of the first trial. On record once the next begins; the rest is not waited for."""

    def stop(said: list[str]) -> None:
        if any(line.startswith("screen: ") for line in said):
            raise Heard

    listener = Spoken(stop)
    with pytest.raises(Heard):
        tune(server, folder, *arguments, fresh=fresh, listener=listener)
    return next(line for line in listener.lines if line.startswith("screen: "))


@pytest.mark.parametrize("change", ["nothing", "script", "module", "argument", "variable", "fresh"])
def test_what_rests_on_something_that_changed_is_measured_anew(
    trials: Trials, again: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    if change == "script":
        (again / "train.py").write_text(SCRIPT + "\n# another script\n")
    elif change == "module":
        (again / "pauses.py").write_text("SECONDS = 0.00001\n")
    elif change == "variable":
        monkeypatch.setenv("OMP_SCHEDULE", "static")
    arguments = ["--again"] if change == "argument" else []
    said = first_screening(trials, again, *arguments, fresh=change == "fresh")
    assert ("known" in said) == (change == "nothing")


def test_a_changed_settings_file_is_noticed(trials: Trials, again: Path) -> None:
    (again / "settings.yaml").write_text("rate: 1")
    arguments = ["--settings=settings.yaml"]
    assert "known" not in first_screening(trials, again, *arguments)
    assert "known" in first_screening(trials, again, *arguments)
    (again / "settings.yaml").write_text("rate: 2")
    assert "known" not in first_screening(trials, again, *arguments)


def test_a_changed_technique_is_measured_anew(
    trials: Trials, again: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(HERE / "planted.py", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "planted", raising=False)
    assert "known" in first_screening(trials, again), "the same content at another place is the same technique"
    assert sys.modules["planted"].__file__ == str(tmp_path / "planted.py")
    with open(tmp_path / "planted.py", "a") as file:
        file.write("\n# changed\n")
    assert "known" not in first_screening(trials, again)


def test_a_torn_line_costs_that_line_only(trials: Trials, again: Path) -> None:
    record = again / "report" / "trials.jsonl"
    lines = record.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if '"level"' in line)
    record.write_text("\n".join([lines[first][:200], *lines[:first], *lines[first + 1 :]]) + '\n{"key": "torn')
    _, said = tune(trials, again)
    measured = {tuple(line.split(": ")[:2]) for line in run(said)}
    assert measured == {("screen", "3 techniques together")}
    assert all(json.loads(line) for line in record.read_text().splitlines())


def test_where_nothing_can_be_kept_the_tuning_goes_on_and_says_so(trials: Trials, tmp_path: Path) -> None:
    folder = write(tmp_path / "project")
    (folder / "report" / "trials.jsonl").mkdir(parents=True)
    report, _ = tune(trials, folder)
    assert report["confirmed"]
    assert any("could not be kept for the next tuning" in caveat for caveat in report["caveats"])
