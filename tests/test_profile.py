"""`hotlap profile` on scripts whose anatomy is known because they sleep, wait, leak and die where it is written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS, comes_true
from warm import Warm

HEAD = """
import os, signal, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __init__(self, seconds): self.seconds = seconds
    def __len__(self): return 16
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(4), torch.ones(1)

class Net(nn.Module):
    def __init__(self, seconds=0.0):
        super().__init__()
        self.linear, self.seconds = nn.Linear(4, 1), seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return self.linear(x)

class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        time.sleep(ctx.seconds)
        return grad, None

class SlowSGD(torch.optim.SGD):
    seconds = 0.0
    def step(self, closure=None):
        time.sleep(self.seconds)
        return super().step(closure)
"""

# A sleep that the clock shows and nobody waits for: what is real beside it, on any machine, is next to nothing.
SKIPPED = """
real, skipped = time.perf_counter, [0.0]
def skip(seconds): skipped[0] += 10 * seconds
def clock(): return real() + skipped[0]
for name, module in list(sys.modules.items()):
    if name.startswith("hotlap.") and getattr(module, "clock", None) is real: module.clock = clock
time.perf_counter = clock
class time: sleep = skip  # the script's alone: others do sleep
"""
# As a profile looks where the machine lets it finish its looks in time.
LEISURELY = """
import hotlap.observe.leaks
hotlap.observe.leaks._SECONDS = 60.0
"""


COMMAND = ("profile", "-q", "--json", "p.json")


def start(folder: Path, script: str, *options: str) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(HEAD + textwrap.dedent(script))
    command = [sys.executable, "-m", "hotlap", *COMMAND, *options, "train.py"]
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


@pytest.fixture
def profile(warm: Warm, tmp_path: Path) -> Callable[..., dict]:
    def profiled(script: str, *options: str, code: int = 0) -> dict:
        (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(script))
        done = warm.run(*COMMAND, *options, "train.py", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return {**json.loads((tmp_path / "p.json").read_text()), "stdout": done.stdout, "stderr": done.stderr}

    return profiled


def line_of(folder: Path, text: str) -> int:
    lines = (folder / "train.py").read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return found


def test_shares_within_five_points_of_the_truth(profile) -> None:
    """Slept: 16 in the draw, 8 in forward, 20 in backward, 12 in the update, 24 between."""
    found = profile(
        SKIPPED
        + textwrap.dedent("""
        loader, model = DataLoader(Slow(0.008), batch_size=2), Net(0.008)
        optimizer = SlowSGD(model.parameters(), lr=0.1)
        optimizer.seconds = 0.012
        for epoch in range(4):
            for x, y in loader:
                loss = (SlowBackward.apply(model(x), 0.020) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(0.024)
        """),
        "--steps",
        "0",
    )
    truth = {"wait": 8, "copy": 0, "forward": 4, "backward": 10, "update": 6, "sync": 0, "other": 12}
    for name, part in truth.items():
        assert found["shares"][name] == pytest.approx(part / 40, abs=0.05), found["shares"]
    assert found["steps"] == 32 and found["bound"]["by"] == "unknown"  # too short for a closer look


@pytest.mark.alone
def test_data_bound_with_workers_says_what_a_batch_is_made_of(profile) -> None:
    found = profile(
        """
        loader, model = DataLoader(Slow(0.010), batch_size=4, num_workers=1), Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(8):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
        """,
    )
    assert found["bound"]["by"] == "data" and found["shares"]["wait"] > 0.8
    feeding = found["feeding"]
    assert feeding["queue_empty"] > 0.5 and feeding["batch_samples"] == 4
    largest = feeding["makings"][0]
    assert (largest["path"], largest["line"]) == ("train.py", 11)  # the sleep in __getitem__
    assert largest["seconds"] == pytest.approx(feeding["batch_seconds"], rel=0.2)


def test_evaluation_is_told_apart(profile) -> None:
    found = profile(
        SKIPPED
        + textwrap.dedent("""
        loader, valid, model = DataLoader(Slow(0.001), batch_size=2), DataLoader(Slow(0.006), batch_size=2), Net(0.002)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(4):
            for x, y in loader:
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                for x, y in valid: model(x).sum().item()
        """),
        "--steps",
        "0",
    )
    assert found["evaluation_passes"] == 4
    assert found["evaluation_seconds"] == pytest.approx(10 * 4 * 8 * 0.014, rel=0.25)
    assert found["evaluation_shares"]["wait"] == pytest.approx(12 / 14, abs=0.05)
    assert found["shares"]["wait"] == pytest.approx(0.5, abs=0.1)
    reads = [sync for sync in found["syncs"] if sync["kind"] == "item"]
    assert [(sync["count"], sync["evaluation_count"]) for sync in reads] == [(0, 32)]


def test_waits_have_their_lines_and_how_often(tmp_path: Path, profile) -> None:
    found = profile(
        """
        loader, model = DataLoader(Slow(0.0), batch_size=2), Net(0.001)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(4):
            for index, (x, y) in enumerate(loader):
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                value = loss.item()  # every step
                both = float(loss) + loss.detach().tolist()  # twice a step
                if index % 8 == 0: print(loss)  # now and then
        """,
    )
    found_at = {(sync["line"], sync["kind"]): (sync["count"], sync["steps"]) for sync in found["syncs"]}
    assert found_at[line_of(tmp_path, "# every step"), "item"] == (32, 32)
    assert found_at[line_of(tmp_path, "# twice a step"), "float"] == (32, 32)
    assert found_at[line_of(tmp_path, "# twice a step"), "tolist"] == (32, 32)
    assert found_at[line_of(tmp_path, "# now and then"), "print"] == (4, 4)


@pytest.mark.parametrize(
    "leak",
    ["kept.append(loss)  # here", "total = total + loss  # here", "kept.append((epoch, y - model(x)))  # here"],
)
def test_a_leak_has_its_line(tmp_path: Path, profile, leak: str) -> None:
    found = profile(
        LEISURELY
        + textwrap.dedent(f"""
        loader, model = DataLoader(Slow(0.0), batch_size=2), Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept, total = [], 0.0
        for epoch in range(1000):
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                {leak}
        """),
        "--steps",
        "40",
    )
    assert [(one["path"], one["line"]) for one in found["growth"]] == [("train.py", line_of(tmp_path, "# here"))]


def test_no_leak_is_seen_where_there_is_none(profile) -> None:
    found = profile(
        LEISURELY
        + textwrap.dedent("""
        loader, model = DataLoader(Slow(0.0), batch_size=2), Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        losses = []
        for epoch in range(1000):
            for x, y in loader:
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        """),
        "--steps",
        "40",
    )
    assert [one for one in found["growth"] if one["path"]] == []
    assert found["layers"] and found["look"].startswith("a closer look")


TRAINS_ON = """
loader, model = DataLoader(Slow(0.0), batch_size=2), Net(0.002)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range({epochs}):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    if epoch == 2: print("third epoch is done", flush=True)
{after}
"""


@pytest.mark.parametrize(
    ("after", "code", "ending"),
    [
        ("os._exit(7)", 7, "left by os._exit(7)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "out of memory"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "died of signal 11 (segmentation fault)"),
        ("raise RuntimeError('late')", 1, "raised: RuntimeError: late"),
        ("sys.exit(5)", 5, "exit: 5"),
    ],
)
def test_every_ending_leaves_the_report_of_the_steps_so_far(profile, after: str, code: int, ending: str) -> None:
    found = profile(TRAINS_ON.format(epochs=3, after=after), code=code)
    assert found["steps"] in (23, 24) and ending.split()[0] in found["ending"]
    assert "a step" in found["stdout"]


def test_ctrl_c_leaves_the_report_of_the_steps_so_far(tmp_path: Path) -> None:
    process = start(tmp_path, TRAINS_ON.format(epochs=10**6, after=""), "--steps", "0")
    assert process.stdout is not None
    while "third epoch" not in process.stdout.readline():
        pass
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    found = json.loads((tmp_path / "p.json").read_text())
    assert process.returncode == 130, err
    assert found["steps"] >= 24 and "KeyboardInterrupt" in found["ending"] and "a step" in out


def test_the_training_is_bit_equal_under_a_profile(tmp_path: Path, profile, warm: Warm) -> None:
    """With its closer look in the midst of it, dropout and all."""
    script = """
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 32), nn.Dropout(0.3), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(15):
        for x, y in DataLoader(Slow(0.0), batch_size=2, shuffle=True):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
    torch.save((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()), sys.argv[1])
    """
    import torch

    profile(script.replace("sys.argv[1]", "'watched.pt'"), "--steps", "0")
    (tmp_path / "plain.py").write_text((tmp_path / "train.py").read_text().replace("watched.pt", "plain.pt"))
    assert warm.run_script(tmp_path / "plain.py", cwd=tmp_path).returncode == 0
    one, other = (torch.load(tmp_path / name, weights_only=False) for name in ("watched.pt", "plain.pt"))
    assert str(one) == str(other)
    assert all(torch.equal(one[0][name], other[0][name]) for name in other[0])
    assert torch.equal(one[2], other[2])


def test_trace_and_comparison(tmp_path: Path, profile, warm: Warm) -> None:
    profile(TRAINS_ON.format(epochs=3, after=""), "--trace", "t.json", "--warmup", "2")
    (tmp_path / "p.json").rename(tmp_path / "before.json")
    spans = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(span["name"] == "backward" for span in spans) == 24
    found = profile(TRAINS_ON.format(epochs=3, after=""), "--compare", "before.json")
    assert "forward" in found["stdout"] and "before" in found["stdout"]
    missing = warm.run(*COMMAND, "--compare", "nowhere.json", "train.py", cwd=tmp_path)
    assert "nowhere.json" in missing.stderr and missing.returncode == 2


def test_children_that_train_are_left_alone(profile) -> None:
    script = """
    import multiprocessing
    def fold(number):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(3):
            for x, y in DataLoader(Slow(0.0), batch_size=2):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
        print("fold", number, "done", flush=True)
    for number in range(2):
        child = multiprocessing.get_context("fork").Process(target=fold, args=(number,))
        child.start()
        child.join()
        print("exit", child.exitcode, flush=True)
    fold(9)
    """
    found = profile(script, "--steps", "10")
    assert [line for line in found["stdout"].splitlines() if line.startswith(("fold", "exit"))] == [
        "fold 0 done",
        "exit 0",
        "fold 1 done",
        "exit 0",
    ]
    assert found["steps"] == 10 and "Traceback" not in found["stderr"]


def test_a_folder_with_names_of_ours_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for name in ("statistics.py", "hotlap.py", "dataclasses.py"):
        (tmp_path / "here" / name).write_text("raise RuntimeError('not yours')")
    (tmp_path / "train.py").write_text(HEAD + TRAINS_ON.format(epochs=3, after=""))
    hotlap = Path(sys.executable).with_name("hotlap")
    done = subprocess.run(
        [hotlap, "profile", "-q", "../train.py"], cwd=tmp_path / "here", text=True, capture_output=True
    )
    assert done.returncode == 0 and "a step" in done.stdout, done.stderr


def test_what_a_scheduler_sends_reaches_the_script(tmp_path: Path) -> None:
    process = start(tmp_path, TRAINS_ON.format(epochs=10**6, after=""), "--steps", "0")
    assert process.stdout is not None
    while "third epoch" not in process.stdout.readline():
        pass
    process.terminate()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 143 and json.loads((tmp_path / "p.json").read_text())["steps"] >= 16
    assert comes_true(lambda: subprocess.run(["pgrep", "-s", str(process.pid)], capture_output=True).returncode == 1)


def test_the_verdict_speaks_of_the_same_steps_as_the_table(profile) -> None:
    """A first step of a second would turn it, were warm-up not left out of both."""
    script = SKIPPED + TRAINS_ON.replace("for epoch", "time.sleep(0)\nfor epoch").replace(
        "optimizer.zero_grad()", "optimizer.zero_grad()\n        if epoch == 0: time.sleep(0.2)"
    )
    found = profile(script.format(epochs=6, after=""), "--warmup", "8", "--steps", "0")
    assert found["shares"]["other"] < 0.5 and found["bound"]["by"] != "python"
