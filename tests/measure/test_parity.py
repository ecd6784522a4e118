"""Something wrong must be caught, something right must pass: planted techniques against the real witness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import planted
import pytest
from networks import BY_HAND, NETWORKS, UNSTEADY, script
from waiting import PATIENCE_SECONDS

from hotlap.catalogue import find
from hotlap.measure.order import Order
from hotlap.measure.parity import STEPS, judge, may_be_rounding
from hotlap.technique import Choice, Parity

SEEDS = 5


class Judging:
    """Runs a network and seed as it is once for each role, and holds what is asked against it."""

    def __init__(self, trials, folder: Path) -> None:
        self._trials, self._folder = trials, folder
        self._runs: dict[tuple[str, str], dict] = {}
        self.steady: list = []  # by what a steady network is held to, where that failed

    def __call__(self, network: str, seed: int, *choices: Choice, level=Parity.EQUIVALENT):
        path = self._folder / f"{network}-{seed}.py"
        path.write_text(script(network, seed))
        reference = self._once(path, "reference")
        repeat = self._once(path, "candidate") if level is Parity.IDENTICAL else reference  # else nobody looks at it
        tolerance = max((choice.technique.batch_tolerance for choice in choices), default=0.0)
        evidence = reference, repeat, self._run(path, "candidate", choices), tolerance
        checks = judge(level, *evidence)
        if level is Parity.IDENTICAL or not failures(checks) or not may_be_rounding(checks):
            return checks
        self.steady = checks
        return judge(level, *evidence, self._once(path, "shaken"))

    def _once(self, path: Path, role: str) -> dict:
        """The script as it is."""
        if (path.stem, role) not in self._runs:
            self._runs[path.stem, role] = self._run(path, role)
        return self._runs[path.stem, role]

    def _run(self, path: Path, role, choices=()):
        order = Order(
            name=str(path), cwd=str(self._folder), steps=STEPS, parity=role, limit_seconds=PATIENCE_SECONDS,
            parity_folder=self._trials.exchange(path.stem), choices=[choice.to_json() for choice in choices],
        )  # fmt: skip
        trial = self._trials.run(order)
        assert trial.parity is not None, trial.log
        assert not trial.run.withdrawn, trial.run.withdrawn
        return trial.parity


@pytest.fixture(scope="module")
def judged(trials, tmp_path_factory) -> Judging:
    return Judging(trials, tmp_path_factory.mktemp("networks"))


def failures(checks) -> list[str]:
    return [f"{check.what}: {check.figure:.3g} ({check.limit})" for check in checks if not check.passed]


def figure(checks, what: str):
    return next((check for check in checks if what in check.what), None)


# Each fault meets another seed on each network; bench/faults.py takes every fault over every seed.
FAULTS = [
    pytest.param(network, (row + column) % SEEDS, wrong, id=f"{wrong.__name__}-{network}")
    for row, wrong in enumerate(planted.WRONG)
    for column, network in enumerate(NETWORKS)
    if network in wrong.applies_to
]


@pytest.mark.parametrize(("network", "seed", "wrong"), FAULTS)
def test_what_is_wrong_is_rejected(judged, network, seed, wrong) -> None:
    assert failures(judged(network, seed, Choice(wrong(), {}))), f"{wrong.__name__} went through"


@pytest.mark.parametrize("level", [Parity.IDENTICAL, Parity.EQUIVALENT])
def test_doing_nothing_passes(judged, level) -> None:
    checks = judged("mlp", 0, Choice(planted.DoesNothing(), {}), level=level)
    assert failures(checks) == []
    assert figure(checks, "forced").figure >= 4
    assert figure(checks, "draws") is None, "the same draws need no second look"


RIGHT = [("fused-optimizer", {}), ("loader-workers", {"num_workers": 2}), ("mixed-precision", {"dtype": "bfloat16"})]


@pytest.mark.parametrize(("name", "setting"), RIGHT)
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_right_passes(judged, network, name, setting) -> None:
    assert failures(judged(network, 1, Choice(find(name), setting))) == []


@pytest.mark.parametrize("seed", range(3))
def test_rounding_may_move_what_is_not_steady(judged, seed) -> None:
    checks = judged(UNSTEADY, seed, Choice(find("mixed-precision"), {"dtype": "bfloat16"}))
    assert failures(judged.steady) and failures(checks) == []
    assert 0.96 <= figure(checks, "gradient length").figure <= 1.04


@pytest.mark.parametrize(
    "wrong", [one for one in planted.WRONG if "mlp" in one.applies_to and "Dropout" not in one.__name__]
)
def test_what_is_wrong_is_rejected_where_nothing_is_steady(judged, wrong) -> None:
    assert failures(judged(UNSTEADY, 0, Choice(wrong(), {}))), f"{wrong.__name__} went through"


@pytest.mark.parametrize("network", BY_HAND)
@pytest.mark.parametrize("choice", [Choice(planted.DoesNothing(), {}), Choice(find("amp"), {"dtype": "bfloat16"})])
def test_what_is_right_passes_where_weights_are_updated_by_hand(judged, network, choice) -> None:
    checks = judged(network, 1, choice)
    assert failures(checks) == []
    assert figure(checks, "forced").figure >= 3


@pytest.mark.parametrize("network", BY_HAND)
@pytest.mark.parametrize(
    "wrong", [planted.LossSlightlyScaled, planted.LabelSmoothing, planted.DropoutLeftOut, planted.DropoutWeakerInside]
)
def test_what_is_wrong_is_rejected_where_weights_are_updated_by_hand(judged, network, wrong) -> None:
    checks = judged(network, 1, Choice(wrong(), {}))
    assert figure(checks, "forced").figure >= 3, "for want of a comparison all would be rejected"
    assert failures(checks), f"{wrong.__name__} went through"


def test_an_optimizer_that_is_built_late_takes_over(trials, tmp_path: Path) -> None:
    """Gradients were looked at before, as to find a learning rate; that looked like updates by hand."""
    path = tmp_path / "late.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))\n"
        "x, y = torch.randn(6, 4), torch.randint(0, 2, (6,))\n"
        "for _ in range(12):\n"
        "    nn.functional.cross_entropy(model(x), y).backward()\n"
        "optimizer = torch.optim.Adam(model[2].parameters(), lr=0.01)\n"
        f"for step in range({2 * STEPS}):\n"
        "    optimizer.zero_grad()\n"
        "    nn.functional.cross_entropy(model(x), y).backward()\n"
        "    optimizer.step()\n"
    )
    judging = Judging(trials, tmp_path)
    reference, candidate = judging._once(path, "reference"), judging._once(path, "candidate")
    checks = judge(Parity.EQUIVALENT, reference, candidate, candidate)
    assert failures(checks) == [] and figure(checks, "forced").figure >= 4


@pytest.mark.parametrize("network", NETWORKS)
def test_another_class_in_the_place_of_a_module_passes(judged, network) -> None:
    assert failures(judged(network, 2, Choice(planted.SwappedForItsLike(), {}))) == []


@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_batches_made_another_way_pass_within_what_the_technique_says(judged, network) -> None:
    checks = judged(network, 2, Choice(planted.RoundedPixels(), {}))
    assert failures(checks) == []
    assert "by more than 2 % of their spread" in figure(checks, "batches").what


@pytest.mark.parametrize(
    "wrong", [planted.BlurredPixels, planted.RoundedPixelsUnsaid, planted.RoundedPixelsOfOthers, planted.StaleBatches]
)
def test_other_batches_than_a_technique_says_are_rejected(judged, wrong, monkeypatch) -> None:
    if wrong is planted.StaleBatches:
        monkeypatch.setattr(wrong, "batch_tolerance", 0.02)
    assert not figure(judged("cnn", 2, Choice(wrong(), {})), "batches").passed


def test_rounding_is_not_identical(judged) -> None:
    """The strict level must be able to fail on something that is merely equivalent."""
    bf16 = Choice(find("mixed-precision"), {"dtype": "bfloat16"})
    assert failures(judged("mlp", 0, bf16, level=Parity.IDENTICAL))


@pytest.mark.parametrize("network", NETWORKS)
def test_other_draws_pass_where_the_script_draws(judged, network) -> None:
    other = Choice(planted.DropoutDrawsOthers(), {})
    checks = judged(network, 3, other)
    assert failures(checks) == []
    assert figure(checks, "spread of the loss").figure > 0
    assert failures(judged(network, 3, other, level=Parity.IDENTICAL)), "bit for bit means the same draws"


def test_dropout_in_another_memory_layout_passes(judged) -> None:
    checks = judged("cnn", 4, Choice(find("channels-last"), {}))
    assert failures(checks) == []
    assert figure(checks, "spread of the loss") is not None


@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_dropout_left_out_has_no_spread(judged, network) -> None:
    """No setting of a module tells: only that losses at one state are all the same."""
    checks = judged(network, 3, Choice(planted.DropoutLeftOut(), {}))
    assert figure(checks, "settings").passed
    assert figure(checks, "spread of the loss").figure == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("wrong", [planted.LossNotUnscaled, planted.LabelSmoothing])
def test_a_fault_beside_other_draws_is_rejected(judged, wrong) -> None:
    assert failures(judged("cnn", 3, Choice(planted.DropoutDrawsOthers(), {}), Choice(wrong(), {})))


def test_settings_are_named_and_epoch_ends_counted(judged) -> None:
    checks = judged("mlp", 0, Choice(planted.DoubledLearningRate(), {}))
    assert "lr of optimizer 0: 0.01 -> 0.02 at step 1" in figure(checks, "settings").what
    assert figure(checks, "epoch ends").what == "epoch ends that differ, of 2"
    assert figure(checks, "epoch ends").passed


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


@pytest.mark.parametrize(("shaken_cosine", "passes"), [(0.96, True), (0.98, False)])
def test_steps_that_could_not_be_shaken_do_not_narrow_the_limits(shaken_cosine: float, passes: bool) -> None:
    def evidence(*cosines: float) -> dict[str, Any]:
        figures = [
            {"step": 1.0, "loss": 0.0, "projection": 1.0, "length": 1.0, "cosine": cosine, "gradient": 1.0 - cosine}
            for cosine in cosines
        ]
        kept = {name: [] for name in ("batches", "sketches", "epoch_ends", "census", "norms", "draws", "along")}
        return {**kept, "figures": [*figures, {"step": 1.0, "update": 0.0}]}

    reference, candidate = evidence(), evidence(0.9, 0.9, 0.9)
    shaken = evidence(1.0, 1.0, 1.0, shaken_cosine, shaken_cosine)
    checks = judge(Parity.EQUIVALENT, reference, reference, candidate, shaken=shaken)
    (found,) = [check for check in checks if check.what == "gradient cosine, median"]
    assert found.passed is passes


def test_weights_are_shaken_where_the_first_sign_of_training_is_a_loss(trials, tmp_path: Path) -> None:
    """Without a loader a step begins unseen: weights that move between its forward and its backward break it."""
    path = tmp_path / "no_loader.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n"
        "torch.manual_seed(0)\n"
        "model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "x, y = torch.randn(6, 4), torch.randint(0, 2, (6,))\n"
        f"for step in range({STEPS + 2}):\n"
        "    optimizer.zero_grad()\n"
        "    nn.functional.cross_entropy(model(x), y).backward()\n"
        "    optimizer.step()\n"
    )
    judging = Judging(trials, tmp_path)
    reference, shaken = judging._once(path, "reference"), judging._once(path, "shaken")
    assert len(shaken["losses"]) == len(reference["losses"]) >= STEPS
    moved = [(figure["step"] > 1, figure["gradient"] > 0) for figure in shaken["figures"] if "gradient" in figure]
    assert (True, True) in moved and all(is_later == is_moved for is_later, is_moved in moved)
