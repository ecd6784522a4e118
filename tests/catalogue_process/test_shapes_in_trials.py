"""Swapped calls of layers in real trials: the parity checks that a plan has to pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.catalogue import find
from hotlap.measure.order import Order
from hotlap.measure.parity import STEPS, judge
from hotlap.technique import Choice, Parity

LOOP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "{device}"
torch.manual_seed(0)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(1003, 16), nn.Linear(16, 1003, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.words(x))

if {words}:
    data, model = TensorDataset(torch.randint(1003, (256,)), torch.randint(1003, (256,))), Words()
else:
    data = TensorDataset(torch.randn(256, 3, 8, 8), torch.randint(4, (256,)))
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16),
                          nn.ReLU(), nn.Flatten(), nn.Linear(256, 4))
model.to(DEVICE)
optimizer = {optimizer}
for epoch in range(8):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE)).backward()
        optimizer.step()
print("statistics", [round(m.running_mean.sum().item(), 3) for m in model.modules() if isinstance(m, nn.BatchNorm2d)])
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.01)"
ON = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def failed(trials, tmp_path: Path):
    """`failed(choices, ...) -> parity checks that did not pass`."""

    def judged(choices: list[Choice], device: str, words: bool = False, optimizer: str = SGD) -> list:
        script = tmp_path / "train.py"
        script.write_text(LOOP.format(device=device, words=words, optimizer=optimizer))
        store = trials.exchange(f"shapes-{device}-{words}")

        def run(role, applied=()):
            order = Order(name=str(script), cwd=str(tmp_path), steps=STEPS, parity=role, parity_folder=store,
                          choices=[one.to_json() for one in applied])  # fmt: skip
            trial = trials.run(order)
            assert trial.parity is not None, trial.log
            assert trial.run is None or trial.run.withdrawn == []
            return trial.parity

        checks = judge(Parity.EQUIVALENT, run("reference"), run("candidate"), run("candidate", choices))
        return [check for check in checks if not check.passed]

    return judged


@pytest.mark.parametrize("device", ON)
def test_no_bias_before_norm_passes(failed, device: str) -> None:
    assert failed([Choice(find("no-bias-before-norm"), {})], device) == []


@pytest.mark.parametrize("device", ON)
def test_a_padded_vocabulary_passes(failed, device: str) -> None:
    assert failed([Choice(find("aligned-shapes"), {"multiple": 64})], device, words=True) == []


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_statistics_are_right_under_a_compiled_model(run_script, tmp_path: Path, mode: str) -> None:
    """The running means after 128 steps, with the norms inside CUDA graphs."""
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(device="cuda", words=False, optimizer=SGD))
    plain = run_script(script)
    chosen = [Choice(find("no-bias-before-norm"), {}), Choice(find("compiled-model"), {"mode": mode})]
    compiled = run_script(script, chosen, limit_seconds=300.0)
    assert compiled.good and compiled.run.withdrawn == [], compiled.log
    told = [[float(one) for one in trial.log.split("statistics [")[1].split("]")[0].split(",")]
            for trial in (plain, compiled)]  # fmt: skip
    assert told[1] == pytest.approx(told[0], rel=0.05, abs=0.05)


@pytest.mark.gpu
def test_a_large_vocabulary_is_tried_on_a_device(run_script, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP.format(device="cuda", words=True, optimizer=SGD))
    run = run_script(script).run
    assert [one.setting["multiple"] for one in find("aligned-shapes").settings(run)] == [64, 8]
