"""The example scripts run to the end, write only where they are told to, and repeat themselves with the same seed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS, comes_true
from warm import Warm

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# arguments that keep a run to a few steps, and the file each script leaves
SMALL = {
    "photos": (["--epochs", "2", "--limit", "72", "--batch-size", "16"], "--checkpoint", "model.pt"),
    "chars": (["--epochs", "2", "--limit", "8000", "--sample", "20"], None, None),
    "gan": (["--epochs", "2", "--limit", "128"], "--samples", "samples.png"),
    "good": (["--epochs", "2", "--limit", "160", "--batch-size", "32"], None, None),
}


def files_under(folder: Path) -> set[tuple[str, int]]:
    return {(str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def run(name: str, folder: Path, seed: int, warm: Warm | None = None) -> str:
    arguments, option, file = SMALL[name]
    told = [option, str(folder / file)] if option else []
    words = ["--data", str(folder / "data"), *arguments, *told, "--seed", str(seed)]
    script = EXAMPLES / f"{name}.py"
    if warm:
        done = warm.run_script(script, *words, cwd=folder)
    else:
        command = [sys.executable, str(script), *words]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3 * PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[str]:
    return re.findall(r"^epoch .*$", output, re.MULTILINE)


@pytest.mark.parametrize("name", SMALL)
def test_runs_repeats_itself_and_keeps_to_its_places(name, tmp_path, warm):
    before = files_under(EXAMPLES)
    first = run(name, tmp_path, seed=3)
    made = files_under(tmp_path / "data")
    second = run(name, tmp_path, 3, warm)

    assert len(losses(first)) == 2 and "loss" in losses(first)[0]
    assert losses(first) == losses(second)

    file = SMALL[name][2]
    assert {path.name for path in tmp_path.iterdir()} == {"data"} | ({file} if file else set())
    assert made and files_under(tmp_path / "data") == made  # made once, then only read
    assert files_under(EXAMPLES) == before
    if name == "gan":
        assert losses(run(name, tmp_path, 4, warm)) != losses(first), "another seed is another training"


def test_scripts_know_nothing_of_what_is_done_with_them():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert [path.stem for path in scripts] == sorted(SMALL)
    for path in scripts:
        text = path.read_text()
        assert "hotlap" not in text.lower()
        assert "sleep" not in text


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_first_run_that_is_interrupted_leaves_no_data(tmp_path):
    command = [sys.executable, str(EXAMPLES / "photos.py"), "--data", str(tmp_path / "data")]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert comes_true(lambda: list(tmp_path.glob("data.*/*/0003.jpg")))
        process.send_signal(signal.SIGINT)
        process.wait(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
        process.wait()
    assert list(tmp_path.iterdir()) == []
