"""Data sets and loaders that do more than hand out transformed images: every sample is still the one that plain python
gives, by the same random numbers, and every error comes where it would have come."""

from __future__ import annotations

import random
import threading

import numpy
import pytest
import torch
from deferred_photos import COUNT, Cut, Photos, Pipeline, stand_in
from PIL import Image
from taken_loaders import CPU, Taken, drawn, seed
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, get_worker_info

from hotlap.parts import batched_transforms, device_batches, finished_images
from hotlap.parts.transform_sites import Site, mark


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_transforms, "recognised", None)
    stand_in()


class Batchwise(Photos):
    """One number is drawn for a whole batch."""

    def __getitems__(self, index):
        shift = random.randrange(100)
        return [(image, label + shift) for image, label in map(self.__getitem__, index)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [4, 20])
def test_samples_that_depend_on_their_neighbours(folder, plainly, taken: Taken, batch_size: int, workers: int) -> None:
    way = {"num_workers": workers, "batch_size": batch_size}
    for dataset in (Batchwise(folder), Subset(Batchwise(folder), range(COUNT))):
        assert drawn(dataset, **way) == plainly(dataset, **way)
    assert taken.finished > 0 and not taken.judge.failed


class Keeping(Photos):
    """Keeps what it has made."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.kept = {}

    def __getitem__(self, index: int):
        if index not in self.kept:
            self.kept[index] = super().__getitem__(index)[0].clone()
        return self.kept[index].clone(), index


class KeepingFirst(Keeping):
    """The very objects that its transform gives."""

    def __getitem__(self, index: int):
        if index not in self.kept:
            self.kept[index] = Photos.__getitem__(self, index)
        return self.kept[index]


@pytest.mark.parametrize("kind", [Keeping, KeepingFirst])
@pytest.mark.parametrize("way", [{}, {"batch_size": 20}, {"num_workers": 1, "persistent_workers": True}], ids=str)
def test_what_a_data_set_keeps_is_its_own(folder, plainly, taken: Taken, kind, way) -> None:
    assert drawn(kind(folder), **way) == plainly(kind(folder), **way)


class Careful(Photos):
    """Gives something else where an image is no tensor."""

    def __getitem__(self, index: int):
        image, label = super().__getitem__(index)
        return image, label if isinstance(image, torch.Tensor) else -1


@pytest.mark.parametrize("workers", [0, 2])
def test_each_data_set_in_another_is_proven_by_itself(folder, plainly, taken: Taken, workers: int) -> None:
    """The second comes long after the first was trusted."""
    dataset, way = ConcatDataset([Photos(folder), Careful(folder)]), {"shuffle": False, "num_workers": workers}
    assert drawn(dataset, **way) == plainly(dataset, **way)
    assert taken.finished >= 5 and taken.judge.failed


def test_each_kind_of_data_set_is_proven_by_itself(folder, plainly, taken: Taken) -> None:
    for kind in (Photos, Careful):
        dataset = Subset(kind(folder), range(COUNT))
        assert drawn(dataset) == plainly(dataset)
    assert taken.finished == 18 and taken.judge.failed


class Locked(Cut):
    """Can be neither copied nor pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def test_transforms_that_cannot_be_copied(folder, plainly, taken: Taken) -> None:
    dataset = Photos(folder, Locked())
    assert drawn(dataset, num_workers=2) == plainly(dataset, num_workers=2)
    assert taken.finished == 18


class WithLambda(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.change = lambda image: image


def test_a_setting_beside_a_lambda_is_noticed() -> None:
    steps = torch.nn.Sequential(WithLambda(), torch.nn.Dropout(0.5))
    sites = [Site(None, "transform", steps, steps, None)]
    before = mark(sites)
    assert mark(sites) == before
    steps[1].p = 0.25
    assert mark(sites) != before


class Opened(Photos):
    """Reads by what its workers have opened."""

    opened = None

    def __getitem__(self, index: int):
        return self.transform(self.opened(self.paths[index]).convert("RGB")), index


def opens(worker: int) -> None:
    get_worker_info().dataset.opened = Image.open


def test_what_only_workers_can_read_is_left_to_them(folder, plainly, taken: Taken) -> None:
    way = {"num_workers": 2, "worker_init_fn": opens}
    expected = plainly(Opened(folder), **way)
    stand_in("raises at 9")
    assert drawn(Opened(folder), **way) == expected
    assert taken.finished == 0


def grows(worker: int) -> None:
    get_worker_info().dataset.transform.size = 9 + worker


def seeds(worker: int) -> None:
    numpy.random.seed(worker)
    random.seed(7)


@pytest.mark.parametrize(("init", "finished"), [(grows, 0), (seeds, 18)])
def test_worker_init_fn_comes_first(folder, plainly, taken: Taken, init, finished: int) -> None:
    way = {"num_workers": 2, "worker_init_fn": init}
    assert drawn(Photos(folder), **way) == plainly(Photos(folder), **way)
    assert taken.finished == finished


class Private(Photos):
    """Draws its samples by a generator that nobody else knows of."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.generator = random.Random(3)

    def __getitem__(self, index: int):
        return super().__getitem__(self.generator.randrange(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_generator_of_its_own_is_not_drawn_from_twice(folder, plainly, taken: Taken, workers: int) -> None:
    assert drawn(Private(folder), num_workers=workers) == plainly(Private(folder), num_workers=workers)
    assert taken.finished == 0


class Doubling(DataLoader):
    def _get_iterator(self):
        return ((images * 2, labels) for images, labels in super()._get_iterator())


def test_loaders_that_iterate_in_their_own_way(folder, taken: Taken) -> None:
    images, _ = next(iter(Doubling(Photos(folder), batch_size=4)))
    assert images.max() > 1 and taken.finished == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_without_words(folder, plainly, taken: Taken, monkeypatch, workers: int) -> None:
    expected = plainly(Photos(folder), num_workers=workers)
    run, calls = Pipeline.run, []

    def short(*args):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return run(*args)

    monkeypatch.setattr(Pipeline, "run", short)
    assert drawn(Photos(folder), num_workers=workers) == expected
    assert taken.reasons == ["MemoryError on cpu: "]


def test_a_file_that_cannot_be_decoded_costs_its_own_batch_alone(folder, plainly, taken: Taken, monkeypatch) -> None:
    expected = plainly(Photos(folder))
    decode_all, calls = finished_images.decode_all, []

    def decoding(*args):
        calls.append(1)
        if len(calls) == 9:
            raise OSError("broken data stream when reading image file")
        return decode_all(*args)

    monkeypatch.setattr(finished_images, "decode_all", decoding)
    assert drawn(Photos(folder)) == expected
    assert taken.finished == 17 and taken.reasons == []


class Choosy(Cut):
    """Draws, and then refuses one image."""

    def __call__(self, image):
        made = super().__call__(image)
        if image.size[0] == 60:
            raise ValueError("this one is too wide")
        return made


def test_after_an_error_the_generators_stand_where_it_came(folder, plainly, taken: Taken, monkeypatch) -> None:
    dataset, run = Photos(folder, Choosy()), Pipeline.run
    expected = plainly(dataset, shuffle=False)

    def choosy(pipeline, images, recipes, device):
        if any(image.shape[2] == 60 for image in images):
            raise ValueError("this one is too wide")
        return run(pipeline, images, recipes, device)

    monkeypatch.setattr(Pipeline, "run", choosy)
    assert drawn(dataset, shuffle=False) == expected
    assert expected.count(ValueError) == 3 and taken.finished > 0


class NoImage(Photos):
    def __getitem__(self, index: int):
        if index == 21:
            raise KeyError("the script's own")
        return super().__getitem__(index)


def test_errors_of_workers_tell_of_nothing_else(folder, taken: Taken) -> None:
    with pytest.raises(KeyError) as raised:
        list(DataLoader(NoImage(folder), batch_size=2, num_workers=1))
    assert "the script's own" in str(raised.value) and "During handling" not in str(raised.value)
    assert taken.finished > 8


class InDictionaries(Dataset):
    """Two views of each image, in a dict, beside other things."""

    def __init__(self, folder) -> None:
        self.photos, self.transform = Photos(folder, transform=lambda image: image), Cut()

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        image, _ = self.photos[index]
        views = {"second": self.transform(image), "first": self.transform(image)}
        return {"views": views, "name": str(index), "size": image.size, "mean": float(numpy.asarray(image).mean())}


def listed(loader) -> list:
    seed(3)
    found = []
    for batch in loader:
        views = {name: images.numpy().tobytes() for name, images in batch["views"].items()}
        found.append((views, batch["name"], [one.tolist() for one in batch["size"]], batch["mean"].tolist()))
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_are_dicts(folder, taken: Taken, monkeypatch, workers: int) -> None:
    loader = DataLoader(InDictionaries(folder), batch_size=4, shuffle=True, num_workers=workers)
    finished, on_device = [], taken.batches._on_device
    monkeypatch.setattr(taken.batches, "_on_device", lambda *args: finished.append(on_device(*args)) or finished[-1])
    found = listed(loader)
    taken.batches.leave()
    assert found == listed(loader)
    assert len(finished) == 6 and all(isinstance(batch, dict) for batch in finished)


class Elsewhere(device_batches.InMainMemory):
    device = torch.device("meta")


def test_what_the_script_wrote_into_is_not_handed_out_again(folder, taken: Taken, monkeypatch) -> None:
    """The first move gives what was made ahead, which is then the script's; a later look is at images made anew."""
    made = device_batches.finished
    seed(4)
    expected = [images.clone() for images, _ in DataLoader(Photos(folder), batch_size=4)]
    monkeypatch.setattr(device_batches, "finished", lambda undone, pipelines, device: made(undone, pipelines, CPU))
    monkeypatch.setattr(device_batches, "maker_for", lambda device: Elsewhere())
    taken.batches._wanted, taken.batches._place = None, lambda: Elsewhere.device
    seed(4)
    for (images, _), own in zip(DataLoader(Photos(folder), batch_size=4), expected, strict=True):
        given = images._go(lambda tensor, *_: tensor, ("meta",), {})
        given.zero_()
        assert images._host is None and torch.equal(images.clone(), own)
