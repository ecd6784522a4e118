"""Compiled models on a device: every mode, block by block, the last batch, outputs that are kept, and what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.catalogue import find
from hotlap.technique import Choice

pytestmark = pytest.mark.gpu

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block(64) for _ in range(6)), nn.Linear(64, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

model = Net().cuda()
data = TensorDataset(torch.randn(1000, 64), torch.randint(0, 10, (1000,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
kept, total = [], 0.0
for epoch in range(6):
    model.train()
    for x, y in DataLoader(data, batch_size=64, shuffle=True):  # the last batch has 40
        optimizer.zero_grad()
        out = model(x.cuda())
        loss = nn.functional.cross_entropy(out, y.cuda())
        loss.backward()
        optimizer.step()
        kept.append((out.detach(), out.detach().clone()))
    model.eval()
    with torch.no_grad():
        total += model(data.tensors[0].cuda()).sum().item()
print("kept is as it was", all(torch.equal(one, other) for one, other in kept))
print("keys", sorted(model.state_dict())[:2], any("_compiled_call_impl" in vars(m) for m in Net().modules()))
"""
MODES = [("default", "model"), ("reduce-overhead", "model"), ("default", "block"), ("max-autotune", "model")]
CHOICES = [Choice(find("compiled-model"), {"mode": mode, "part": part}) for mode, part in MODES]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_it_is_compiled_once_and_what_is_kept_stays(run_script, script: Path, choice: Choice) -> None:
    trial = run_script(script, [choice], limit_seconds=400.0)
    assert trial.good and trial.run.withdrawn == [], trial.log
    assert choice.technique.seen(trial.run) is True
    assert "kept is as it was True" in trial.log
    assert 1 <= trial.run.compiled.graphs <= 2 and trial.run.compiled.breaks == []
    assert trial.run.compiled_at and max(trial.run.compiled_at) < 16, "the smaller last batch compiles nothing"
    print(choice, "|", trial.run.compiled, "|", sorted(trial.run.step_seconds)[len(trial.run.step_seconds) // 2],
          "s a step,", max(trial.run.step_seconds), "s the longest")  # fmt: skip


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_it_is_the_same_training(check_same, script: Path, choice: Choice) -> None:
    check_same(script, [choice])


def test_settings_on_a_device(run_script, script: Path) -> None:
    run = run_script(script).run
    tried = [(one.setting["mode"], one.setting["part"]) for one in find("compiled-model").settings(run)]
    assert tried[:3] == [("reduce-overhead", "model"), ("default", "model"), ("default", "block")]
