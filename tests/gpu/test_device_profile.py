"""`hotlap profile` on a device whose work has a known length: torch's own sleep kernel."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

HEAD = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

def cycles_a_ms():
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda._sleep(10**7)
    marks[0].record(); torch.cuda._sleep(10**8); marks[1].record()
    torch.cuda.synchronize()
    return 10**8 / marks[0].elapsed_time(marks[1])

CYCLES = cycles_a_ms()
def work(ms): torch.cuda._sleep(int(ms * CYCLES))

class Data(Dataset):
    def __init__(self, seconds=0.0): self.seconds = seconds
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.ones(8), torch.ones(1)

class Net(nn.Module):
    def __init__(self, ms=0.0):
        super().__init__()
        self.linear, self.ms = nn.Linear(8, 1), ms
    def forward(self, x):
        work(self.ms)
        return self.linear(x)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, ms):
        ctx.ms = ms
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        work(ctx.ms)
        return grad, None

class SlowSGD(torch.optim.SGD):
    ms = 0.0
    def step(self, closure=None):
        work(self.ms)
        return super().step(closure)
"""


def profile(folder: Path, script: str, *options: str) -> dict:
    (folder / "train.py").write_text(HEAD + textwrap.dedent(script))
    command = [sys.executable, "-m", "hotlap", "profile", "-q", "--json", "p.json", *options, "train.py"]
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "p.json").read_text())
    print(json.dumps({key: found[key] for key in ("shares", "device_shares", "device_idle", "bound", "step_seconds")}))
    return found


def line_of(folder: Path, text: str) -> int:
    lines = (folder / "train.py").read_text().splitlines()
    (found,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return found


LOOP = """
loader, model = DataLoader(Data({slept}), batch_size=2), Net({forward}).cuda()
optimizer = SlowSGD(model.parameters(), lr=0.1)
optimizer.ms = {update}
for epoch in range(50):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        loss = (Backward.apply(model(x), {backward}) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        {after}
"""


def test_device_shares_within_five_points_of_the_truth(tmp_path: Path) -> None:
    script = LOOP.format(slept=0, forward=4, backward=8, update=4, after="value = loss.item()  # waits")
    found = profile(tmp_path, script, "--steps", "60")
    truth = {"wait": 0, "copy": 0, "forward": 4 / 16, "backward": 8 / 16, "update": 4 / 16, "sync": 0, "other": 0}
    for name, part in truth.items():
        assert found["device_shares"][name] == pytest.approx(part, abs=0.05), found["device_shares"]
    assert found["step_seconds"] == pytest.approx(0.016, rel=0.1)
    assert found["device_idle"] < 0.1
    wait = max(found["syncs"], key=lambda sync: sync["seconds"])
    assert (wait["path"], wait["line"], wait["kind"]) == ("train.py", line_of(tmp_path, "# waits"), "item")
    assert wait["count"] == wait["steps"] == found["steps"]
    assert found["shares"]["sync"] > 0.8  # the host has nothing else to do


def test_bound_by_data(tmp_path: Path) -> None:
    found = profile(tmp_path, LOOP.format(slept=0.006, forward=2, backward=1, update=1, after=""), "--steps", "40")
    assert found["bound"]["by"] == "data", found["bound"]
    assert found["shares"]["wait"] > 0.7 and found["device_idle"] == pytest.approx(1 - 4 / 13, abs=0.1)


def test_bound_by_the_device(tmp_path: Path) -> None:
    found = profile(tmp_path, LOOP.format(slept=0, forward=4, backward=4, update=2, after=""), "--steps", "60")
    assert found["bound"]["by"] in ("compute", "memory"), found["bound"]
    assert found["step_seconds"] == pytest.approx(0.010, rel=0.1)


def test_bound_by_launches(tmp_path: Path) -> None:
    after = "for _ in range(600): loss = loss + 1"
    found = profile(tmp_path, LOOP.format(slept=0, forward=0.1, backward=0.1, update=0.1, after=after), "--steps", "60")
    assert found["bound"]["by"] == "launch", found["bound"]
    assert found["device_idle"] > 0.3


def test_bound_by_waits(tmp_path: Path) -> None:
    """9 ms on the device, 4 on the host, and never both at once."""
    after = "value = loss.item(); time.sleep(0.004)"
    found = profile(tmp_path, LOOP.format(slept=0, forward=3, backward=3, update=3, after=after), "--steps", "60")
    assert found["bound"]["by"] == "sync", found["bound"]
    assert found["device_idle"] == pytest.approx(4 / 13, abs=0.1)


def test_every_kind_of_wait_has_its_line(tmp_path: Path) -> None:
    found = profile(
        tmp_path,
        """
        loader, model = DataLoader(Data(), batch_size=2), Net(1).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(50):
            for index, (x, y) in enumerate(loader):
                x = x.cuda()  # pageable
                y = y.to("cuda")
                out = model(x)
                loss = (out - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                a = loss.cpu()  # cpu
                b = out.detach().to("cpu")  # moved
                c = loss.tolist()  # tolist
                d = out.nonzero()  # nonzero
                e = torch.nonzero(out)  # function
                f = out[out > 0]  # mask
                if loss > 0: pass  # branch
                g = f"{loss:.3f}"  # text
                torch.cuda.synchronize()  # explicit
                if index % 16 == 0: h = loss.item()  # rarely
        """,
        "--steps",
        "48",
    )
    rows = {(sync["line"], sync["kind"]): sync for sync in found["syncs"]}
    expected = {"# pageable": "pageable copy", "# cpu": "cpu", "# moved": "cpu", "# tolist": "tolist"}
    expected |= {"# nonzero": "nonzero", "# function": "nonzero", "# mask": "boolean index", "# branch": "if"}
    expected |= {"# text": "print", "# explicit": "synchronize"}
    for text, kind in expected.items():
        row = rows[line_of(tmp_path, text), kind]
        assert row["count"] == row["steps"] == found["steps"], (text, row)
    rare = rows[line_of(tmp_path, "# rarely"), "item"]
    assert rare["steps"] == 3


def test_memory_is_what_it_is_made_of(tmp_path: Path) -> None:
    found = profile(
        tmp_path,
        """
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        kept = []
        for step in range(200):
            x = torch.randn(2048, 1024, device="cuda")
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            kept.append(torch.ones(256, 1024, device="cuda"))  # grows
        """,
        "--steps",
        "64",
    )
    memory, weights = found["memory"], 4 * (1024 * 4096 * 2 + 4096 + 1024)
    assert memory["weights"] == memory["gradients"] == weights
    assert memory["optimizer_state"] == pytest.approx(2 * weights, rel=0.01)
    activations = 4 * 2048 * (1024 + 4096 + 1024)
    assert memory["activations"] == pytest.approx(activations, rel=0.5)
    assert memory["peak"] >= sum(memory[name] for name in ("weights", "optimizer_state", "activations"))
    (growth,) = found["growth"]
    assert growth["line"] == line_of(tmp_path, "# grows")
    assert growth["bytes_a_step"] == pytest.approx(4 * 256 * 1024, rel=0.1)
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert layers["0"]["flops"] == pytest.approx(2 * 2 * 2048 * 1024 * 4096, rel=0.01)  # its input wants no gradient
    assert layers["2"]["flops"] == pytest.approx(3 * 2 * 2048 * 1024 * 4096, rel=0.01)
    assert layers["2"]["bound"] == "compute" and layers["1"]["bound"] == "memory"


def test_workers_that_touch_tensors_are_left_alone(tmp_path: Path) -> None:
    """Forked from a process whose device is already in use."""
    found = profile(
        tmp_path,
        """
        class Moves(Data):
            def __getitem__(self, index):
                return torch.ones(8).to(torch.float64).float(), torch.ones(1) * torch.ones(1).item()
        model = Net(0.5).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(50):
            for x, y in DataLoader(Moves(), batch_size=2, num_workers=2, pin_memory=True):
                loss = (model(x.cuda(non_blocking=True)) - y.cuda(non_blocking=True)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        """,
        "--steps",
        "64",
    )
    assert found["steps"] == 64 and found["syncs"] == []  # copies from pinned memory wait for nothing
    assert {worker["number"] for worker in found["feeding"]["workers"]} == {0, 1}
