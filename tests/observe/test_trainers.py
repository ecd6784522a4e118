"""Loops that belong to a trainer library, watched from outside: steps, forward and evaluation are found in them."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

LIGHTNING = """
import logging, time, warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import pytorch_lightning as pl
warnings.simplefilter("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

class Lit(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
    def loss(self, batch):
        time.sleep(0.02)
        return (self.net(batch[0]) - batch[1]).square().mean()
    def training_step(self, batch, index): return self.loss(batch)
    def validation_step(self, batch, index): self.loss(batch)
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)

data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer = pl.Trainer(max_epochs=3, accelerator="cpu", **quiet)
trainer.fit(Lit(), DataLoader(data, batch_size=4), DataLoader(data, batch_size=8))
"""

TRANSFORMERS = """
import time
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

class Data(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return {"x": torch.randn(4), "labels": torch.randn(1)}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)
    def forward(self, x, labels=None):
        time.sleep(0.02)
        return {"loss": (self.net(x) - labels).square().mean(), "logits": x}

args = TrainingArguments(
    output_dir="out", num_train_epochs=3, per_device_train_batch_size=4, gradient_accumulation_steps=ACCUMULATION,
    eval_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
)
Trainer(model=Net(), args=args, train_dataset=Data(), eval_dataset=Data()).train()
"""


def written(folder: Path, script: str) -> Path:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(script))
    return path


def test_lightning(tmp_path: Path, run_script) -> None:
    pytest.importorskip("pytorch_lightning", reason="needs pytorch-lightning")
    trial = run_script(written(tmp_path, LIGHTNING), closely=True)
    assert trial.good, trial.log
    run = trial.run
    assert run.steps in (23, 24) and len(run.step_seconds) == run.steps  # it leaves its last batch's loader unasked
    assert [loader.trains for loader in run.loaders] == [True, False]
    assert run.evaluation_passes == 4  # one of them the sanity check
    assert run.share("forward") > 0.5, run.shares
    assert run.share("update") < 0.3  # though the step runs inside the optimizer's closure


@pytest.mark.parametrize("accumulation", [1, 2])
def test_transformers(tmp_path: Path, run_script, accumulation: int) -> None:
    pytest.importorskip("transformers", reason="needs transformers and accelerate")
    pytest.importorskip("accelerate", reason="needs transformers and accelerate")
    script = written(tmp_path, TRANSFORMERS.replace("ACCUMULATION", str(accumulation)))
    trial = run_script(script, closely=True)
    assert trial.good, trial.log
    run = trial.run
    assert run.steps in (24 // accumulation - 1, 24 // accumulation)
    assert [root.kind for root in run.roots] == ["Net"]
    assert run.evaluation_passes == 3 and run.share("forward") > 0.4, run.shares
