"""The pre-commit hooks and the GitHub Action of this repository, run as those two would run them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parent.parent
SLOW = """import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in torch.utils.data.DataLoader(data, num_workers=2):
    optimizer.zero_grad(set_to_none=False)
    torch.nn.functional.mse_loss(model(x), y, size_average=True).backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one script, and this hotlap on the PATH."""
    programs, folder = tmp_path / "bin", tmp_path / "project"
    programs.mkdir()
    folder.mkdir()
    shim(programs / "hotlap")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "pre-commit"))
    (folder / "train.py").write_text(SLOW)
    (folder / "clean.py").write_text("import torch\n")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    return folder


def shim(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hotlap "$@"\n')
    path.chmod(0o755)


def git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True, capture_output=True)


def hook(project: Path, name: str, *files: str) -> subprocess.CompletedProcess[str]:
    """What pre-commit makes of a hook that this repository offers."""
    hooks = project.parent / "hooks"
    if not hooks.exists():
        hooks.mkdir()
        shutil.copy(ROOT / ".pre-commit-hooks.yaml", hooks)
        git(hooks, "init", "--quiet")
        git(hooks, "add", ".")
        git(hooks, "commit", "--quiet", "-m", "hooks")
    command = [sys.executable, "-m", "pre_commit", "try-repo", str(hooks), name, "--verbose", "--files", *files]
    return subprocess.run(command, cwd=project, capture_output=True, text=True)


def test_the_hooks_run_with_no_environment_of_their_own(project: Path) -> None:
    pytest.importorskip("pre_commit")
    done = hook(project, "hotlap-check", "train.py", "clean.py")
    assert done.returncode == 1 and "train.py:6:5: grads-to-none" in done.stdout, done.stdout + done.stderr
    done = hook(project, "hotlap-check", "clean.py")
    assert done.returncode == 0 and "Passed" in done.stdout, done.stdout + done.stderr
    done = hook(project, "hotlap-fix", "train.py", "clean.py")
    assert done.returncode == 1 and "files were modified" in done.stdout, done.stdout + done.stderr
    assert "size_average" not in (project / "train.py").read_text()
    assert hook(project, "hotlap-fix", "train.py", "clean.py").returncode == 0
    made = [path.name for path in (project.parent / "pre-commit").glob("*/py_env*")]
    assert made == [], "an environment was made, which would hold torch"


def action() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Its inputs at their defaults, and its steps."""
    said = yaml.safe_load((ROOT / "action.yml").read_text())
    return {name: str(one["default"]) for name, one in said["inputs"].items()}, said["runs"]["steps"]


def run_step(step: dict[str, Any], inputs: dict[str, str], project: Path) -> subprocess.CompletedProcess[str]:
    """One step as a runner would: its text in bash, with the inputs put into its variables."""
    assert step["shell"] == "bash"
    given = {name: put_in(str(value), inputs) for name, value in step.get("env", {}).items()}
    places = {"RUNNER_TEMP": str(project.parent / "runner"), "GITHUB_ACTION_PATH": str(ROOT)}
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", put_in(step["run"], inputs)],
        cwd=project,
        env={**os.environ, **places, **given, "PATH": path},
        capture_output=True,
        text=True,
    )


def put_in(text: str, inputs: dict[str, str]) -> str:
    for name, value in inputs.items():
        text = text.replace(f"${{{{ inputs.{name} }}}}", value)
    assert "${{" not in text, "an expression that is no input"
    return text


def test_the_action_annotates_and_writes_sarif(project: Path) -> None:
    defaults, (_, checking) = action()
    shim(project.parent / "runner" / "hotlap" / "bin" / "hotlap")
    done = run_step(checking, defaults, project)
    assert done.returncode == 1 and "::warning file=train.py,line=6" in done.stdout, done.stdout + done.stderr
    done = run_step(checking, {**defaults, "sarif": "found.sarif", "arguments": "--only grads-to-none"}, project)
    log = json.loads((project / "found.sarif").read_text())
    assert done.returncode == 1 and [one["ruleId"] for one in log["runs"][0]["results"]] == ["grads-to-none"]
    done = run_step(checking, {**defaults, "path": "clean.py train.py", "arguments": "--only sample-cache"}, project)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    done = run_step(checking, {**defaults, "path": "nowhere.py", "sarif": "none.sarif"}, project)
    assert done.returncode == 2 and "nowhere.py" in done.stderr


def test_no_input_is_pasted_into_shell_text() -> None:
    """What somebody gives as a path would be run as a command there."""
    assert all("${{" not in step["run"] for step in action()[1])


@pytest.mark.skipif("HOTLAP_INDEX" not in os.environ, reason="HOTLAP_INDEX says that packages can be had; .ci/run does")
def test_the_action_installs_no_torch(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults, (installing, checking) = action()
    monkeypatch.delenv("PYTHONPATH")
    done = run_step(installing, defaults, project)
    assert done.returncode == 0, done.stderr
    python = project.parent / "runner" / "hotlap" / "bin" / "python"
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True)
    names = {one["name"] for one in json.loads(listed.stdout)}
    assert "hotlap" in names and not names & {"torch", "numpy", "matplotlib"}
    done = run_step(checking, {**defaults, "sarif": "found.sarif"}, project)
    assert done.returncode == 1 and "::warning file=train.py" in done.stdout, done.stdout + done.stderr
    assert (project / "found.sarif").stat().st_size
