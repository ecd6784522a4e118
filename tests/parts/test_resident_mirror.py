"""Batches gathered on a device, which stand in main memory for the script. Rows on the processor have values to look
at; the meta device stands for one to move to."""

from __future__ import annotations

import copy
import gc
import pickle

import numpy
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.data import DataLoader, Dataset

from hotlap.parts import resident_mirror
from hotlap.parts.known_order import Cut, Order
from hotlap.parts.resident_loader import Residency, ResidentSamples
from hotlap.parts.resident_mirror import Mirror
from hotlap.parts.waiting_tensor import Waiting

CPU, META = torch.device("cpu"), torch.device("meta")


def rows() -> list[torch.Tensor]:
    numbers = torch.arange(12)
    return [numbers.float().view(-1, 1, 1).expand(-1, 2, 3).contiguous(), numbers % 3 == 0]


def test_the_rows_asked_for_in_that_order() -> None:
    mirror = Mirror(rows(), CPU)
    images, marks = mirror.batch(numpy.array([7, 0, 11]))
    assert type(images) is type(marks) is Waiting and images.shape == (3, 2, 3) and marks.dtype == torch.bool
    assert images.device == CPU and images.is_contiguous()
    assert images[:, 0, 0].tolist() == [7, 0, 11] and marks.tolist() == [False, True, False]


@pytest.mark.parametrize("kind", [numpy.int32, numpy.uint8, numpy.int64])
def test_any_kind_of_whole_number(kind) -> None:
    (images, _) = Mirror(rows(), CPU).batch(numpy.array([2, 3], dtype=kind))
    assert images[:, 1, 1].tolist() == [2, 3]


def test_moved_it_is_what_lies_there_and_moved_again_another() -> None:
    mirror = Mirror([one.to(META) for one in rows()], META)
    (images, _) = mirror.batch(numpy.array([1, 2]))
    first, second = images.to(META), images.to(META)
    assert type(first) is torch.Tensor and first.device == META and first is not second and first.shape == (2, 2, 3)


def test_a_batch_that_was_written_to_stays_as_the_script_left_it() -> None:
    mirror = Mirror(rows(), CPU)
    (images, _) = mirror.batch(numpy.array([4, 5]))
    images.zero_()
    assert images.sum() == 0
    assert mirror.batch(numpy.array([4, 5]))[0][:, 0, 0].tolist() == [4, 5]


def test_what_the_script_does_not_move_is_no_longer_made_there() -> None:
    mirror = Mirror([one.to(META) for one in rows()], META)
    for number in range(3 * resident_mirror._UNMOVED):
        images, _ = mirror.batch(numpy.array([number % 12]))
        if number % 10 == 0:
            images.to(META)
        assert mirror.is_of_use
    for _ in range(resident_mirror._UNMOVED):
        mirror.batch(numpy.array([0]))
    assert not mirror.is_of_use


class Powers(Dataset):
    def __init__(self) -> None:
        self.exponent = 2

    def __len__(self) -> int:
        return 53

    def __getitem__(self, index: int):
        return {"x": torch.full((2, 2), float(index) ** self.exponent), "y": (index, index % 7 == 0)}


def residency(place: torch.device | None, given_up) -> Residency:
    return Residency(1 << 24, lambda dataset: dataset.exponent, given_up, lambda: place)


def epochs(loader: DataLoader, get=iter, number: int = 4, seen=lambda batch: None) -> list:
    torch.manual_seed(3)
    found = []
    for _ in range(number):
        for batch in get(loader):
            seen(batch)
            found.append((batch["x"].tolist(), batch["y"][0].tolist(), batch["y"][1].tolist()))
            batch["x"].zero_()
        found.append(torch.rand(1).item())
    return found


@pytest.mark.parametrize("aligned_bytes", [1, 256])  # several batches gathered at once, and each alone
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_batches_in_the_same_order(
    workers: int, aligned_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident_mirror, "_UNMOVED", 1000)
    monkeypatch.setattr(resident_mirror, "_ALIGNED_BYTES", aligned_bytes)
    loader = DataLoader(Powers(), batch_size=8, shuffle=True, num_workers=workers)
    reasons, kinds = [], []
    own = residency(CPU, reasons.append)
    given = epochs(loader, lambda one: own.iterator(iter, one), seen=lambda batch: kinds.append(type(batch["x"])))
    assert given == epochs(loader) and reasons == []
    assert kinds[:6] == [torch.Tensor] * 6 and kinds[-14:] == [Waiting] * 14
    own.close()


class Counted(torch.Tensor):
    """Rows that count how often they are gathered."""

    gathered = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Counted.gathered += function is torch.Tensor.index_select
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


def cuts(count: int, size: int) -> list[Cut]:
    order = Order(torch.randperm(count, generator=torch.Generator().manual_seed(1)), count)
    return [Cut(order, start, min(start + size, count)) for start in range(0, count, size)]


def wide_rows(count: int) -> list[torch.Tensor]:
    return [torch.arange(count * 64.0).view(count, 64), torch.arange(count)]


def test_several_batches_of_an_order_are_gathered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counted, "gathered", 0)
    images, labels = wide_rows(4010)
    mirror = Mirror([images, labels], CPU)
    mirror._rows = [one.as_subclass(Counted) for one in mirror._rows]
    for cut in cuts(4010, 32):
        drawn = mirror.batch(cut)
        assert torch.equal(drawn[0] + 0, images[cut.tolist()]) and drawn[1].tolist() == cut.tolist()
        assert drawn[0].stride() == (64, 1)
    assert Counted.gathered == 2 * 4  # 126 batches by 32, the smaller last one among them


def test_large_or_unaligned_batches_are_gathered_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for size, limit in [(30, 8 << 20), (32, 2 * 32 * 264 - 1)]:
        monkeypatch.setattr(resident_mirror, "_TOGETHER_BYTES", limit)
        made = Mirror(wide_rows(320), CPU).batch(cuts(320, size)[0])[0]._taken()
        assert made.untyped_storage().nbytes() == made.nbytes


def test_batches_gathered_together_are_as_if_each_had_been_made_alone() -> None:
    mirror, ones = Mirror(wide_rows(320), CPU), cuts(320, 32)
    first, second, third = (mirror.batch(cut)[0]._taken() for cut in ones[:3])
    first.zero_()
    assert first._version == 1 and second._version == 0 and not second._is_view()
    assert torch.equal(second, wide_rows(320)[0][ones[1].tolist()])
    second.label, third.requires_grad = "mine", True
    assert len(pickle.dumps(second)) < 2 * second.nbytes
    for copied in (pickle.loads(pickle.dumps(second)), copy.deepcopy({"a": second, "b": second})["b"]):
        assert torch.equal(copied, second) and copied.label == "mine" and copied is not second
        assert copied.untyped_storage().nbytes() == second.nbytes
    assert copy.deepcopy(third).requires_grad and copy.deepcopy(third).is_leaf
    kept = copy.deepcopy([second, second])
    assert kept[0] is kept[1]
    made = third * 1.0
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(made)
    written = mirror.batch(ones[3])[0]._taken()
    written.mul_(torch.ones(1, requires_grad=True))
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(written)


@pytest.mark.parametrize("grow", [lambda one: one.resize_(64, 64), lambda one: one.resize_as_(torch.empty(64, 64))])
def test_one_that_is_made_larger_leaves_the_next_alone(grow) -> None:
    mirror, ones = Mirror(wide_rows(320), CPU), cuts(320, 32)
    first, second = (mirror.batch(cut)[0]._taken() for cut in ones[:2])
    before = first.clone(), second.clone()
    assert grow(first) is first and first.shape == (64, 64) and torch.equal(first[:32], before[0])
    first.fill_(-1.0)
    assert torch.equal(second, before[1])


def test_their_memory_is_free_when_all_are_gone() -> None:
    mirror, ones = Mirror(wide_rows(320), CPU), cuts(320, 32)
    storage = StorageWeakRef(mirror.batch(ones[0])[0]._taken().untyped_storage())
    assert not storage.expired()
    del ones  # the rest of the order is not wanted any more
    assert storage.expired()


def test_no_batch_of_inference_mode_is_left_for_training() -> None:
    mirror, ones = Mirror(wide_rows(320), CPU), cuts(320, 32)
    with torch.inference_mode():
        assert mirror.batch(ones[0])[0]._taken().is_inference()
    assert not mirror.batch(ones[1])[0]._taken().is_inference()
    assert mirror.batch(ones[2])[1].tolist() == ones[2].tolist()


def test_two_orders_at_a_time_and_one_cut_twice() -> None:
    mirror, ones, others = Mirror(wide_rows(320), CPU), cuts(320, 32), cuts(320, 64)
    for one, other in zip(ones, others, strict=False):
        assert mirror.batch(one)[1].tolist() == one.tolist() and mirror.batch(other)[1].tolist() == other.tolist()
        assert mirror.batch(one)[1].tolist() == one.tolist()


def test_a_script_that_stays_in_main_memory_gets_its_batches_there() -> None:
    loader = DataLoader(Powers(), batch_size=4, shuffle=True)
    reasons, kinds = [], []
    own = residency(CPU, reasons.append)
    given = epochs(loader, lambda one: own.iterator(iter, one), seen=lambda batch: kinds.append(type(batch["x"])))
    assert given == epochs(loader) and reasons == []
    assert kinds.count(Waiting) == resident_mirror._UNMOVED + 1 and kinds[-14:] == [torch.Tensor] * 14
    own.close()


def test_data_sets_may_die_while_their_stores_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector comes in when it likes."""
    own, loaders = residency(None, lambda reason: None), [DataLoader(Powers(), batch_size=8) for _ in range(3)]
    for number in range(3):
        list(own.iterator(iter, loaders[number]))
    close, closed = ResidentSamples.close, []

    def closing(samples: ResidentSamples) -> None:
        closed.append(samples)
        loaders.clear()
        gc.collect()
        close(samples)

    monkeypatch.setattr(ResidentSamples, "close", closing)
    own.close()
    assert len(set(map(id, closed))) == 3


@pytest.mark.parametrize("why", ["no device yet", "no room"])
def test_without_a_place_nothing_changes(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotlap.parts.resident.has_room", lambda *_: False)
    loader = DataLoader(Powers(), batch_size=8, shuffle=True)
    own, kinds = residency(None if why == "no device yet" else CPU, lambda reason: None), set()
    given = epochs(loader, lambda one: own.iterator(iter, one), seen=lambda batch: kinds.add(type(batch["x"])))
    assert given == epochs(loader) and kinds == {torch.Tensor}
    own.close()


def test_a_data_set_that_changes_is_read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident_mirror, "_UNMOVED", 1000)
    dataset, reasons = Powers(), []
    loader, own = DataLoader(dataset, batch_size=8), residency(CPU, reasons.append)
    epochs(loader, lambda one: own.iterator(iter, one), number=3)
    dataset.exponent = 3
    (batch, *_) = own.iterator(iter, loader)
    assert batch["x"][:, 0, 0].tolist() == [float(number) ** 3 for number in range(8)]
    assert len(reasons) == 1 and "changed" in reasons[0]
    own.close()
