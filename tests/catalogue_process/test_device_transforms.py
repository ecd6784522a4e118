"""Images finished in batches beside the other techniques of the data path, and in a whole training, on the processor:
the batches and losses are those of plain python."""

from __future__ import annotations

import functools
import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

PARTS = Path(__file__).resolve().parent.parent / "parts"
sys.path.insert(0, str(PARTS))
from deferred_photos import Cut, Photos, stand_in, write_photos  # noqa: E402

from hotlap.catalogue import find  # noqa: E402
from hotlap.measure.candidates import clash  # noqa: E402
from hotlap.observe.facts import loader_facts  # noqa: E402
from hotlap.observe.joints import Joints  # noqa: E402
from hotlap.observe.patch import Patch  # noqa: E402
from hotlap.observe.run import Compared, LoaderFacts, Run  # noqa: E402
from hotlap.parts import batched_transforms  # noqa: E402
from hotlap.parts.resident_loader import serves  # noqa: E402
from hotlap.technique import CannotHelp, Choice, Parity  # noqa: E402

OTHERS = (
    "persistent-workers",
    "loader-workers",
    "pinned-batches",
    "resident-dataset",
    "device-prefetch",
    "sample-cache",
)
SETTINGS = {"loader-workers": {"num_workers": 2}, "device-transforms": {"device": "cpu"}}
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_transforms, "recognised", None)
    stand_in()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("photos")
    write_photos(found)
    return found


def drawn(dataset: Photos, **options) -> list:
    """Of workers that live on, as with hotlap: each epoch has the order it would have without that."""
    torch.manual_seed(5)
    numpy.random.seed(5)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, **options)
    found = []
    for epoch in range(4):
        if epoch and options.get("persistent_workers"):
            torch.empty((), dtype=torch.int64).random_()  # the seed that torch would draw for new ones
        found.append([(labels.tolist(), images.numpy().tobytes()) for images, labels in loader])
    return [*found, torch.rand(1).item()]


@functools.cache
def plainly(folder: Path, are_lasting: bool) -> list:
    return drawn(Photos(folder), num_workers=2, persistent_workers=are_lasting)


@pytest.mark.parametrize("first", [False, True], ids=["applied last", "applied first"])
@pytest.mark.parametrize("others", [(), *itertools.combinations(OTHERS, 1), OTHERS], ids="+".join)
def test_beside_the_others(folder: Path, others, first: bool) -> None:
    """What workers draw depends on their number, and on how long they live, so both sides have the same. That each
    epoch has draws of its own is part of it: batches are compared with their images and labels, epoch by epoch."""
    expected = plainly(folder, "persistent-workers" in others)
    names = ["device-transforms", *others] if first else [*others, "device-transforms"]
    patch = Patch(Joints())
    for name in names:  # each by a patch of its own, as in a run: what one gives up leaves the others alone
        own = Patch(patch.joints, name)
        patch.on_undo(own.undo)
        find(name).apply(own, SETTINGS.get(name, find(name).default))
    try:
        found = drawn(Photos(folder), num_workers=2)
    finally:
        patch.undo()
    (judged,) = (one.facts for one in patch.joints.comparisons if "first images" in one.what)
    assert judged.count >= 16 and judged.difference <= 1
    assert found == expected


class Middle(Cut):
    """The same of every image, each time."""

    def draw(self, width: int, height: int) -> tuple[int, int, int, bool]:
        return 0, 0, self.size, False


@pytest.mark.parametrize("are_lasting", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["applied last", "applied first"])
def test_kept_tests_are_not_made_anew(apply, folder: Path, first: bool, are_lasting: bool) -> None:
    """The training's images are made here; the tests', once they are kept, by nobody."""

    def run() -> list:
        torch.manual_seed(5)
        numpy.random.seed(5)
        training = DataLoader(Photos(folder), batch_size=4, shuffle=True, num_workers=2)
        tests = DataLoader(Photos(folder, Middle()), batch_size=4, num_workers=2, persistent_workers=are_lasting)
        found = []
        for _ in range(3):
            found += [(labels.tolist(), images.numpy().tobytes()) for images, labels in training]
            with torch.no_grad():
                found += [(labels.tolist(), images.numpy().tobytes()) for images, labels in tests]
        assert not {"_get_iterator"} & {*vars(tests), *vars(training)}
        return [*found, torch.rand(1).item(), serves(tests), serves(training)]

    plain = run()
    kinds = {"device-transforms": SETTINGS["device-transforms"], "resident-dataset": {"of": "tests"}}
    for name in sorted(kinds, reverse=not first):
        patch = apply(name, kinds[name])
    assert run() == [*plain[:-2], True, False]
    (judged,) = (one.facts for one in patch.joints.comparisons if "first images" in one.what)
    assert judged.count >= 16 and judged.difference <= 1


@pytest.mark.parametrize("are_lasting", [False, True])
def test_workers_that_were_given_wait_until_the_script_draws(apply, folder: Path, are_lasting: bool) -> None:
    def run() -> list:
        torch.manual_seed(5)
        numpy.random.seed(5)
        loader = DataLoader(Photos(folder), batch_size=4, shuffle=True)
        assert loader.num_workers == 2
        iter(loader)  # its workers are told nothing, also when they live on
        found = [batch for batches in zip(loader, loader, strict=True) for batch in batches]
        return [(labels.tolist(), images.numpy().tobytes()) for images, labels in [*found, *loader, *loader]]

    patch = apply("loader-workers", {**SETTINGS["loader-workers"], "persistent_workers": are_lasting})
    expected = run()
    apply("device-transforms", SETTINGS["device-transforms"])
    assert run() == expected
    (judged,) = (one.facts for one in patch.joints.comparisons if "first images" in one.what)
    assert judged.count >= 16 and judged.difference <= 1


def test_undone_in_the_middle_of_an_epoch(apply, folder: Path) -> None:
    """Batches that are under way are made as ever."""
    options = {"num_workers": 2}
    torch.manual_seed(5)
    expected = [
        (labels.tolist(), images.numpy().tobytes()) for images, labels in DataLoader(Photos(folder), 4, **options)
    ]
    torch.manual_seed(5)
    patch = apply("device-transforms", SETTINGS["device-transforms"])
    found = []
    for number, (images, labels) in enumerate(DataLoader(Photos(folder), 4, **options)):
        found.append((labels.tolist(), images.numpy().tobytes()))
        if number == 1:
            patch.undo()
    assert found == expected


SCRIPT = """
import sys
sys.path.insert(0, {parts!r})
from pathlib import Path
from deferred_photos import Photos, stand_in
stand_in()
import random, numpy, torch
from torch import nn
from torch.utils.data import DataLoader

for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(0)
loader = DataLoader(Photos(Path({folder!r})), batch_size=4, shuffle=True, num_workers={workers})
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 22))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images.to("cpu")), labels.to("cpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {{loss.item():.6f}}")
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_whole_training_has_the_losses_of_the_script(run_script, tmp_path: Path, folder: Path, workers: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(parts=str(PARTS), folder=str(folder), workers=workers))
    plain, with_it = (run_script(script, choices) for choices in ([], [Choice(find("dali"), {"device": "cpu"})]))
    assert plain.good and with_it.good, with_it.log
    losses, own = (re.findall(r"loss (\S+)", one.log) for one in (with_it, plain))
    assert len(own) == 18 and losses == own
    assert [(one.count, one.difference, one.limit) for one in with_it.run.compared] == [(16, 0.0, 1.0)]
    assert with_it.run.withdrawn == []


def facts(**given) -> LoaderFacts:
    return LoaderFacts("Photos", 4, 2, 2, False, False, False, False, 22, False, "fork", trains=True, **given)


def test_when_it_is_worth_a_trial(folder: Path) -> None:
    technique = find("dali")
    waiting = [[0.8, 0.05, 0.05, 0.05, 0.05, 0.0, 0.0]] * 20
    (found,) = technique.settings(Run("2.13.0", "cuda", loaders=[facts()], step_parts=waiting))
    assert found.most == pytest.approx(0.85) and technique.parity(None) is Parity.EQUIVALENT
    refused = technique.settings(Run("2.13.0", "cuda", loaders=[facts(not_batched="no")]))
    assert refused == CannotHelp("no")
    changing = Run("2.13.0", "cuda", loaders=[replace(facts(), changes=True)], step_parts=waiting)
    assert isinstance(technique.settings(changing), CannotHelp)
    assert technique.settings(Run("2.13.0", "cuda")) == CannotHelp("no training loader was seen")
    assert technique.seen(Run("2.13.0", "cuda")) is None
    assert technique.seen(Run("2.13.0", "cuda", compared=[Compared("device-transforms: x", 1, 0.0, 1.0)])) is True


def test_which_go_together() -> None:
    mine = Choice(find("device-transforms"), {})
    clashing = [name for name in (*OTHERS, "fast-jpeg") if clash(mine, [Choice(find(name), {})]) is not None]
    assert clashing == ["resident-dataset", "device-prefetch", "sample-cache", "fast-jpeg"]


def test_kept_samples_take_the_place_of_batches_made_on_the_device_unless_they_are_of_tests() -> None:
    others = [Choice(find(name), {}) for name in ("device-transforms", "device-prefetch")]
    settings = [{}, {"on": "device"}, {"on": "device", "of": "tests"}]
    kept = [Choice(find("resident-dataset"), setting) for setting in settings]
    assert [[clash(one, [other]) is not None for other in others] for one in kept] == [
        [True, False],  # what is kept in main memory can still be copied ahead
        [True, True],
        [False, False],
    ]


def test_facts_say_why_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", sys)
    assert loader_facts(DataLoader(Photos(folder))).not_batched == ""
    assert "batches" in loader_facts(DataLoader(Photos(folder, transform=lambda image: 0))).not_batched
    assert "of its own" in loader_facts(DataLoader(Photos(folder), collate_fn=list)).not_batched
    own = Photos(folder)
    own.generator = torch.Generator()
    assert "random generator" in loader_facts(DataLoader(own)).not_batched
    monkeypatch.delitem(sys.modules, "torchvision")
    assert "torchvision" in loader_facts(DataLoader(Photos(folder))).not_batched
