"""Images decoded by nvJPEG and transformed in batches, on a real device: near the plain loader's, every sample is
accounted for, and how fast it is is printed (run with -s)."""

from __future__ import annotations

import os
import pickle
import random
import time
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from hotlap.catalogue import find
from hotlap.observe.joints import Joints
from hotlap.observe.patch import Patch
from hotlap.parts.device_jpeg import _by_nvjpeg, decode_all

transforms = pytest.importorskip("torchvision.transforms")
datasets = pytest.importorskip("torchvision.datasets")
pytestmark = pytest.mark.gpu

COUNT, BATCH = 96, 16
NORMAL = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
WORKERS = max(2, len(os.sched_getaffinity(0)) - 2)


def trained() -> transforms.Compose:
    crop, flip = transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()
    return transforms.Compose([crop, flip, transforms.ToTensor(), transforms.Normalize(*NORMAL)])


def evaluated() -> transforms.Compose:
    resize, crop = transforms.Resize(256), transforms.CenterCrop(224)
    return transforms.Compose([resize, crop, transforms.ToTensor(), transforms.Normalize(*NORMAL)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Photo-like: large shapes with some grain."""
    found = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        draw = numpy.random.default_rng(number)
        shapes = Image.fromarray(draw.integers(0, 256, (12, 16, 3), dtype=numpy.uint8))
        pixels = numpy.asarray(shapes.resize((500, 375), Image.Resampling.BICUBIC), numpy.float32)
        grain = draw.normal(0, 4, (375, 500, 1))
        image = Image.fromarray((pixels + grain).clip(0, 255).astype(numpy.uint8))
        (found / str(number % 4)).mkdir(exist_ok=True)
        kind = "png" if number % 16 == 7 else "jpg"
        image = image.convert("L" if number % 16 == 3 else "CMYK" if number % 16 == 5 else "RGB")
        image.save(found / str(number % 4) / f"{number}.{kind}", quality=90)
    return found


@pytest.fixture
def patch():
    found = Patch(Joints())
    yield found
    found.undo()


def apply(patch: Patch, **setting) -> None:
    find("device-transforms").apply(patch, setting)
    torch.zeros(1, device="cuda")  # in use, as when a model was moved there


def drawn(dataset: Dataset, epochs: int = 2, **options) -> list:
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    loader = DataLoader(dataset, **{"batch_size": BATCH, "shuffle": True, **options})
    found = []
    for _ in range(epochs):
        for images, labels in loader:
            moved = images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            found.append((moved[0].cpu(), moved[1].cpu(), torch.rand(1).item()))
    return found


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape and one.dtype == other.dtype
    return float((one - other).abs().mean() / other.std())


WAYS = [
    {"num_workers": 0},
    {"num_workers": 2, "pin_memory": True},
    {"num_workers": 3, "pin_memory": True, "persistent_workers": True, "drop_last": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("transform", [trained, evaluated])
def test_near_the_plain_loader_in_every_batch(folder: Path, patch: Patch, transform, way) -> None:
    dataset = datasets.ImageFolder(str(folder), transform())
    expected = drawn(dataset, **way)
    apply(patch)
    found = drawn(dataset, **way)
    assert [(labels.tolist(), number) for _, labels, number in found] == [
        (labels.tolist(), number) for _, labels, number in expected
    ]
    distances = [distance(one, other) for (one, *_), (other, *_) in zip(found, expected, strict=True)]
    (compared,) = (comparison.facts for comparison in patch.joints.comparisons)
    print(f"\nlargest mean distance of a batch: {max(distances):.4f} of its spread; proofs {compared}")
    assert max(distances) < 0.032 and patch.joints.withdrawn == []
    assert compared.count == 16 and 0 < compared.difference < 0.5


def test_every_image_beside_a_training(folder: Path, patch: Patch) -> None:
    """Two threads feed, the host runs ahead, and the device reads batches late: no image may be another one."""
    dataset = datasets.ImageFolder(str(folder), trained())
    way = {"num_workers": 4, "pin_memory": True, "persistent_workers": True, "epochs": 12}
    expected = drawn(dataset, **way)
    apply(patch)
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True)
    kernel, found = torch.randn(32, 3, 7, 7, device="cuda"), []
    for _ in range(12):
        for images, labels in loader:
            moved = images.to("cuda", non_blocking=True)
            torch.cuda._sleep(2_000_000)  # behind which the next ones are made
            for _ in range(8):
                torch.nn.functional.conv2d(moved, kernel)
            found.append((moved.clone(), labels))
            torch.rand(1)
    for (images, labels), (own, own_labels, _) in zip(found, expected, strict=True):
        apart = (images.cpu() - own).abs().flatten(1).mean(1) / own.std()
        assert labels.tolist() == own_labels.tolist() and float(apart.max()) < 0.1
    assert patch.joints.withdrawn == []


def test_a_decoder_leaves_alone_what_is_still_read(folder: Path) -> None:
    """Torchvision's own writes into memory that was freed on the current stream and is still read there."""
    path = next(path for path in sorted(folder.rglob("*.jpg")) if Image.open(path).mode == "RGB")
    file = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    device, decoded = torch.device("cuda", 0), 3 * 375 * 500

    def read_meanwhile(decode) -> bool:
        """Whether what was read is what was there."""
        for _ in range(10):
            freed = [torch.full((decoded,), 7, dtype=torch.uint8, device=device) for _ in range(4)]
            torch.cuda._sleep(100_000_000)
            sums = [one.sum(dtype=torch.int64) for one in freed]
            del freed
            images = decode([file] * 4)
            if [int(one) for one in sums] != [7 * decoded] * 4:
                return False
            del images
        return True

    read_meanwhile(lambda files: decode_all(files, device))  # what is done once
    assert read_meanwhile(lambda files: decode_all(files, device))
    if read_meanwhile(lambda files: _by_nvjpeg(files, device)):
        pytest.xfail("this torchvision waits by itself: the stream of its own could go")


class Arrays(Dataset):
    """As CIFAR."""

    def __init__(self) -> None:
        self.data = numpy.random.default_rng(0).integers(0, 256, (COUNT, 32, 32, 3), dtype=numpy.uint8)
        crop, flip = transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()
        self.transform = transforms.Compose([crop, flip, transforms.ToTensor(), transforms.Normalize(*NORMAL)])

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        return self.transform(Image.fromarray(self.data[index])), index


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_arrays_without_files(patch: Patch, way) -> None:
    expected = drawn(Arrays(), **way)
    apply(patch)
    found = drawn(Arrays(), **way)
    assert patch.joints.withdrawn == []
    for (images, labels, number), (own, own_labels, own_number) in zip(found, expected, strict=True):
        assert labels.tolist() == own_labels.tolist() and number == own_number
        assert torch.allclose(images, own, atol=1e-6)


def test_it_lies_on_the_device_before_it_is_moved(patch: Patch) -> None:
    apply(patch)
    for images, labels in DataLoader(Arrays(), batch_size=BATCH, num_workers=2):
        assert images.device.type == "cpu" and images.shape[1:] == (3, 32, 32)
        moved = images.to("cuda", non_blocking=True)
        assert moved.is_cuda and type(moved) is torch.Tensor
        assert torch.equal(images.cuda(), moved) and torch.equal(torch.from_numpy(images.numpy()), moved.cpu())
        assert torch.equal(labels.cuda().cpu(), labels)


@pytest.mark.parametrize("fails_at", [0, 3])
def test_what_the_script_wants_pinned_is(patch: Patch, monkeypatch, fails_at: int) -> None:
    """Without a thread for it, and also once batches are made the script's own way again."""
    from hotlap.parts import device_batches

    finished, calls = device_batches.finished, []

    def short(*args):
        calls.append(1)
        if len(calls) == fails_at:
            raise torch.OutOfMemoryError("planted")
        return finished(*args)

    monkeypatch.setattr(device_batches, "finished", short)
    apply(patch)
    loader = DataLoader(Arrays(), batch_size=BATCH, num_workers=2, pin_memory=True, persistent_workers=True)
    for _ in range(2):
        for images, labels in loader:
            assert labels.is_pinned()
            images.to("cuda", non_blocking=True)
            assert not loader._iterator._pin_memory
    assert loader.pin_memory and images.is_pinned() == bool(fails_at)
    assert bool(patch.joints.withdrawn) == bool(fails_at)


def test_a_busy_device_gets_the_right_values(patch: Patch) -> None:
    """The script's stream is behind: memory must not be given away before it comes to it."""
    plain = evaluated_arrays()
    expected = list(DataLoader(plain, batch_size=BATCH))
    apply(patch)
    kept = []
    for images, labels in DataLoader(plain, batch_size=BATCH, num_workers=2):
        torch.cuda._sleep(40_000_000)
        kept.append((images.to("cuda", non_blocking=True).clone(), labels.to("cuda", non_blocking=True).clone()))
    for (images, labels), (own, own_labels) in zip(kept, expected, strict=True):
        assert torch.allclose(images.cpu(), own, atol=1e-6) and torch.equal(labels.cpu(), own_labels)


def evaluated_arrays() -> Arrays:
    found = Arrays()
    found.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(*NORMAL)])
    return found


def test_too_little_memory_ends_it_and_loses_nothing(folder: Path, patch: Patch, monkeypatch) -> None:
    from hotlap.parts import device_batches

    dataset = datasets.ImageFolder(str(folder), trained())
    expected = drawn(dataset, num_workers=2)
    finished, calls = device_batches.finished, []

    def short(*args):
        calls.append(1)
        if len(calls) == 7:
            raise torch.OutOfMemoryError("planted")
        return finished(*args)

    monkeypatch.setattr(device_batches, "finished", short)
    apply(patch)
    found = drawn(dataset, num_workers=2)
    assert [labels.tolist() for _, labels, _ in found] == [labels.tolist() for _, labels, _ in expected]
    distances = [distance(one, other) for (one, *_), (other, *_) in zip(found, expected, strict=True)]
    assert max(distances[:6]) > 0 and max(distances[6:]) == 0
    assert "OutOfMemoryError" in patch.joints.withdrawn[0]


class Many(Dataset):
    """The plain files of one folder, over and over."""

    def __init__(self, folder: Path, transform, length: int) -> None:
        self.paths = [path for path in sorted(folder.glob("*/*.jpg")) if Image.open(path).mode == "RGB"]
        self.transform, self.length = transform, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return self.transform(Image.open(self.paths[index % len(self.paths)]).convert("RGB")), index % 1000


def timed(dataset: Dataset, batch: int, first: int, step) -> float:
    """Images a second after the first batches."""
    loader = DataLoader(dataset, batch_size=batch, shuffle=True, num_workers=WORKERS, pin_memory=True)
    for number, (images, labels) in enumerate(loader):
        step(images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True))
        if number + 1 == first:
            torch.cuda.synchronize()
            start = time.perf_counter()
    torch.cuda.synchronize()
    return (len(loader) - first) * batch / (time.perf_counter() - start)


def test_images_a_second(folder: Path, patch: Patch) -> None:
    plain = timed(Many(folder, trained(), 256 * (2 * WORKERS + 16)), 256, 2 * WORKERS + 2, lambda *_: None)
    apply(patch)
    there = timed(Many(folder, trained(), 256 * 80), 256, 40, lambda *_: None)
    print(f"\nloader alone, {WORKERS} workers: {plain:.0f} -> {there:.0f} images a second; {patch.joints.withdrawn}")


def test_steps_of_a_resnet(folder: Path, patch: Patch) -> None:
    from torchvision.models import resnet50

    model = resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(images, labels) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    apply(patch)
    there = timed(Many(folder, trained(), 256 * 80), 256, 40, step)
    images, labels = torch.randn(256, 3, 224, 224, device="cuda"), torch.zeros(256, dtype=torch.long, device="cuda")
    alone = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(images, labels)
        alone.append(time.perf_counter() - start)
    print(f"\nresnet50 in bf16: {256e3 / there:.1f} ms a step, {1e3 * sorted(alone)[10]:.1f} without any data path")


def test_where_the_time_goes(folder: Path) -> None:
    """Each part alone, for one batch of 256: until the host is through with it, and until the device is."""
    from hotlap.parts.cuda_copier import CudaCopier
    from hotlap.parts.deferred_samples import Deferring
    from hotlap.parts.device_jpeg import decode_all
    from hotlap.parts.finished_images import finished
    from hotlap.parts.transform_sites import sites_of

    dataset = Many(folder, trained(), 256)
    deferring = Deferring(dataset, torch.tensor([1], dtype=torch.uint8))
    pipelines = [site.pipeline for site in sites_of(dataset)]
    device = torch.device("cuda", 0)
    copier = CudaCopier(device)
    made = deferring.__getitems__(list(range(256)))
    packed = made.batch[0]
    shared = pickle.loads(pickle.dumps(made))
    images = decode_all(packed.encoded(), device)
    parts = {
        "read and draw in one worker": lambda: deferring.__getitems__(list(range(256))),
        "pickled and back": lambda: pickle.loads(pickle.dumps(made)),
        "views": packed.encoded,
        "decode": lambda: decode_all(packed.encoded(), device),
        "decode, on the side": lambda: copier.make(lambda: decode_all(shared.batch[0].encoded(), device)),
        "transform": lambda: pipelines[0].run(images, packed.recipes[0], device),
        "decode and transform": lambda: finished(packed, pipelines, device),
        "decode and transform, on the side": lambda: copier.make(lambda: [finished(packed, pipelines, device).batch]),
    }
    print()
    for name, part in parts.items():
        found = []
        for _ in range(8):
            torch.cuda.synchronize()
            start = time.perf_counter()
            part()
            host = time.perf_counter() - start
            torch.cuda.synchronize()
            found.append((time.perf_counter() - start, host))
        whole, host = sorted(found)[3]
        print(f"{name}: {1e3 * host:.1f} ms of the host, {1e3 * whole:.1f} in all")
    print(f"{len(packed.lengths)} of 256 stayed encoded, {packed.files.nbytes / 1e6:.1f} MB")
    with torch.profiler.profile() as profile:
        finished(packed, pipelines, device)
        torch.cuda.synchronize()
    print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=12, max_name_column_width=60))
