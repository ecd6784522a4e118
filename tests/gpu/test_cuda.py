"""What only a CUDA device can show: trials forked from a server that never touched it, techniques and parity on it."""

from __future__ import annotations

from pathlib import Path

import planted
import pytest

from hotlap.catalogue import find
from hotlap.technique import Choice

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 3, 16, 16), torch.randint(0, 10, (512,)))
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
    torch.nn.Conv2d(32, 64, 3, stride=2, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 64, 10),
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(4):
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
state = optimizer.state_dict()
print("kept", state["param_groups"][0]["fused"], {k: str(v.device) for k, v in state["state"][0].items()})
"""
CHOICES = [
    Choice(find("fused-optimizer"), {}),
    Choice(find("channels-last"), {}),
    Choice(find("mixed-precision"), {"dtype": "bfloat16"}),
    Choice(find("mixed-precision"), {"dtype": "float16"}),
    Choice(find("tf32-matmul"), {}),
    Choice(find("cudnn-benchmark"), {}),
    Choice(find("compiled-model"), {"mode": "reduce-overhead"}),
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_trials_follow_one_another_on_the_device(run_script, script: Path) -> None:
    for _ in range(3):
        trial = run_script(script)
        assert trial.good, trial.log
        assert (trial.run.device, trial.run.steps) == ("cuda", 64)
        assert trial.run.device_capability >= (7, 0)
        assert sum(trial.run.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_each_technique_is_seen_when_applied(run_script, script: Path, choice: Choice) -> None:
    plain, applied = run_script(script), run_script(script, [choice])
    assert plain.good and applied.good, applied.log
    assert applied.run.withdrawn == []
    assert choice.technique.seen(plain.run) is False
    assert choice.technique.seen(applied.run) is True
    assert plain.log.split("kept")[1] == applied.log.split("kept")[1], "the checkpoint is as python would have it"


@pytest.fixture(scope="module")
def judged(held_against, tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "train.py"
    path.write_text(SCRIPT)
    held = held_against(path)
    return lambda choice: held([choice])


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_what_is_right_passes(judged, choice: Choice) -> None:
    assert [check for check in judged(choice) if not check.passed] == []


@pytest.mark.parametrize(
    "wrong", [planted.DoubledLearningRate, planted.LossNotUnscaled, planted.ShuffledLabels, planted.WrongWeightDecay]
)
def test_what_is_wrong_is_rejected(judged, wrong) -> None:
    assert [check for check in judged(Choice(wrong(), {})) if not check.passed]
