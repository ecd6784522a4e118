"""A technique that only source can express is tried as `run` would apply it: in the modules, in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted import HalfBatches, Planted

from hotlap.measure.candidates import Candidate, Skipped, consider
from hotlap.observe.run import Run
from hotlap.source.fix import finds_a_place
from hotlap.technique import Choice

DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8)
"""
LOOP = """
import torch
from data import loader
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(DATA)
    (tmp_path / "train.py").write_text(LOOP)
    return tmp_path / "train.py"


def test_it_is_written_into_a_module_of_the_script(run_script, script: Path) -> None:
    plain, halved = run_script(script), run_script(script, [Choice(HalfBatches(), {"batch_size": 2})])
    assert (plain.run.steps, halved.run.steps) == (24, 96)
    assert halved.run.withdrawn == [] and halved.good
    assert (script.parent / "data.py").read_text() == DATA


def test_what_finds_no_place_is_withdrawn(run_script, script: Path) -> None:
    (script.parent / "data.py").write_text(DATA.replace("batch_size=8", "batch_size=16"))
    trial = run_script(script, [Choice(HalfBatches(), {})])
    assert trial.run.withdrawn == ["half-batches found no place in this script's source"]


def test_where_it_finds_no_place_no_trial_is_spent_on_it(script: Path) -> None:
    assert finds_a_place(HalfBatches(), str(script))  # in the module that the script imports
    (script.parent / "data.py").write_text(DATA.replace("batch_size=8", "batch_size=16"))
    assert not finds_a_place(HalfBatches(), str(script))


def test_it_is_a_candidate_where_it_says_what_it_could_save(run_script, script: Path) -> None:
    class OnlyWrites(Planted):
        settings = Planted.__mro__[1].settings
        spot, rewrite = HalfBatches.spot, HalfBatches.rewrite

    run: Run = run_script(script).run
    assert isinstance(consider(HalfBatches(), run), Candidate)
    skipped = consider(OnlyWrites(), run)
    assert isinstance(skipped, Skipped) and "only be written into source" in skipped.reason
