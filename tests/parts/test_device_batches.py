"""Images finished in batches, on the processor here: every sample of every epoch is the one the plain loader gives, by
the same random numbers, whatever happens on the way."""

from __future__ import annotations

import os
import signal
import weakref

import pytest
import torch
from deferred_photos import COUNT, Cut, Photos, stand_in
from taken_loaders import CPU, Taken, drawn
from torch.utils.data import ConcatDataset, DataLoader, Subset
from waiting import comes_true

from hotlap.parts import batched_transforms, device_batches, finished_images
from hotlap.parts.device_batches import InMainMemory
from hotlap.parts.device_jpeg import Decoded
from hotlap.parts.drawing_ahead import Relay
from hotlap.parts.early_batches import Pass
from hotlap.parts.undone_images import UndoneBatch
from hotlap.parts.waiting_tensor import Waiting

pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*")


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_transforms, "recognised", None)
    stand_in()


WAYS = [
    {"num_workers": workers, "drop_last": drop_last, "persistent_workers": persistent}
    for workers in (0, 2)
    for drop_last in (False, True)
    for persistent in (False, True)
    if workers or not persistent
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_sample_of_every_epoch(folder, plainly, taken: Taken, way) -> None:
    expected = plainly(Photos(folder), **way)
    assert drawn(Photos(folder), **way) == expected
    labels = [label for batch in expected[:-3] for label in batch[0]]
    assert len(labels) == 3 * (COUNT // 4 * 4 if way["drop_last"] else COUNT)
    assert expected[0][1] != expected[len(expected) // 3][1], "every epoch sees other crops"
    assert taken.finished == len(expected) - 3 and taken.reasons == []
    assert len(taken.judge.differences) >= 16 and not taken.judge.failed


class Reserved(Photos):
    """With a second transform that nobody calls, as torchvision's folders have one."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.spare = Cut()


def test_a_transform_that_is_never_called_keeps_no_other_on_trial(folder, plainly, taken: Taken) -> None:
    dataset = Reserved(folder)
    assert drawn(dataset, num_workers=2) == plainly(dataset, num_workers=2)
    assert len(taken.judge.differences) == 16 and taken.finished == 18


def test_another_seed_gives_other_batches(folder, taken: Taken) -> None:
    assert drawn(Photos(folder)) == drawn(Photos(folder)) != drawn(Photos(folder), number=6)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kinds", [("jpg", "png"), ("jpg", "png", "cmyk.jpg", "grey.jpg"), ("png",)], ids="+".join)
def test_files_of_other_kinds(folder, plainly, taken: Taken, kinds, workers: int) -> None:
    dataset = Photos(folder, kinds=kinds)
    assert drawn(dataset, num_workers=workers) == plainly(dataset, num_workers=workers)
    assert taken.finished == 18


def cut_off(folder, whole: str, part: str) -> str:
    content = (folder / whole).read_bytes()
    (folder / part).write_bytes(content[: len(content) // 2])
    return str(folder / part)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("broken", ["jpg", "png", "no image"])
def test_a_broken_file_raises_where_it_did(folder, plainly, taken: Taken, broken: str, workers: int) -> None:
    dataset = Photos(folder)
    dataset.paths[7] = str(folder) if broken == "no image" else cut_off(folder, f"7.{broken}", f"cut.{broken}")
    expected = plainly(dataset, num_workers=workers)
    assert sum(isinstance(one, type) for one in expected) == 3
    assert drawn(dataset, num_workers=workers) == expected
    assert taken.finished >= 12 and taken.reasons == []


class Killed(Photos):
    def __getitem__(self, index: int):
        if index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_killed_worker_raises_as_ever(folder, taken: Taken) -> None:
    with pytest.raises(RuntimeError, match=r"killed by signal|exited unexpectedly"):
        list(DataLoader(Killed(folder), batch_size=4, num_workers=2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("fault", ["flips", "draws otherwise", "raises", "raises at 9"])
def test_what_is_not_the_same_stands_aside_and_nothing_is_lost(
    folder, plainly, taken: Taken, fault: str, workers: int
) -> None:
    expected = plainly(Photos(folder), num_workers=workers)
    stand_in(fault)
    assert drawn(Photos(folder), num_workers=workers) == expected
    assert taken.finished == (4 if fault == "raises at 9" else 0)
    assert (taken.reasons != []) is fault.startswith("raises")


def test_the_account_notices_a_fault_that_nobody_judges(folder, plainly, taken: Taken) -> None:
    """The planted one: without proof, the wrong images would have been handed out."""
    expected = plainly(Photos(folder))
    stand_in("flips")
    taken.judge.limit = float("inf")
    assert drawn(Photos(folder)) != expected


DECODERS = {
    "shifted": lambda image: image.int().add(2),
    "colours swapped": lambda image: image.flip(0),
    "upside down": lambda image: image.flip(1),
    "another brightness here and there": lambda image: image.int() + 4 * (torch.arange(image.shape[2]) % 2 * 2 - 1),
    "a row further": lambda image: image.roll(1, 1),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_a_decoder_that_makes_other_pictures_is_noticed(folder, plainly, taken: Taken, monkeypatch, decoder) -> None:
    expected = plainly(Photos(folder))
    monkeypatch.setattr(finished_images, "decode_all", decoding(decoder))
    assert drawn(Photos(folder)) == expected
    assert taken.finished == 0 and taken.judge.failed


def test_a_decoder_may_enlarge_colours_in_its_own_way(folder, plainly, taken: Taken, monkeypatch) -> None:
    """Then batches are the script's own but for that."""
    expected = plainly(Photos(folder))

    def enlarged(image: torch.Tensor) -> torch.Tensor:
        other = torch.arange(image.shape[2]) % 2 * 2 - 1
        return image.int() + torch.stack([other * 5, -other * 3, other * 2])[:, None]

    monkeypatch.setattr(finished_images, "decode_all", decoding(enlarged))
    found = drawn(Photos(folder))
    assert found != expected and [one[0] for one in found[:-3]] == [one[0] for one in expected[:-3]]
    assert taken.finished == 18 and 0.1 < max(taken.judge.differences) < 1


def test_what_was_decoded_ahead_for_another_device_is_decoded_anew(folder, plainly, taken: Taken, monkeypatch) -> None:
    """Where the script moves its batches is known once it has moved one: others are on their way by then. What lies on
    another device is neither there nor waited for."""
    expected = plainly(Photos(folder), num_workers=2)

    def begin(undone: UndoneBatch, device: torch.device) -> None:
        undone.ready = Decoded([torch.empty(3, 8, 8, dtype=torch.uint8, device="meta") for _ in undone.lengths], None)

    monkeypatch.setattr(device_batches, "begin", begin)
    assert drawn(Photos(folder), num_workers=2) == expected
    assert taken.finished == 18 and taken.reasons == []


@pytest.mark.parametrize(("kinds", "threads"), [(("png",), [2, 1, 1]), (("png", "jpg"), [2, 2, 2])], ids=str)
@pytest.mark.parametrize("are_lasting", [False, True])
def test_where_there_are_no_files_one_thread_does_it_all(
    folder, plainly, taken: Taken, monkeypatch, kinds, threads, are_lasting: bool
) -> None:
    """From the second epoch on: until then nobody knows."""
    way = {"num_workers": 2, "persistent_workers": are_lasting}
    expected = plainly(Photos(folder, kinds=kinds), **way)
    begun, begin = [], Pass.__init__

    def counted(*args: object, **kwargs: object) -> None:
        begin(*args, **kwargs)
        begun.append(2 if isinstance(args[0]._drawing, Relay) else 1)

    monkeypatch.setattr(Pass, "__init__", counted)
    assert drawn(Photos(folder, kinds=kinds), **way) == expected
    assert begun == threads and taken.reasons == []


def decoding(change):
    decode_all = finished_images.decode_all
    return lambda files, device: [change(one).clamp(0, 255).byte() for one in decode_all(files, device)]


class Odd(Photos):
    """Does something with what its transform made."""

    def __getitem__(self, index: int):
        image, label = super().__getitem__(index)
        return image * 2, label


class Careful(Photos):
    """Does so only for tensors: it raises nothing, and gives something else."""

    def __getitem__(self, index: int):
        image, label = super().__getitem__(index)
        return (image, label) if isinstance(image, torch.Tensor) else (image, -1)


@pytest.mark.parametrize("kind", [Odd, Careful])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_that_look_at_what_they_get(folder, plainly, taken: Taken, kind, workers: int) -> None:
    assert drawn(kind(folder), num_workers=workers) == plainly(kind(folder), num_workers=workers)
    assert taken.finished == 0
    told = "its data set does more with its images than hand them out"
    assert taken.judge.failed if kind is Careful else taken.reasons == [told]


def larger(dataset, epoch: int) -> None:
    dataset.transform = Cut(8 + 2 * epoch)


def grown(dataset, epoch: int) -> None:
    dataset.transform.size = 8 + 2 * epoch


@pytest.mark.parametrize("way", [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("between", [larger, grown])
def test_sizes_that_grow_from_epoch_to_epoch(folder, plainly, taken: Taken, between, way) -> None:
    assert drawn(Photos(folder), between=between, **way) == plainly(Photos(folder), between=between, **way)
    assert taken.finished == 18


def test_a_transform_replaced_in_the_middle_of_an_epoch(folder, taken: Taken) -> None:
    dataset = Photos(folder)
    sizes = []
    for number, (images, _) in enumerate(DataLoader(dataset, batch_size=4)):
        sizes.append(images.shape[-1])
        if number == 1:
            dataset.transform.size = 9
        elif number == 3:
            dataset.transform = Cut(10)
    assert sizes == [8, 8, 9, 9, 10, 10]


def test_the_data_set_stays_the_scripts_own(folder, taken: Taken) -> None:
    dataset = Photos(folder)
    transform = dataset.transform
    for _ in DataLoader(dataset, batch_size=4):
        assert isinstance(dataset[0][0], torch.Tensor) and dataset.transform is transform
    assert taken.finished == 6


def test_data_sets_inside_others(folder, plainly, taken: Taken) -> None:
    """Two transforms in one batch, of which each sample gets its own."""
    inside = [Subset(Photos(folder), range(0, 20, 2)), Photos(folder, Cut(8))]
    inside[1].transform.extra = 1
    assert drawn(ConcatDataset(inside), num_workers=2) == plainly(ConcatDataset(inside), num_workers=2)
    assert taken.finished == 24


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_that_are_not_forked(folder, plainly, taken: Taken, context: str) -> None:
    way = {"num_workers": 1, "persistent_workers": True}
    expected = plainly(Photos(folder), epochs=2, **way)
    assert drawn(Photos(folder), epochs=2, multiprocessing_context=context, **way) == expected
    assert taken.finished == 12


def test_what_cannot_be_done_is_left_alone(folder, taken: Taken) -> None:
    other = Photos(folder, transform=lambda image: torch.zeros(2))
    for _ in range(3):
        list(DataLoader(other, batch_size=4))
    assert taken.finished == 0 and taken.reasons == ["it is not one that can be run in batches"]


def test_batches_collated_otherwise_are_left_alone(folder, taken: Taken) -> None:
    assert len(next(iter(DataLoader(Photos(folder), batch_size=4, collate_fn=list)))) == 4
    assert taken.finished == 0


def test_an_epoch_left_early(folder, plainly, taken: Taken) -> None:
    dataset = Photos(folder)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(3):
        for number, (_, labels) in enumerate(loader):
            assert labels.tolist() == list(range(4 * number, 4 * number + 4))
            if number == 2:
                break


META = torch.device("meta")


class Elsewhere(InMainMemory):
    """Stands for a device: what torch itself moves there has no values, what is read in main memory has."""

    device = META


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, taken: Taken) -> Elsewhere:
    made, found = device_batches.finished, Elsewhere()
    monkeypatch.setattr(device_batches, "finished", lambda packed, pipelines, device: made(packed, pipelines, CPU))
    monkeypatch.setattr(device_batches, "maker_for", lambda device: found)
    taken.batches._place = lambda: META
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_reads_in_main_memory_gets_it_there(
    folder, plainly, taken: Taken, elsewhere, monkeypatch, workers: int
) -> None:
    """After a while it is left alone, in the middle of an epoch."""
    monkeypatch.setattr(device_batches, "_UNMOVED", 16)
    way = {"num_workers": workers, "batch_size": 2}
    assert drawn(Photos(folder), **way) == plainly(Photos(folder), **way)
    assert taken.reasons == ["the script does not move its batches to the device as they come"]
    assert 16 <= taken.finished <= 20


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_moves_its_batches_finds_them_there(folder, taken: Taken, elsewhere, workers: int) -> None:
    for _ in range(3):
        for images, labels in DataLoader(Photos(folder), batch_size=2, num_workers=workers):
            assert type(images) is Waiting and type(labels) is torch.Tensor
            moved = images.to(META), labels.to(META)
            assert images._host is None and moved[0].shape == images.shape and len(moved[1]) == 2
    assert taken.reasons == [] and taken.finished == 33


def test_batches_too_large_for_several_of_them(folder, plainly, taken: Taken, elsewhere: Elsewhere) -> None:
    elsewhere.room_bytes = 9_000
    expected = plainly(Photos(folder), num_workers=2)
    assert drawn(Photos(folder), num_workers=2) == expected
    assert taken.finished == 0 and "too large" in taken.reasons[0]


def test_a_loop_that_is_left_lets_its_iterator_go(folder, taken: Taken) -> None:
    iterator = iter(DataLoader(Photos(folder), batch_size=4, num_workers=2))
    next(iterator)
    gone = weakref.ref(iterator)
    del iterator
    assert comes_true(lambda: gone() is None)  # the thread may be drawing


def test_nothing_stays_on_a_loader(folder, taken: Taken) -> None:
    loader = DataLoader(Photos(folder), batch_size=4)
    before = set(vars(loader))
    list(loader)
    assert set(vars(loader)) == before and loader.worker_init_fn is None and taken.finished == 6
