"""Everything in the process that hotlap could have touched, object by object."""

from __future__ import annotations

import sys
from typing import Any


def snapshot() -> dict[str, int]:
    import torch
    from torch.nn.modules import module
    from torch.optim import optimizer
    from torch.utils.data import dataloader
    from torch.utils.data._utils import fetch, worker

    owners: list[Any] = [torch, torch.autograd, torch.Tensor, torch.nn.Module, torch.nn.DataParallel]
    owners += [dataloader, fetch, worker, module, optimizer]
    owners += [value for value in vars(torch.optim).values() if isinstance(value, type)]
    owners += [value for value in (*vars(dataloader).values(), *vars(fetch).values()) if isinstance(value, type)]
    owners += [sys.modules[name] for name in ("PIL.Image", "cv2") if name in sys.modules]
    seen = {}
    for owner in owners:
        for name, value in vars(owner).items():
            seen[f"{owner.__name__}.{name}"] = id(value)
    for where in (module, optimizer):
        for name, value in vars(where).items():
            if name.startswith("_global_") and isinstance(value, dict):
                seen[f"{where.__name__}.{name} entries"] = len(value)
    finders = [type(finder).__module__ for finder in sys.meta_path]  # others come with what torch imports late
    seen["sys.meta_path"] = sum(module.startswith("hotlap.") for module in finders)
    seen["matmul precision"] = ("highest", "high", "medium").index(torch.get_float32_matmul_precision())
    seen["cudnn.benchmark"] = torch.backends.cudnn.benchmark
    return seen


def changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Names whose object is another one. A lazily imported name that is new is torch's own doing; a new entry in a
    class is not."""
    gone = [name for name in before if name not in after]
    return sorted(gone + [name for name in before if name in after and before[name] != after[name]])
