"""Batches gathered on a device, which stand in main memory for the script. Rows on the processor have values to look
at; the meta device stands for one to move to."""

from __future__ import annotations

import numpy
import pytest
import torch

from hotlap.parts import resident_mirror
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
