"""End to end through the command line: tune, then run, then fix, on a script with one honest mistake. What is
checked is the shape and the honesty of the result, never how fast it was: what trials take is made up."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

from hotlap import evidence as proofs
from hotlap import plan as plans
from hotlap.catalogue import TECHNIQUES
from hotlap.measure import sandbox, scratch
from hotlap.plan import Plan

pytestmark = pytest.mark.skipif(sandbox.available() is not None, reason="trials cannot be protected here")

SCRIPT = """
import os, sys, torch
import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

HERE = os.path.dirname(os.path.abspath(__file__))
PHOTOS = os.path.join(HERE, "photos")
if not os.path.exists(PHOTOS):
    os.makedirs(PHOTOS)
    noise = np.random.default_rng(0)
    for i in range(12):
        pixels = noise.integers(0, 256, (200, 200, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"{PHOTOS}/{i}.jpg", quality=95)

class Photos(Dataset):
    def __init__(self):
        self.paths = sorted(os.path.join(PHOTOS, name) for name in os.listdir(PHOTOS))
    def __len__(self):
        return len(self.paths)
    def __getitem__(self, i):
        image = Image.open(self.paths[i]).convert("RGB").resize((8, 8), Image.NEAREST)
        return torch.from_numpy(np.asarray(image).astype("float32") / 255).flatten(), i % 2

torch.manual_seed(0)
model = torch.nn.Linear(192, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10**6):
    for x, y in DataLoader(Photos(), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with open(os.path.join(HERE, "log.txt"), "a") as log:
        log.write(f"{epoch} {loss.item()}\\n")
torch.save(model.state_dict(), os.path.join(HERE, "model.pt"))
"""


TUNE = """
from hotlap import cli
from hotlap.measure.trial import Trials
from tuning import made_up
with Trials() as trials, made_up(trials, sample_cache=8.0): cli.main()
"""


def hotlap(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-c", TUNE] if arguments[0] == "tune" else ["-m", "hotlap"]), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS)


def contents(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "train.py", "0"], cwd=folder, check=True)
    os.unlink(folder / "model.pt")
    before = contents(folder)
    done = hotlap(
        "tune", "--budget", "120s", "--report", "report", "--only", "sample-cache,fused", "train.py", cwd=folder
    )
    return folder, before, done


def test_the_mistake_is_found_and_proven(tuned) -> None:
    folder, _, done = tuned
    assert done.returncode == 0, done.stderr + done.stdout
    report = json.loads((folder / "report" / "report.json").read_text())
    assert [kept["technique"] for kept in report["kept"]] == ["sample-cache"], done.stdout
    assert report["confirmed"] and report["speedup"]["low"] > 1.01
    assert report["parity"] and all(check["passed"] for check in report["parity"])
    assert report["a_against_a"] is not None and report["cost_seconds"] > 0 and report["payback_steps"] > 0
    names = {one["technique"] for one in report["not_tried"] + report["rejected"] + report["kept"]}
    assert names == {technique.id for technique in TECHNIQUES}, (
        "every technique is kept, rejected or said not to be tried"
    )
    assert all(trial["step_seconds"] for trial in report["trials"])
    assert plans.read(str(folder / "train.py")).entries[0].technique == "sample-cache"


def test_the_folder_is_as_it_was(tuned) -> None:
    folder, before, _ = tuned
    after = {name: digest for name, digest in contents(folder).items() if not name.startswith("report/")}
    assert after.pop("hotlap.toml") and after.pop("hotlap.proof.json")
    assert after == before


def test_run_applies_the_plan_and_trains_the_same(tuned) -> None:
    folder, _, _ = tuned
    results = []
    for command in ([sys.executable], [sys.executable, "-m", "hotlap", "run"]):
        done = subprocess.run(
            [*command, "train.py", "4"], cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == 0, done.stderr
        results.append(((folder / "log.txt").read_text(), (folder / "model.pt").read_bytes(), done.stderr))
        os.unlink(folder / "log.txt")
        os.unlink(folder / "model.pt")
    assert results[0][:2] == results[1][:2]
    assert "sample-cache" in results[1][2]


def test_fix_writes_the_plan_into_the_source(tuned) -> None:
    folder, _, _ = tuned
    done = hotlap("fix", "--plan", "hotlap.toml", "--diff", "train.py", cwd=folder)
    assert "+from hotlap.parts.image_cache import cached_open" in done.stdout
    assert 'cached_open(self.paths[i]).convert("RGB")' in done.stdout


def test_the_report_is_rendered_again(tuned) -> None:
    folder, _, _ = tuned
    for format, words in (
        ("text", "sample-cache"),
        ("md", "# "),
        ("tex", "booktabs"),
        ("html", "<html"),
        ("json", "{"),
    ):
        assert words in hotlap("report", "report", "--format", format, cwd=folder).stdout, format


def test_tune_writes_the_evidence_down(tuned) -> None:
    folder, _, _ = tuned
    report = json.loads((folder / "report" / "report.json").read_text())
    data = json.loads((folder / "hotlap.proof.json").read_text())
    assert data["version"] == 1 and len(data["proof"]) == 1
    proof = data["proof"][0]
    assert proof["script"] == "train.py" and proof["arguments"] == ""
    assert proof["fingerprint"] == plans.fingerprint(str(folder / "train.py"))
    assert proof["facts"] == report["facts"] and proof["facts"]["hotlap"] and proof["facts"]["date"]
    assert proof["parity"] == report["parity"] and all(check["passed"] for check in proof["parity"])
    assert proof["speedup"] == report["speedup"] and proof["a_against_a"] == report["a_against_a"]
    assert [kept["technique"] for kept in proof["plan"]] == ["sample-cache"] and proof["plan"] == report["kept"]
    assert len(proof["script_seconds"]) == len(proof["plan_seconds"]) >= 3
    assert min(proof["script_seconds"]) > max(proof["plan_seconds"])
    assert proof["forced_steps"] >= 2 and proof["seeds"]
    assert proofs.read(str(folder / "train.py")).proves(plans.read(str(folder / "train.py")))


def test_what_was_tuned_is_verified_and_nothing_is_touched(tuned) -> None:
    folder, _, _ = tuned
    before = contents(folder)
    done = hotlap("verify", "train.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "still the same training" in done.stdout and "FAILED" not in done.stdout
    lines = done.stdout.splitlines()
    for check in proofs.read(str(folder / "train.py")).parity:
        name = check.what.split(", of ")[0]
        assert any(name in line and check.limit.split()[-1] in line for line in lines), (name, done.stdout)
    assert any(line.split()[:3] == ["changed", "since", "nothing"] for line in lines), done.stdout
    assert contents(folder) == before


@pytest.mark.parametrize("moment", ["first the script as it is", "as it is"])
def test_interrupted_before_anything_is_known_it_says_so_and_leaves_no_trace(tmp_path: Path, moment: str) -> None:
    (tmp_path / "train.py").write_text("import torch, time\ntime.sleep(1000)\n")
    before, report = contents(tmp_path), tmp_path.parent / "none"
    stopped = subprocess.Popen(
        [sys.executable, "-m", "hotlap", "tune", "--report", str(report), "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in stopped.stdout:
        if line.startswith(moment):
            break
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=PATIENCE_SECONDS)
    assert stopped.returncode == 130, err
    assert err.startswith("hotlap: stopped before ") and err.count("\n") == 1
    assert contents(tmp_path) == before and not report.exists()
    assert not glob.glob(os.path.join(tempfile.gettempdir(), f"{scratch.PREFIX}{stopped.pid}-*"))


def test_interrupted_it_leaves_the_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "train.py", "0"], cwd=tmp_path, check=True)
    plan = Plan("train.py", "x", "", "2026-01-01", "a machine", "2.13.0", "cpu", 2.0, 1.9, 2.1, [])
    plans.write(str(tmp_path / "train.py"), plan)
    before = contents(tmp_path)
    tuning = subprocess.Popen(
        [sys.executable, "-c", TUNE, "tune", "--budget", "300s", "--report", str(tmp_path.parent / "r"), "train.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for line in tuning.stdout:
        if "screening" in line:
            break
    tuning.send_signal(signal.SIGINT)
    _, err = tuning.communicate(timeout=PATIENCE_SECONDS)
    assert tuning.returncode == 130, err
    assert "Traceback" not in err
    assert contents(tmp_path) == before, "and an older plan stays"
