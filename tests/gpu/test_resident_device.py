"""Samples kept on a CUDA device, and batches gathered from page-locked memory for one."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.known_order import in_cuts
from hotlap.parts.resident_batches import ResidentBatches
from hotlap.parts.resident_loader import serves
from hotlap.parts.resident_mirror import Mirror
from hotlap.parts.waiting_tensor import Waiting

pytestmark = pytest.mark.gpu


class Powers(Dataset):
    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int):
        return torch.full((3, 8, 8), float(index) ** 2), torch.tensor(index / 3, dtype=torch.bfloat16), index


def test_gathered_on_the_device_in_the_loaders_order() -> None:
    for workers in (0, 2):
        loader = DataLoader(Powers(), batch_size=32, shuffle=True, num_workers=workers)
        batches = ResidentBatches(loader, "cuda")
        for epoch in range(4):
            torch.manual_seed(epoch)
            found = list(batches)
            assert all(leaf.is_cuda for batch in found for leaf in batch)
            torch.manual_seed(epoch)
            for batch, expected in zip(found, loader, strict=True):
                assert all(torch.equal(leaf.cpu(), other) for leaf, other in zip(batch, expected, strict=True))
        assert not batches.reason and batches._samples.store.has_served


def test_a_script_goes_on_getting_batches_in_main_memory_page_locked() -> None:
    torch.zeros(1, device="cuda")
    patch = Patch(Joints())
    find("resident-dataset").apply(patch, {})
    try:
        dataset = Powers()
        for _ in range(3):
            loader = DataLoader(dataset, batch_size=32, shuffle=True)
            for x, _, index in loader:
                assert x.device.type == "cpu" and x.is_pinned()
                assert torch.equal(x.cuda(non_blocking=True)[:, 0, 0, 0].cpu(), index.float() ** 2)
        assert serves(loader) and not patch.joints.withdrawn
    finally:
        patch.undo()


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_on_the_device_in_the_place_of_batches_in_main_memory(workers: int) -> None:
    torch.zeros(1, device="cuda")
    dataset = Powers()
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=workers)

    def epochs() -> list:
        torch.manual_seed(5)
        found = []
        for _ in range(4):
            for x, half, index in loader:
                moved = x.to("cuda"), half.cuda(non_blocking=True), index.to("cuda")
                assert all(one.is_cuda and type(one) is torch.Tensor for one in moved)
                found.append([one.tolist() for one in moved])
                moved[0].zero_()
        return found

    expected = epochs()
    patch = Patch(Joints())
    find("resident-dataset").apply(patch, {"on": "device"})
    try:
        assert epochs() == expected and not patch.joints.withdrawn
        (x, *_) = next(iter(loader))
        assert type(x) is Waiting and x.device.type == "cpu" and x.is_pinned() is False
    finally:
        patch.undo()


def test_a_batch_taken_on_another_stream_is_whole() -> None:
    rows = torch.arange(4096.0).view(-1, 1).expand(-1, 4096).contiguous()
    mirror, side = Mirror([rows], torch.device("cuda", 0)), torch.cuda.Stream()
    for number in range(20):
        places = numpy.arange(number, number + 512)
        (batch,) = mirror.batch(places)
        with torch.cuda.stream(side):
            total = batch.to("cuda").sum(1)
        del batch
        side.synchronize()
        assert total.tolist() == (4096.0 * torch.from_numpy(places)).tolist()


def test_batches_gathered_together_are_whole_on_any_stream_and_end_with_their_memory() -> None:
    rows = torch.arange(4096.0).view(-1, 1).expand(-1, 1024).contiguous()
    mirror, side = Mirror([rows, torch.arange(4096)], torch.device("cuda", 0)), torch.cuda.Stream()
    batches = BatchSampler(RandomSampler(range(4096)), 64, False)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for number, cut in enumerate(in_cuts(iter(batches), batches, 4096)):
        images, labels = mirror.batch(cut)
        with torch.cuda.stream(side if number % 3 == 0 else torch.cuda.current_stream()):
            moved = images.to("cuda")
            moved.add_(1).sub_(1)  # its neighbours have nothing to do with it
            totals, given = moved.sum(1), labels.to("cuda").clone()
        torch.cuda.synchronize()
        assert totals.tolist() == [1024.0 * place for place in cut.tolist()] and given.tolist() == cut.tolist()
    del images, labels, moved, totals, given, cut
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before


def test_cuts_of_an_order_are_gathered_on_whatever_stream_they_are_drawn() -> None:
    rows = torch.arange(4096.0).view(-1, 1).expand(-1, 4096).contiguous()
    mirror, streams = Mirror([rows], torch.device("cuda", 0)), (torch.cuda.current_stream(), torch.cuda.Stream())
    batches = BatchSampler(RandomSampler(range(4096)), 100, False)
    for number, cut in enumerate(in_cuts(iter(batches), batches, 4096)):
        with torch.cuda.stream(streams[number % 2]):
            (batch,) = mirror.batch(cut)
            assert batch.to("cuda").sum(1).tolist() == [4096.0 * place for place in cut.tolist()]


class Noisy(Powers):
    def __getitem__(self, index: int):
        x, half, index = super().__getitem__(index)
        return x + torch.rand(1), half, index


@pytest.mark.parametrize("there", [{}, {"on": "device"}], ids=["here", "there"])
@pytest.mark.parametrize("names", [(), ("loader-workers", "device-prefetch"), ("recycled-batches",)], ids=str)
def test_tests_are_kept_while_the_training_draws_at_random(names: tuple[str, ...], there: dict[str, str]) -> None:
    torch.zeros(1, device="cuda")

    def epochs() -> tuple[list, bool]:
        torch.manual_seed(5)
        training = DataLoader(Noisy(), batch_size=32, shuffle=True, num_workers=2)
        test = DataLoader(Powers(), batch_size=48, num_workers=2)
        found = []
        for _ in range(3):
            found += [index.to("cuda").tolist() for _, _, index in training]
            with torch.no_grad():
                found += [[one.to("cuda", non_blocking=True).tolist() for one in batch] for batch in test]
        return found, serves(test)

    expected, _ = epochs()
    patch = Patch(Joints())
    for name in names:
        find(name).apply(patch, {"num_workers": 3, "replacing": 2} if name == "loader-workers" else find(name).default)
    find("resident-dataset").apply(patch, {"of": "tests", **there})
    try:
        assert epochs() == (expected, True) and not patch.joints.withdrawn
    finally:
        patch.undo()
