"""A loop that ends where memory says, and nothing else: Triton's interpreter must be able to count. That of Triton 3.6
cannot, where numpy takes no array of one for a number any more (2.4).

Imported where triton is there, once it is told to interpret."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _loop(bound):
    for _ in range(tl.load(bound)):
        pass


def can_count() -> bool:
    try:
        _loop[(1,)](torch.ones(1, dtype=torch.int32))
    except triton.runtime.errors.InterpreterError:
        return False
    return True
