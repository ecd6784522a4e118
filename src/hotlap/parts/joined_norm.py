"""Batch norm in training with something added and relu after that, as residual networks have it: what is added may be
normed as well. Of the result bits are kept, one for each pixel, that tell where gradients pass."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotlap.parts.summed_norm import (
    Norm,
    affine_of,
    as_images,
    as_rows,
    for_affine,
    has_kernels,
    move_on,
    shares_of,
    statistics_of,
    wide,
)

_FIELDS = len(Norm._fields)


def joined_batch_norm(x: Tensor, added: Tensor, *norms: Any) -> tuple[Tensor, Tensor]:
    """`norms`: the fields of one `Norm`, or of two, the second for what is added, which is of the same size and type.
    Twice the same tensor, for two readers: what they give back is then added up in one go with the rest."""
    by = [Norm(*norms[first : first + _FIELDS]) for first in range(0, len(norms), _FIELDS)]
    out, twin, *statistics = _JoinedNorm.apply(x, added, *[one for each in by for one in each.affine])
    for at, each in enumerate(by):
        move_on(each, *statistics[2 * at : 2 * at + 2], x.numel() // x.shape[1])
    return out, twin


class _Side(NamedTuple):
    """Pixels that are normed, and by what."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    inverse: Tensor

    @property
    def apart(self) -> Tensor:
        return self.x.to(self.mean.dtype) - wide(self.mean)

    @property
    def by(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, *affine_of(self.weight, self.bias, self.inverse)

    @property
    def normed(self) -> Tensor:
        _, scale, shift = self.by
        return self.apart * wide(scale) + wide(shift)


class _JoinedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, *affine: Any) -> Any:
        sides, statistics = [], []
        for one, first in zip((x, added), range(0, len(affine), 3), strict=False):
            weight, bias, eps = affine[first : first + 3]
            mean, var, inverse = statistics_of(one, eps)
            sides.append(_Side(one, weight, bias, mean, inverse))
            statistics += [mean, var]
        ctx.has_marks = has_kernels(x) and x.shape[1] % 8 == 0
        if ctx.has_marks:
            from hotlap.parts.pixel_kernels import joined_normed

            others = sides[1].by if len(sides) > 1 else (None,) * 3
            rows, marks = joined_normed(as_rows(x), *sides[0].by, as_rows(added), *others)
            out = as_images(rows, x)
        else:
            other = sides[1].normed if len(sides) > 1 else added.to(statistics[0].dtype)
            marks = out = (sides[0].normed + other).relu().to(x.dtype)
        ctx.save_for_backward(marks, *[one for side in sides for one in side])
        ctx.mark_non_differentiable(*statistics)
        ctx.set_materialize_grads(False)
        return out, out.view_as(out), *statistics

    @staticmethod
    @once_differentiable  # what is kept of the way there has no way back of its own
    def backward(ctx: Any, grad: Tensor | None, twins: Tensor | None, *_: Any) -> Any:
        marks, *saved = ctx.saved_tensors
        sides = [_Side(*saved[first : first + 5]) for first in range(0, len(saved), 5)]
        if grad is None:
            grad, twins = twins, None
        if grad is None:
            return (None,) * (2 + 3 * len(sides))
        given = _by_kernels if ctx.has_marks else _plainly
        passed, sums, for_pixels = given(grad, twins, marks, sides)
        for_norms = []
        for side, of_weight in zip(sides, sums[1:], strict=True):
            for_norms += [*for_affine(of_weight, sums[0], side.weight, side.bias, side.inverse), None]
        return *for_pixels, *([passed] if len(sides) == 1 else []), *for_norms


def _by_kernels(grad: Tensor, twins: Tensor | None, marks: Tensor, sides: list[_Side]) -> Any:
    from hotlap.parts.norm_kernels import joined_sums
    from hotlap.parts.pixel_kernels import both_given_back, given_back

    one, rows = sides[0], [as_rows(side.x) for side in sides]
    second = (rows[1], sides[1].mean, sides[1].inverse) if len(sides) > 1 else (None,) * 3
    other = None if twins is None else as_rows(twins)
    passed, sums, along, level = joined_sums(as_rows(grad), other, marks, rows[0], one.mean, one.inverse, *second)
    mean, scale, shift = one.by
    if len(sides) == 1:
        made = [given_back(passed, rows[0], mean, scale, shift, along[0], level, False)]
    else:
        other_mean, other_scale, _ = sides[1].by
        made = both_given_back(
            passed, rows[0], mean, scale, along[0], rows[1], other_mean, other_scale, along[1], level
        )
    return as_images(passed, one.x), sums, [as_images(each, one.x) for each in made]


def _plainly(grad: Tensor, twins: Tensor | None, out: Tensor, sides: list[_Side]) -> Any:
    joined = torch.where(out <= 0.0, 0.0, grad if twins is None else grad + twins)
    passed = joined.to(sides[0].mean.dtype)
    sums = [passed.sum((0, 2, 3)), *((passed * side.apart).sum((0, 2, 3)) for side in sides)]
    for_pixels = []
    for side, of_weight in zip(sides, sums[1:], strict=True):
        along, level = shares_of(sums[0], of_weight, side.x, side.inverse)
        made = (passed - side.apart * wide(along) - wide(level)) * wide(side.by[1])
        for_pixels.append(made.to(side.x.dtype))
    return joined, sums, for_pixels
