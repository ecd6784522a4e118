"""Sketches of batches: near where only rounding differs, far where an image does."""

from __future__ import annotations

import math

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
