"""What a batch is, however it is packed: its samples, its bytes, and how many are ready."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_THINGS = 4096  # in one batch, when its size is taken


def ready_batches(iterator: Any) -> int:
    """How many batches are ready: those that came out of turn, and those not yet taken from the queue."""
    try:
        ready = sum(len(task) > 1 for task in list(iterator._task_info.values()))
        return int(min(ready + iterator._data_queue.qsize(), len(iterator._task_info)))
    except (AttributeError, NotImplementedError, OSError):  # macOS cannot count a queue
        return 0


def batch_samples(fetcher: Any, index: Any, batch: Any) -> int:
    if isinstance(index, (list, tuple)):
        cut = getattr(fetcher, "ended", False)  # an iterable's last batch
        return min(shared_length(batch) or len(index), len(index)) if cut else len(index)
    return shared_length(batch) or 1


def shared_length(batch: Any) -> int:
    """The first dimension, where all its tensors have the same."""
    lengths = {length for _, length in tensor_sizes(batch)}
    return lengths.pop() if len(lengths) == 1 else 0


def tensor_sizes(batch: Any) -> Iterator[tuple[int, int]]:
    """Bytes and first dimension of each tensor in it."""
    for array in _arrays(batch):
        try:
            yield int(array.nbytes), int(array.shape[0]) if len(array.shape) else 0
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):  # nested and sparse ones have no such
            continue


def _arrays(batch: Any) -> Iterator[Any]:
    """The tensors and arrays in a batch, however they are packed. None of its own code is run."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    kinds = (torch.Tensor,) if numpy is None else (torch.Tensor, numpy.ndarray)
    stack, seen, budget = [batch], set(), _THINGS
    while stack and budget:
        thing = stack.pop()
        budget -= 1
        if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type)) or thing is None:
            continue
        seen.add(id(thing))
        if isinstance(thing, kinds):
            yield thing
        elif isinstance(thing, (list, tuple)):
            stack.extend(reversed(thing))
        else:
            held = thing if isinstance(thing, dict) else getattr(thing, "__dict__", None)
            if isinstance(held, dict):
                stack.extend(reversed(list(dict.values(held))))
