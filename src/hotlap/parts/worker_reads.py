"""Samples and errors as a loader's workers would have given them, read by somebody else."""

from __future__ import annotations

from typing import Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils._pytree import tree_map_only

from hotlap.parts.purity import reader


def read_or_raised(dataset: Any, index: Any) -> Any:
    try:
        return tree_map_only(torch.Tensor, torch.clone, reader(dataset)(index))  # a view would bring all it looks at
    except Exception:
        return ExceptionWrapper(where="in DataLoader worker process 0")


def read_as_a_worker(dataset: Any, index: Any) -> Any:
    """Here, but with one thread, as workers and forked copies have: more of them may add up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return or_raised(read_or_raised(dataset, index))
    finally:
        torch.set_num_threads(threads)


def or_raised(samples: Any) -> Any:
    """What a worker made, or its error, as a loader would show it."""
    if isinstance(samples, ExceptionWrapper):
        samples.reraise()
    return samples
