"""Batch norm in training with something added and relu after that, as residual networks have it: what is added may be
normed as well. Of the result bits are kept, one for each pixel, that tell where gradients pass. A convolution that
reads it may belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hotlap.parts.summed_convolution import as_columns, given_back_by_product, product
from hotlap.parts.summed_norm import (
    Known,
    Norm,
    as_images,
    as_rows,
    for_affine,
    has_kernels,
    known_of,
    shares_of,
    wide,
)

_FIELDS, _GIVEN = len(Norm._fields), 2 + len(Known._fields)


def joined_batch_norm(x: Tensor, added: Tensor, *norms: Any, sums: Sequence[Any] = ()) -> tuple[Tensor, Tensor]:
    """`norms`: the fields of one `Norm`, or of two, the second for what is added, which is of the same size and type;
    `sums`: for each of them, as for `batch_norm`. Twice the same tensor, for two readers: what they give back is then
    added up in one go with the rest."""
    out, twin = _JoinedNorm.apply(x, added, None, *_given(x, added, norms, sums))
    return out, twin


def joined_product(x: Tensor, added: Tensor, weight: Tensor, *norms: Any, sums: Sequence[Any] = ()) -> tuple[Any, ...]:
    """The same, of which a convolution of single pixels is the first reader: what that makes of it, and, where they are
    made on the way, the fields of `Sums`. What it gives back is then added up without being written."""
    made: tuple[Any, ...] = _JoinedNorm.apply(x, added, weight, *_given(x, added, norms, sums))
    return made


def _given(x: Tensor, added: Tensor, norms: Sequence[Any], sums: Sequence[Any]) -> list[Any]:
    """Weight, bias and what is known, of each that is normed."""
    by = [Norm(*norms[first : first + _FIELDS]) for first in range(0, len(norms), _FIELDS)]
    given: list[Any] = []
    for each, pixels, known in zip(by, (x, added), (*sums, None, None), strict=False):
        given += [each.weight, each.bias, *known_of(pixels, each, known)]
    return given


class _Side(NamedTuple):
    """Pixels that are normed, and by what."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    inverse: Tensor
    scale: Tensor
    shift: Tensor

    @property
    def apart(self) -> Tensor:
        return self.x.to(self.mean.dtype) - wide(self.mean)

    @property
    def by(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.scale, self.shift

    @property
    def normed(self) -> Tensor:
        return self.apart * wide(self.scale) + wide(self.shift)


class _JoinedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, weight: Tensor | None, *given: Any) -> Any:
        firsts = range(0, len(given), _GIVEN)
        sides = [_Side(one, *given[at : at + _GIVEN]) for one, at in zip((x, added), firsts, strict=False)]
        ctx.has_marks = has_kernels(x) and x.shape[1] % 8 == 0
        if ctx.has_marks:
            from hotlap.parts.pixel_kernels import joined_normed

            others = sides[1].by if len(sides) > 1 else (None,) * 3
            rows, marks = joined_normed(as_rows(x), *sides[0].by, as_rows(added), *others)
            out = as_images(rows, x)
        else:
            other = sides[1].normed if len(sides) > 1 else added.to(sides[0].mean.dtype)
            marks = out = (sides[0].normed + other).relu().to(x.dtype)
        ctx.set_materialize_grads(False)
        kept = [one for side in sides for one in side]
        if weight is None:
            ctx.save_for_backward(marks, None, None, *kept)
            return out, out.view_as(out)
        ctx.save_for_backward(marks, out, weight, *kept)
        y, *told = product(out, weight)
        ctx.mark_non_differentiable(*told)
        return out, y, *told

    @staticmethod
    @once_differentiable  # what is kept of the way there has no way back of its own
    def backward(ctx: Any, grad: Tensor | None, other: Tensor | None, *_: Any) -> Any:
        """`other`: of its second reader, or of what a product made of it."""
        marks, out, weight, *saved = ctx.saved_tensors
        sides = [_Side(*saved[first : first + 1 + _GIVEN]) for first in range(0, len(saved), 1 + _GIVEN)]
        if grad is None and other is None:
            return (None,) * (3 + _GIVEN * len(sides))
        for_weight = for_out = None
        if weight is not None and other is not None:
            wanted = not ctx.has_marks, ctx.needs_input_grad[2]  # kernels go back through the product themselves
            for_out, for_weight = given_back_by_product(other, out, weight, wanted)
        if ctx.has_marks:
            passed, sums, for_pixels = _by_kernels(grad, other, weight, marks, sides)
        else:
            passed, sums, for_pixels = _plainly(grad, other if for_out is None else for_out, marks, sides)
        for_norms = []
        for side, of_weight, of_bias in zip(sides, sums[1:], (sums[0], sums[-1]), strict=False):
            for_norms += [*for_affine(of_weight, of_bias, side.weight, side.bias), *(None,) * len(Known._fields)]
        return *for_pixels, *([passed] if len(sides) == 1 else []), for_weight, *for_norms


def _by_kernels(
    grad: Tensor | None, other: Tensor | None, weight: Tensor | None, marks: Tensor, sides: list[_Side]
) -> Any:
    from hotlap.parts.norm_kernels import joined_sums
    from hotlap.parts.pixel_kernels import both_given_back, given_back

    one, rows = sides[0], [as_rows(side.x) for side in sides]
    second = (rows[1], sides[1].mean, sides[1].inverse) if len(sides) > 1 else (None,) * 3
    given = (marks, rows[0], one.mean, one.inverse, *second)
    if weight is not None and other is not None:
        from hotlap.parts.product_kernels import product_joined_sums

        beside = None if grad is None else as_rows(grad)
        passed, sums, along, level = product_joined_sums(as_rows(other), as_columns(weight), beside, *given)
    else:
        first, *more = [as_rows(each) for each in (grad, other) if each is not None]
        passed, sums, along, level = joined_sums(first, more[0] if more else None, *given)
    mean, scale, shift = one.by
    if len(sides) == 1:
        made = [given_back(passed, rows[0], mean, scale, shift, along[0], level, False)]
    else:
        other_mean, other_scale, _ = sides[1].by
        made = both_given_back(
            passed, rows[0], mean, scale, along[0], rows[1], other_mean, other_scale, along[1], level
        )
    return as_images(passed, one.x), sums, [as_images(each, one.x) for each in made]


def _plainly(grad: Tensor | None, other: Tensor | None, out: Tensor, sides: list[_Side]) -> Any:
    joined = torch.where(out <= 0.0, 0.0, sum(each for each in (grad, other) if each is not None))
    passed = joined.to(sides[0].mean.dtype)
    sums = [passed.sum((0, 2, 3)), *((passed * side.apart).sum((0, 2, 3)) * side.inverse for side in sides)]
    for_pixels = []
    for side, of_weight in zip(sides, sums[1:], strict=True):
        along, level = shares_of(sums[0], of_weight, side.x, side.inverse)
        made = (passed - side.apart * wide(along) - wide(level)) * wide(side.scale)
        for_pixels.append(made.to(side.x.dtype))
    return joined, [*sums, sums[0].clone()], for_pixels  # the second bias has a gradient of its own
