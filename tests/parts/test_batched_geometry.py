"""The pieces of batched transforms on sizes and settings that nobody chose: views, resizes, colours, maps, products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from same_draw import compared, picture, pil_to_tensor, v1, v2

from hotlap.parts.axis_views import View, places
from hotlap.parts.colours import turned_hue
from hotlap.parts.exact_products import halves_times, in_halves, joined, levels_times, product
from hotlap.parts.filter_taps import pillow_takes_rows_first
from hotlap.parts.packed_images import Images

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

sides = st.integers(1, 70)
several = st.lists(st.tuples(sides, sides), min_size=1, max_size=4)
modes = st.sampled_from(["RGB", "L"])
seeds = st.integers(0, 10_000)
few = settings(max_examples=25, deadline=None)


@st.composite
def chains(draw: Any) -> tuple[int, list[tuple[str, int, int]]]:
    """A length, and crops, flips and pads that fit one another."""
    length = first = draw(st.integers(1, 12))
    steps = []
    for kind in draw(st.lists(st.sampled_from(["crop", "flip", "pad"]), max_size=6)):
        if kind == "crop":
            start = draw(st.integers(0, length - 1))
            one, other = start, draw(st.integers(1, length - start))
            length = other
        else:
            one, other = (0, 0) if kind == "flip" else (draw(st.integers(0, 5)), draw(st.integers(0, 5)))
            length += one + other
        steps.append((kind, one, other))
    return first, steps


@given(chains())
@settings(max_examples=200, deadline=None)
def test_any_chain_of_crops_flips_and_pads_is_one_view(chain: tuple[int, list[tuple[str, int, int]]]) -> None:
    length, steps = chain
    wanted, view = np.arange(1, length + 1), View.whole(length)
    for kind, one, other in steps:
        if kind == "crop":
            wanted, view = wanted[one : one + other], view.cropped(one, other)
        elif kind == "flip":
            wanted, view = wanted[::-1], view.flipped()
        else:
            wanted, view = np.pad(wanted, (one, other)), view.padded(one, other)
    at = torch.arange(len(wanted))[None]
    place, there = places(torch.tensor([view]), at, "constant")
    assert torch.where(there, place + 1, 0)[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("border", ["edge", "reflect", "symmetric"])
@given(length=st.integers(1, 9), before=st.integers(0, 30), after=st.integers(0, 30), flips=st.booleans())
@few
def test_borders_are_numpys(border: str, length: int, before: int, after: int, flips: bool) -> None:
    wanted, view = np.pad(np.arange(length), (before, after), mode=border), View.whole(length).padded(before, after)
    if flips:
        wanted, view = wanted[::-1], view.flipped()
    place, _ = places(torch.tensor([view]), torch.arange(len(wanted))[None], border)
    assert place[0].tolist() == wanted.tolist()


@pytest.mark.parametrize("name", ["nearest", "bilinear", "bicubic"])
@given(sizes=several, height=sides, width=sides, mode=modes)
@few
def test_any_resize(name: str, sizes: list[tuple[int, int]], height: int, width: int, mode: str) -> None:
    transform = v2.Compose([v2.Resize((height, width), v2.InterpolationMode(name)), v2.PILToTensor()])
    assert compared(transform, sizes=sizes, mode=mode).largest == 0


@given(sizes=several, side=sides, lower=st.floats(0.01, 1.0), ratio=st.floats(0.2, 1.0), seed=seeds)
@few
def test_any_resized_crop(sizes: list[tuple[int, int]], side: int, lower: float, ratio: float, seed: int) -> None:
    crop = v1.RandomResizedCrop(side, scale=(lower, 1.0), ratio=(ratio, 1 / ratio))
    flips = [v1.RandomHorizontalFlip(), v1.RandomVerticalFlip()]
    found = compared(v1.Compose([*flips, crop, *flips, v1.PILToTensor()]), sizes=sizes, seed=seed)
    assert found.same_states and found.largest == 0


@given(
    sizes=several,
    side=sides,
    padding=st.tuples(*[st.integers(0, 9)] * 4),
    fill=st.integers(0, 255),
    resized=st.booleans(),
    seed=seeds,
)
@few
def test_any_padded_crop(sizes: Any, side: int, padding: tuple[int, ...], fill: int, resized: bool, seed: int) -> None:
    crop = v1.RandomCrop(side, padding=padding, pad_if_needed=True, fill=fill)
    steps = [v1.Resize((20, 30)), v1.RandomHorizontalFlip(), crop] if resized else [v1.RandomHorizontalFlip(), crop]
    found = compared(v1.Compose([*steps, v1.PILToTensor()]), sizes=sizes, seed=seed)
    assert found.same_states and found.largest == 0


@given(sizes=several, strengths=st.tuples(*[st.floats(0, 2)] * 3), hue=st.floats(0, 0.5), mode=modes, seed=seeds)
@few
def test_any_jitter(sizes: Any, strengths: tuple[float, ...], hue: float, mode: str, seed: int) -> None:
    """Images of many sizes in one stack: the mean that contrast needs is each image's own."""
    steps = [v2.ColorJitter(*strengths, hue), v2.RandomGrayscale(0.3), v2.Resize((9, 9)), v2.PILToTensor()]
    found = compared(v2.Compose(steps), sizes=sizes, mode=mode, seed=seed)
    assert found.same_states and found.largest == 0


@given(shift=st.integers(-127, 127), seed=seeds)
@few
def test_hue_of_any_colour(shift: int, seed: int) -> None:
    pixels = np.random.RandomState(seed).randint(0, 256, (64, 64, 3), dtype=np.uint8)
    pixels[:8, :, 1] = pixels[:8, :, 0]  # two channels alike
    pixels[8:12] = pixels[8:12, :, :1]  # grey
    factor = (shift + (0.5 if shift > 0 else -0.5)) / 255
    turned = v2.functional.adjust_hue(Image.fromarray(pixels), factor)
    made = turned_hue(torch.from_numpy(pixels).permute(2, 0, 1)[None], torch.tensor([shift % 256]).view(-1, 1, 1))
    assert torch.equal(made[0], pil_to_tensor(turned))


@pytest.mark.parametrize("name", ["nearest", "bilinear"])
@given(sizes=several, degrees=st.floats(0, 180), scale=st.floats(0.3, 1.0), shear=st.floats(0, 40), seed=seeds)
@few
def test_any_map(name: str, sizes: Any, degrees: float, scale: float, shear: float, seed: int) -> None:
    """A place that falls right between two pixels may go to the other one."""
    mode = v2.InterpolationMode(name)
    affine = v2.RandomAffine(degrees, (0.3, 0.3), (scale, 1.5), shear, mode, fill=7)
    steps = [affine, v2.RandomRotation(degrees, mode), v2.Resize((40, 40)), v2.PILToTensor()]
    found = compared(v2.Compose(steps), sizes=sizes, seed=seed)
    assert found.same_states and found.mean <= 0.05


@pytest.mark.parametrize("weights", [1, 2])
def test_products_in_halves_are_exact(weights: int) -> None:
    """What a device does with its matrix units, played on the CPU."""
    levels = torch.randint(0, 256, (3, 20, 20), dtype=torch.uint8)
    shares = torch.rand(3, 20, 20) - 0.1  # some below nothing, as with bicubic, and one all together
    given_weights = (shares / shares.sum(3 - weights, keepdim=True) * (1 << 22)).round()
    edge = torch.tensor([1.125, -0.125, *[0.0] * 18]) * (1 << 22) + torch.tensor([1.0, -1.0, *[0.0] * 18])
    given_weights.transpose(1, weights)[:, 0] = edge  # as large as a weight gets
    whole = (given_weights, levels) if weights == 1 else (levels, given_weights)
    wanted = ((torch.bmm(*(factor.long() for factor in whole)) + (1 << 21)) >> 22).clamp(0, 255).byte()
    assert torch.equal(levels_times(*whole, weights), wanted)
    halves = in_halves(given_weights.transpose(1, weights)).transpose(1, weights)
    assert torch.equal(halves.half().float(), halves), "half precision holds them"
    sums = halves_times(halves, levels) if weights == 1 else halves_times(levels, halves)
    assert torch.equal(joined(sums, weights), wanted)


def test_split_products_are_as_good_as_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = torch.randn(2, 30, 40), torch.randn(2, 40, 50)
    wanted = torch.bmm(first.double(), second.double())
    monkeypatch.setattr("hotlap.parts.exact_products._products_are_exact", lambda: False)
    assert (product(first, second) - wanted).abs().max() < 1e-4


def test_rows_first_is_what_pillow_does() -> None:
    """Whichever this Pillow does, a tall image must come out as Pillow has it, and the other order must show."""
    tall = picture(40, 200)
    bilinear = Image.Resampling.BILINEAR
    orders = [tall.resize((30, 200), bilinear).resize((30, 20), bilinear)]
    orders += [tall.resize((40, 20), bilinear).resize((30, 20), bilinear)]
    by_pillow, (other, same) = np.asarray(tall.resize((30, 20), bilinear)), orders
    if not pillow_takes_rows_first():
        other, same = same, other
    assert np.array_equal(by_pillow, same) and not np.array_equal(by_pillow, other)


def test_rows_come_from_anywhere_in_the_buffer() -> None:
    images = [
        torch.arange(24, dtype=torch.uint8).view(1, 4, 6),
        torch.arange(100, 115, dtype=torch.uint8).view(1, 5, 3),
    ]
    packed = Images.packed(images, torch.device("cpu"))
    assert packed.rows(torch.tensor([[7, 24 + 3]]), 3).tolist() == [[[7, 8, 9], [103, 104, 105]]]
    assert packed.rows(torch.tensor([24 + 12]), 6)[0, :3].tolist() == [112, 113, 114], "the last row has room behind it"
