"""A product of rows with weights, as a convolution of single pixels is one, and the sums of what it makes, so that
nothing has to be read for them again: on the way there those that a norm after it needs, on the way back those that a
norm before it needs.

Imported where triton is there: it comes with torch's CUDA builds."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from hotlap.parts.norm_kernels import passing, shared

_PROGRAMS = 264  # two for each of an H200's processors; tiles are the fastest of 28 there, for ResNet-50
_WARPS = 4
_BACK = {"ROWS": 64, "OUTPUTS": 64, "STAGES": 3}


@triton_op("hotlap::summed_product", mutates_args=())
def summed_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows, inputs and outputs, inputs: the product; sums over some rows each of its deviations and of their
    squares; and from what they deviate."""
    rows, inputs = x.shape
    outputs = weight.shape[0]
    tile = _tile(inputs, outputs)
    across = outputs // tile["OUTPUTS"]
    runs = max(1, _PROGRAMS // across)
    if isinstance(rows, int):
        runs = min(runs, triton.cdiv(rows, tile["ROWS"]))
    is_even = isinstance(rows, int) and rows % tile["ROWS"] == 0
    out, start = x.new_empty(rows, outputs), x.new_empty(outputs, dtype=torch.float32)
    sums = x.new_empty((runs, 2, outputs), dtype=torch.float32)
    wrap_triton(_summed_product)[(runs * across,)](
        x, weight, out, sums, start, rows, runs, MADE=outputs, DEPTH=inputs, IS_EVEN=is_even, WARPS=_WARPS, **tile
    )
    return out, sums, start


@triton_op("hotlap::product_joined_sums", mutates_args=())
def product_joined_sums(
    grad: Tensor, weight: Tensor, other: Tensor | None, marks: Tensor, x: Tensor, mean: Tensor, inverse: Tensor,
    added: Tensor | None, added_mean: Tensor | None, added_inverse: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """What `joined_sums` gives of `grad @ weight`, which is not written."""
    (rows, outputs), inputs = x.shape, grad.shape[1]
    across = outputs // _BACK["OUTPUTS"]
    runs = max(1, _PROGRAMS // across)
    if isinstance(rows, int):
        runs = min(runs, triton.cdiv(rows, _BACK["ROWS"]))
    is_even = isinstance(rows, int) and rows % _BACK["ROWS"] == 0
    passed = torch.empty_like(x)
    sums = x.new_empty((runs, 2 if added is None else 3, outputs), dtype=torch.float32)
    second = (x, mean) if added is None else (added, added_mean)
    wrap_triton(_product_joined_sums)[(runs * across,)](
        grad, weight, x if other is None else other, marks, x, mean, *second, passed, sums, rows, runs,
        MADE=outputs, DEPTH=inputs, HAS_OTHER=other is not None, HAS_SECOND=added is not None, IS_EVEN=is_even, **_BACK,
    )  # fmt: skip
    return passed, *shared(sums, inverse, inverse if added_inverse is None else added_inverse, rows)


def _tile(inputs: int, outputs: int) -> dict[str, Any]:
    if inputs > 128:
        return {"ROWS": 128, "OUTPUTS": 64, "INPUTS": 64, "STAGES": 4}
    if inputs > 64:
        return {"ROWS": 64, "OUTPUTS": 64, "INPUTS": 128, "STAGES": 3}
    return {"ROWS": 64, "OUTPUTS": 64 if outputs % 128 else 128, "INPUTS": 64, "STAGES": 4}


@triton.jit
def _summed_product(
    x, weight, out, sums, start, rows, runs, MADE: tl.constexpr, DEPTH: tl.constexpr, IS_EVEN: tl.constexpr,
    WARPS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """Each program has some outputs and takes tiles of rows by turns; those next to each other take the same rows,
    which are still near then. Sums stay with the threads that made the numbers: a warp's matrix unit gives each of its
    lanes every eighth row, so that only at the end somebody has to be waited for."""
    across: tl.constexpr = MADE // OUTPUTS
    run = tl.program_id(0) // across
    output = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    depth = tl.arange(0, INPUTS)
    begin = tl.full((OUTPUTS,), 0.0, tl.float32)
    for top in range(0, DEPTH, INPUTS):
        given = tl.load(weight + output[:, None] * DEPTH + (top + depth)[None, :]).to(tl.float32)
        begin += tl.sum(given * tl.load(x + top + depth).to(tl.float32)[None, :], 1)
    if run == 0:
        tl.store(start + output, begin)
    first = tl.full((WARPS * 8, OUTPUTS), 0.0, tl.float32)
    second = tl.full((WARPS * 8, OUTPUTS), 0.0, tl.float32)
    lasting = tl.load(weight + output[None, :] * DEPTH + depth[:, None])
    for tile in tl.range(run, (rows + ROWS - 1) // ROWS, runs, num_stages=STAGES if DEPTH == INPUTS else 1):
        row = tile * ROWS + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None]
        place = row.to(tl.int64)[:, None]
        if DEPTH == INPUTS:
            seen = _seen(x + place * DEPTH + depth[None, :], is_there, IS_EVEN)
            made = tl.dot(seen, lasting)
        else:
            made = tl.full((ROWS, OUTPUTS), 0.0, tl.float32)
            for top in tl.range(0, DEPTH, INPUTS, num_stages=STAGES):
                seen = _seen(x + place * DEPTH + (top + depth)[None, :], is_there, IS_EVEN)
                given = tl.load(weight + output[None, :] * DEPTH + (top + depth)[:, None])
                made = tl.dot(seen, given, made)
        rounded = made.to(out.dtype.element_ty)
        at = out + place * MADE + output[None, :]
        apart = rounded.to(tl.float32) - begin[None, :]
        if IS_EVEN:
            tl.store(at, rounded)
        else:
            tl.store(at, rounded, mask=is_there)
            apart = tl.where(is_there, apart, 0.0)
        lanes = apart.reshape(ROWS // (WARPS * 16), WARPS, 2, 8, OUTPUTS)
        first += tl.sum(tl.sum(lanes, 2), 0).reshape(WARPS * 8, OUTPUTS)
        second += tl.sum(tl.sum(lanes * lanes, 2), 0).reshape(WARPS * 8, OUTPUTS)
    tl.store(sums + run * 2 * MADE + output, tl.sum(first, 0))
    tl.store(sums + (run * 2 + 1) * MADE + output, tl.sum(second, 0))


@triton.jit
def _product_joined_sums(
    grad, weight, other, marks, x, mean, added, added_mean, passed, sums, rows, runs,
    MADE: tl.constexpr, DEPTH: tl.constexpr, HAS_OTHER: tl.constexpr, HAS_SECOND: tl.constexpr,
    IS_EVEN: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, STAGES: tl.constexpr,
):  # type: ignore[no-untyped-def]  # fmt: skip
    """The product is rounded before anything is added, as one that is written would be."""
    across: tl.constexpr = MADE // OUTPUTS
    run, block = tl.program_id(0) // across, tl.program_id(0) % across
    output = block * OUTPUTS + tl.arange(0, OUTPUTS)
    byte = block * (OUTPUTS // 8) + tl.arange(0, OUTPUTS // 8)
    depth = tl.arange(0, DEPTH)
    lasting = tl.load(weight + depth[:, None] * MADE + output[None, :])
    middle = tl.load(mean + output)[None, :]
    if HAS_SECOND:
        added_middle = tl.load(added_mean + output)[None, :]
    first = tl.full((ROWS, OUTPUTS), 0.0, tl.float32)
    second = tl.full((ROWS, OUTPUTS), 0.0, tl.float32)
    third = tl.full((ROWS, OUTPUTS), 0.0, tl.float32)
    for tile in tl.range(run, (rows + ROWS - 1) // ROWS, runs, num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        is_there = (row < rows)[:, None]
        line = row.to(tl.int64)[:, None]
        place = line * MADE + output[None, :]
        made = tl.dot(_seen(grad + line * DEPTH + depth[None, :], is_there, IS_EVEN), lasting)
        given = made.to(passed.dtype.element_ty).to(tl.float32)
        if HAS_OTHER:
            given += _seen(other + place, is_there, IS_EVEN).to(tl.float32)
        packed = _seen(marks + line * (MADE // 8) + byte[None, :], is_there, IS_EVEN)
        rounded = passing(given, packed, ROWS, OUTPUTS).to(passed.dtype.element_ty)
        if IS_EVEN:
            tl.store(passed + place, rounded)
        else:
            tl.store(passed + place, rounded, mask=is_there)
        apart = _seen(x + place, is_there, IS_EVEN).to(tl.float32) - middle
        first += rounded.to(tl.float32)
        second += rounded.to(tl.float32) * apart
        if HAS_SECOND:
            apart = _seen(added + place, is_there, IS_EVEN).to(tl.float32) - added_middle
            third += rounded.to(tl.float32) * apart
    made_sums = sums + run * (3 if HAS_SECOND else 2) * MADE + output
    tl.store(made_sums, tl.sum(first, 0))
    tl.store(made_sums + MADE, tl.sum(second, 0))
    if HAS_SECOND:
        tl.store(made_sums + 2 * MADE, tl.sum(third, 0))


@triton.jit
def _seen(at, is_there, IS_EVEN: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(at) if IS_EVEN else tl.load(at, mask=is_there, other=0)
