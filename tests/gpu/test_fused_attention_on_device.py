"""Attention written by hand, made one kernel on a device: as written and compiled, with a causal and a padding mask,
dropout, in every precision; and the same training."""

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
LENGTH, WIDTH = 128, 256

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out, self.dropout = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Dropout(DROPOUT)
        self.register_buffer("mask", torch.tril(torch.ones(LENGTH, LENGTH)))

    def forward(self, x, padding):
        q, k, v = (one.unflatten(-1, (8, -1)).transpose(1, 2) for one in self.mix(x).chunk(3, dim=-1))
        scores = (q @ k.transpose(-2, -1)) / q.size(-1) ** 0.5
        scores = scores.masked_fill(self.mask == 0, float("-inf")) + padding
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return self.out((weights @ v).transpose(1, 2).contiguous().flatten(2))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(100, WIDTH), nn.LayerNorm(WIDTH)
        self.layers, self.head = nn.ModuleList(Attention() for _ in range(3)), nn.Linear(WIDTH, 100)

    def forward(self, ids):
        x, padding = self.embed(ids), (ids == 0)[:, None, None].float() * -1e9
        for layer in self.layers:
            x = x + layer(self.norm(x), padding)
        return self.head(x)

model = Net().cuda()
ids = torch.randint(1, 100, (512, LENGTH))
ids[::3, 90:] = 0
ids[::5, :4] = 0  # rows that see nothing at all
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for (x,) in DataLoader(TensorDataset(ids), batch_size=32, shuffle=True):
        optimizer.zero_grad()
        with torch.autocast("cuda", getattr(torch, "DTYPE"), enabled="DTYPE" != "float32"):
            out = model(x.cuda())
        loss = nn.functional.cross_entropy(out[:, :-1].flatten(0, 1).float(), x[:, 1:].flatten().cuda(), ignore_index=0)
        loss.backward()
        optimizer.step()
print("loss", loss.item(), "finite", all(torch.isfinite(p).all().item() for p in model.parameters()))
"""
FUSED = Choice(find("fused-attention"), {})
COMPILED = Choice(find("compiled-model"), {"mode": "default", "part": "model"})


@pytest.fixture(params=["float32", "bfloat16"])
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("DROPOUT", "0.0").replace("DTYPE", request.param))
    return path


@pytest.mark.parametrize("choices", [[FUSED], [FUSED, COMPILED]], ids=["as written", "compiled"])
def test_it_is_the_same_training(check_same, script: Path, choices: list[Choice]) -> None:
    check_same(script, choices)


def test_with_dropout_the_weights_stay_finite(run_script, script: Path) -> None:
    script.write_text(script.read_text().replace("nn.Dropout(0.0)", "nn.Dropout(0.1)"))
    for choices in ([], [FUSED], [FUSED, COMPILED]):
        trial = run_script(script, choices, limit_seconds=400.0)
        assert trial.good and trial.run.withdrawn == [] and "finite True" in trial.log, trial.log
        assert not choices or FUSED.technique.seen(trial.run) is not False
        median = sorted(trial.run.step_seconds)[len(trial.run.step_seconds) // 2]
        print([str(one) for one in choices], f"{1e3 * median:.2f} ms a step")
