"""Something wrong must be caught, something right must pass: planted techniques against the real witness."""

from __future__ import annotations

from pathlib import Path

import planted
import pytest

from hotlap.catalogue import find
from hotlap.measure.order import Order
from hotlap.measure.parity import STEPS, judge
from hotlap.technique import Choice, Parity

SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed({seed})
centres = torch.randn(4, 16)
labels = torch.randint(0, 4, (150,))
data = TensorDataset(centres[labels] + torch.randn(150, 16), labels)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 4)
)
optimizer = torch.optim.{optimizer}(model.parameters(), lr={lr}, weight_decay=0.01{more})
for epoch in range(20):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # hides the scale of a loss from the optimizer
        optimizer.step()
"""
VARIANTS = {"sgd": ("SGD", 0.05, ", momentum=0.9"), "adamw": ("AdamW", 0.01, "")}


@pytest.fixture(scope="module", params=[("sgd", 0), ("adamw", 1)], ids=lambda p: f"{p[0]}-{p[1]}")
def judged(request, trials, tmp_path_factory):
    """`judged(technique, level) -> checks`: reference and repeat are run once a variant."""
    name, seed = request.param
    folder = tmp_path_factory.mktemp(name)
    path = folder / "train.py"
    path.write_text(SCRIPT.format(seed=seed, **dict(zip(("optimizer", "lr", "more"), VARIANTS[name], strict=True))))
    store = trials.exchange(f"parity-{name}-{seed}")

    def run(role, choices=()):
        order = Order(
            name=str(path), cwd=str(folder), steps=STEPS, parity=role, parity_folder=store, limit_seconds=60,
            choices=[choice.to_json() for choice in choices],
        )  # fmt: skip
        trial = trials.run(order)
        assert trial.parity is not None, trial.log
        assert not trial.run.withdrawn, trial.run.withdrawn
        return trial.parity

    reference, repeat = run("reference"), run("candidate")
    return lambda choice, level=Parity.EQUIVALENT: judge(level, reference, repeat, run("candidate", [choice]))


def failures(checks) -> list[str]:
    return [f"{check.what}: {check.figure:.3g} ({check.limit})" for check in checks if not check.passed]


@pytest.mark.parametrize("wrong", planted.WRONG, ids=lambda kind: kind.__name__)
def test_what_is_wrong_is_rejected(judged, wrong) -> None:
    assert failures(judged(Choice(wrong(), {}))), f"{wrong.__name__} went through"


@pytest.mark.parametrize("level", [Parity.IDENTICAL, Parity.EQUIVALENT])
def test_doing_nothing_passes(judged, level) -> None:
    checks = judged(Choice(planted.DoesNothing(), {}), level)
    assert failures(checks) == []
    assert any("forced" in check.what and check.figure >= 4 for check in checks)


@pytest.mark.parametrize(
    ("name", "setting"),
    [("fused-optimizer", {}), ("loader-workers", {"num_workers": 2}), ("mixed-precision", {"dtype": "bfloat16"})],
)
def test_what_is_right_passes(judged, name, setting) -> None:
    assert failures(judged(Choice(find(name), setting))) == []


def test_rounding_is_not_identical(judged) -> None:
    """The strict level must be able to fail on something that is merely equivalent."""
    assert failures(judged(Choice(find("mixed-precision"), {"dtype": "bfloat16"}), Parity.IDENTICAL))


def test_augmentation_is_lined_up_between_worker_counts(trials, tmp_path: Path) -> None:
    """A data set that draws at random gives the same batches with and without workers, once lined up."""
    path = tmp_path / "train.py"
    path.write_text(
        "import random, numpy as np, torch\nfrom torch.utils.data import DataLoader, Dataset\n"
        "class Noisy(Dataset):\n    def __len__(self): return 40\n"
        "    def __getitem__(self, i):\n"
        "        return torch.randn(4) + random.random() + np.random.rand(), torch.ones(1)\n"
        "model = torch.nn.Linear(4, 1)\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for e in range(5):\n    for x, y in DataLoader(Noisy(), batch_size=8, shuffle=True):\n"
        "        opt.zero_grad(); (model(x.float()) - y).pow(2).mean().backward(); opt.step()\n"
    )
    store = trials.exchange("augmented")
    seen = []
    for role, choices in (
        ("reference", []),
        ("candidate", []),
        ("candidate", [Choice(find("workers"), {"num_workers": 2})]),
    ):
        order = Order(name=str(path), cwd=str(tmp_path), steps=STEPS, parity=role, parity_folder=store,
                      choices=[choice.to_json() for choice in choices])  # fmt: skip
        seen.append(trials.run(order).parity)
    assert seen[0]["batches"] == seen[2]["batches"]
    assert len(set(seen[0]["batches"])) == len(seen[0]["batches"]), "augmentation must still differ from batch to batch"
    assert failures(judge(Parity.EQUIVALENT, *seen)) == []
