"""Sketches of batches: near where only rounding differs, far where an image does."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.measure.prints import distance, sketch


def batch(number: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(number, 3, 4, 4, generator=generator)
    images = torch.nn.functional.interpolate(coarse, size=24, mode="bilinear")
    return [images, torch.arange(number)]


def test_single_pixels_that_are_far_off_are_no_other_batch() -> None:
    """As at the edges of colours, which each decoder enlarges in its own way."""
    images, labels = batch()
    other = images.clone()
    generator = torch.Generator().manual_seed(1)
    other[torch.rand(other.shape, generator=generator) < 0.002] += 1.0
    assert 0 < distance(sketch([images, labels]), sketch([other, labels])) < 0.02


def test_one_image_in_another_place_is() -> None:
    images, labels = batch()
    for place in range(0, len(images), 7):
        other = images.clone()
        other[place] = images[place - 1]
        assert distance(sketch([images, labels]), sketch([other, labels])) > 0.02


@pytest.mark.parametrize("shape", [(64, 1, 28), (128, 3, 32), (32, 1, 32), (16, 3, 96)])
def test_images_mirrored_or_cropped_a_pixel_aside_are_another_batch(shape: tuple[int, int, int]) -> None:
    number, channels, size = shape
    generator = torch.Generator().manual_seed(0)
    waves = torch.fft.rfft2(torch.randn(number, channels, size, size, generator=generator))
    slowness = torch.fft.fftfreq(size)[:, None].hypot(torch.fft.rfftfreq(size)).clamp(min=1 / size)
    images = torch.fft.irfft2(waves / slowness, s=(size, size))  # as smooth as photos are
    for aside in (images.flip(3), images.roll(1, 3)):
        other = images.clone()
        other[::2] = aside[::2]
        assert distance(sketch([images]), sketch([other])) > 0.02


@pytest.mark.parametrize("length", [300, 510, 766, 1500, 2046, 5000])
def test_no_end_of_a_tensor_is_left_out(length: int) -> None:
    numbers = torch.randn(length, generator=torch.Generator().manual_seed(0))
    other = numbers.clone()
    other[-length // 5 :] += 1
    assert distance(sketch([numbers]), sketch([other])) > 0.02


def test_another_label_or_shape_is_infinitely_far() -> None:
    images, labels = batch()
    assert distance(sketch([images, labels]), sketch([images, labels.flip(0)])) == math.inf
    assert distance(sketch([images, labels]), sketch([images[..., :-1], labels])) == math.inf


def test_the_layout_in_memory_does_not_matter() -> None:
    images, labels = batch()
    wide = torch.stack([images, images + 1], -1)
    for other in (images.to(memory_format=torch.channels_last), wide[..., 0]):
        assert sketch([other, labels]) == sketch([images, labels])
    every_second = torch.stack([images.flatten(), images.flatten() + 1], -1).flatten()[::2]
    assert sketch([every_second]) == sketch([images.flatten()])


def test_what_is_small_or_empty_has_a_sketch_too() -> None:
    for floats in (torch.empty(0), torch.tensor(3.0), torch.arange(5.0)):
        assert distance(sketch([floats]), sketch([floats.clone()])) == 0.0
    assert distance(sketch([torch.arange(5.0)]), sketch([torch.arange(5.0) + 1])) > 0.02
