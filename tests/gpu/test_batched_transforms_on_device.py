"""Batched transforms on a real device: the script's own images met as on the CPU, whatever precision the script allows
its products; and, as information, how long a batch of photos takes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "parts"))

from same_draw import PHOTOS, VERSIONS, compared, pipelines, recognised, v1, v2
from test_batched_transforms import ended, exact, floats

from hotlap.parts import batched_transforms, framing_by_kernels, resampling
from hotlap.parts.axis_views import Axis
from hotlap.parts.batched_transforms import Pipeline
from hotlap.parts.filter_taps import taken_each, taps
from hotlap.parts.packed_images import Images

pytestmark = pytest.mark.gpu

LARGE = (*PHOTOS, (500, 375), (375, 500), (640, 427))


@pytest.fixture(params=["highest", "high"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("kind", exact(v2))
@pytest.mark.parametrize("version", VERSIONS)
def test_the_same_draw_gives_the_same_levels(version: str, kind: str) -> None:
    found = compared(ended(VERSIONS[version], exact(VERSIONS[version])[kind]), sizes=LARGE, device="cuda")
    print(f"\n{version} {kind}: largest {found.largest:.0f}, mean {found.mean:.6f} levels")
    assert found.same_states and found.largest == 0


@pytest.mark.parametrize("kind", floats(v2))
def test_floats_and_blurs(kind: str, precision: str) -> None:
    steps = floats(v2)[kind]
    steps += [] if any(type(step).__name__ == "ToTensor" for step in steps) else [v2.ToTensor()]
    found = compared(v2.Compose(steps), device="cuda")
    print(f"\n{kind}, {precision}: largest {found.largest:.4f}, mean {found.mean:.6f} levels")
    assert found.same_states and found.largest <= 1.001 and found.mean <= 0.001


@pytest.mark.parametrize("name", pipelines(v2))
def test_whole_pipelines(name: str, precision: str) -> None:
    sizes = [(32, 32)] * 6 if name == "CIFAR" else LARGE
    with torch.autocast("cuda", dtype=torch.bfloat16):  # which must not reach the products
        found = compared(pipelines(v2)[name], sizes=sizes, device="cuda")
    print(f"\n{name}, {precision}: {found.deviations:.7f} of {found.pipeline.tolerance:.7f} standard deviations")
    assert found.same_states and found.deviations <= found.pipeline.tolerance
    if name != "SimCLR":
        assert torch.equal(found.made, found.wanted)


@pytest.mark.parametrize("rows_first", [True, False])
@pytest.mark.parametrize("name", ["ImageNet, training", "ImageNet, evaluation"])
def test_images_are_reached_where_they_lie(name: str, rows_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded one by one, on a stream of their own; one of them is not as it should lie. No buffer is made of them, in
    any parts it is the same batch, and torch makes the same of them in its own ways, whichever axis tall ones take
    first."""
    monkeypatch.setattr(resampling, "pillow_takes_rows_first", lambda: rows_first)
    pipeline = recognised(pipelines(v1)[name])
    assert isinstance(pipeline, Pipeline)
    sizes = [(375, 500) if at % 3 else (500, 375) for at in range(31)] + [(1200, 64), (64, 300)]
    with torch.cuda.stream(torch.cuda.Stream()):
        images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8, device="cuda") for size in sizes]
        images[3] = images[3].permute(1, 2, 0).contiguous().permute(2, 0, 1)
    torch.cuda.synchronize()
    recipes = [pipeline.draw(width, height) for height, width in sizes]
    with monkeypatch.context() as patch:
        for module in (resampling, batched_transforms):
            patch.setattr(module, "kernels", lambda device: None)
        plainly = pipeline.run(images, recipes, "cuda")
    monkeypatch.delattr("hotlap.parts.packed_images._joined")
    made = pipeline.run(images, recipes, "cuda")
    assert torch.equal(made, plainly) and not resampling._unusable
    monkeypatch.setattr(framing_by_kernels, "MOST_ELEMENTS", 1 << 18)
    assert torch.equal(pipeline.run(images, recipes, "cuda"), made)


@pytest.mark.parametrize("filter", ["nearest", "bilinear", "bicubic"])
def test_weights_are_torchs(filter: str) -> None:
    """Bit by bit: a compiler that makes one of a product and a sum would round other weights."""
    own = resampling.kernels(torch.device("cuda"))
    assert own is not None
    draw, rows = np.random.default_rng(0), []
    for resized in draw.integers(30, 300, 500).tolist():
        length = int(draw.integers(1, 900))
        rows.append((1, 0, 0, length, length, resized, -1, resized - 1, 0, resized, resized))
    numbers = np.array(rows)
    sides = numbers[:, 4]
    images = Images(torch.empty(0, dtype=torch.uint8), *[sides] * 5, channels=1)
    axis = Axis.of(numbers, sides, False)
    most, device = int(taken_each(numbers, filter).max()), torch.device("cuda")
    given = torch.from_numpy(framing_by_kernels.told(images, images.starts, axis, axis)).to(device)
    chosen = framing_by_kernels._nearest(filter, [numbers] * 2, device)
    for made in own.taps(given, chosen, [most] * 2, (len(rows), 1, axis.longest, axis.longest), filter):
        looks = made.looks[: len(rows) * most * axis.longest].view(-1, most, axis.longest).transpose(1, 2).cpu()
        for first in range(0, len(rows), 100):  # whose weights fit
            part = slice(first, first + 100)
            place, weight = taps(numbers[part], torch.device("cpu"), filter, True)
            taken = torch.from_numpy(np.arange(most) < taken_each(numbers[part], filter)[:, None])[:, None]
            wide, high = min(most, place.shape[2]), place.shape[1]
            weighs = torch.where(taken, looks[part, :high] >> 32, 0)[:, :, :wide]
            is_made = torch.arange(high) < torch.from_numpy(numbers[part, 10])[:, None]
            assert torch.equal(weighs[is_made], weight[:, :, :wide].long()[is_made]) and not weight[:, :, wide:].any()
            is_looked = is_made[:, :, None] & (weighs != 0)
            assert torch.equal((looks[part, :high, :wide] & 0xFFFFFFFF)[is_looked], place[:, :, :wide][is_looked])


def test_the_host_does_not_wait() -> None:
    pipeline = recognised(pipelines(v1)["ImageNet, training"])
    assert isinstance(pipeline, Pipeline)
    images = [torch.randint(0, 256, (3, 60, 80), dtype=torch.uint8, device="cuda") for _ in range(4)]
    recipes = [pipeline.draw(80, 60) for _ in images]
    pipeline.run(images, recipes, "cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        pipeline.run(images, recipes, "cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("are_apart", [True, False], ids=["one by one", "in a buffer"])
@pytest.mark.parametrize("name", ["ImageNet, training", "ImageNet, evaluation", "SimCLR"])
def test_how_long_a_batch_takes(name: str, are_apart: bool) -> None:
    pipeline = recognised(pipelines(v1)[name])
    assert isinstance(pipeline, Pipeline)
    sizes = [(375, 500) if number % 3 else (500, 375) for number in range(256)]
    buffer = torch.randint(0, 256, (sum(3 * h * w for h, w in sizes) + 512,), dtype=torch.uint8, device="cuda")
    recipes = [pipeline.draw(width, height) for height, width in sizes]
    held = [buffer[: 3 * h * w].view(3, h, w) for h, w in sizes] if are_apart else Images.in_buffer(buffer, sizes, 3)
    for _ in range(3):
        pipeline.run(held, recipes, "cuda")
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        pipeline.run(held, recipes, "cuda")
        torch.cuda.synchronize()
    launches = sum(event.count for event in profile.key_averages() if event.self_device_time_total)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        pipeline.run(held, recipes, "cuda")
    end.record()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 2**20
    print(
        f"\n{name}: {start.elapsed_time(end) / 10:.2f} ms a batch of 256, {launches} launches, {peak:.0f} MiB at most"
    )
    for event in sorted(profile.key_averages(), key=lambda event: -event.device_time_total)[:8]:
        print(f"  {event.device_time_total / 1000:7.3f} ms {event.count:4d} x {event.key[:90]}")
