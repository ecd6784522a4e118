"""What this machine can do at best, measured here and now: matrix products by dtype, and copying.

Short, warmed up, on ones: no random numbers are drawn, no flag and no number of threads is touched."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_CPU_SECONDS = 0.04  # for each of the two figures, warm-up included for the larger part
_CPU_SIZES = (512, 1024, 2048)  # the next one only where the last was too short to keep all cores busy
_CPU_SHORT_SECONDS = 0.004
_CPU_COPY_BYTES = 64 << 20  # beyond most caches
_CUDA_SECONDS = 0.012  # for each figure
_CUDA_SIZE = 4096
_CUDA_COPY_BYTES = 128 << 20
_CUDA_FREE_BYTES = 2 << 30  # with less than this free, the script may need it


def measure(device: str) -> tuple[dict[str, float], float]:
    """(flops a second by dtype, bytes a second); empty where it cannot be measured."""
    import torch
    from torch.utils import _python_dispatch as modes

    try:
        if modes._len_torch_dispatch_stack():
            return {}, 0.0  # the script is counting by itself, and would count this
        with torch.no_grad(), torch.autocast(device, enabled=False):
            return _on_cuda() if device == "cuda" else _on_cpu()
    except Exception:  # out of memory, most likely; the script comes first
        return {}, 0.0


def _on_cpu() -> tuple[dict[str, float], float]:
    """Only float32: some machines announce 16-bit units that kill the process when used."""
    import torch

    best = 0.0
    for size in _CPU_SIZES:
        left = torch.ones(size, size, dtype=torch.float32, device="cpu")
        out = torch.empty_like(left)
        seconds = _shortest(lambda left=left, out=out: torch.mm(left, left, out=out), _CPU_SECONDS / len(_CPU_SIZES))
        best = max(best, 2 * size**3 / seconds)
        if seconds > _CPU_SHORT_SECONDS:
            break
    source = torch.ones(_CPU_COPY_BYTES, dtype=torch.uint8, device="cpu")
    target = torch.empty_like(source)
    seconds = _shortest(lambda: target.copy_(source), _CPU_SECONDS)
    return {"float32": best}, 2 * _CPU_COPY_BYTES / seconds


def _shortest(work: Callable[[], Any], budget_seconds: float) -> float:
    """The shortest of as many runs as fit, after one that warms up."""
    began = time.perf_counter()
    work()
    found = float("inf")
    while found == float("inf") or time.perf_counter() - began < budget_seconds:
        start = time.perf_counter()
        work()
        found = min(found, time.perf_counter() - start)
    return found


def _on_cuda() -> tuple[dict[str, float], float]:
    import torch

    if torch.cuda.is_current_stream_capturing() or torch.cuda.mem_get_info()[0] < _CUDA_FREE_BYTES:
        return {}, 0.0
    has_ampere = torch.cuda.get_device_capability()[0] >= 8
    tf32_products = has_ampere and torch.get_float32_matmul_precision() != "highest"
    flops: dict[str, float] = {}
    dtypes = {"tf32" if tf32_products else "float32": torch.float32, "float16": torch.float16}
    if has_ampere:
        dtypes["bfloat16"] = torch.bfloat16
    for name, dtype in dtypes.items():
        flops[name] = _products_on_cuda(dtype)
    if has_ampere and not tf32_products and torch.backends.cudnn.allow_tf32:
        flops["tf32"] = _convolutions_on_cuda()  # torch's default: only convolutions use it
    source = torch.ones(_CUDA_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return flops, 2 * _CUDA_COPY_BYTES / _mean_on_cuda(lambda: target.copy_(source))


def _products_on_cuda(dtype: Any) -> float:
    import torch

    left = torch.ones(_CUDA_SIZE, _CUDA_SIZE, dtype=dtype, device="cuda")
    out = torch.empty_like(left)
    return 2 * _CUDA_SIZE**3 / _mean_on_cuda(lambda: torch.mm(left, left, out=out))


def _convolutions_on_cuda() -> float:
    """Through a call that takes its settings as arguments, so that no flag of the script's is touched."""
    import torch

    batch, channels, side = 32, 1024, 32
    image = torch.ones(batch, channels, side, side, dtype=torch.float32, device="cuda")
    image = image.contiguous(memory_format=torch.channels_last)
    weight = torch.ones(channels, channels, 1, 1, dtype=torch.float32, device="cuda")
    settings: list[Any] = [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, False, False, True, True]
    seconds = _mean_on_cuda(lambda: torch._convolution(image, weight, *settings))
    return 2 * batch * side**2 * channels**2 / seconds


def _mean_on_cuda(work: Callable[[], Any]) -> float:
    """By the device's own clock, over as many runs as fit."""
    import torch

    def run(times: int) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / times

    run(1)
    once = run(1)
    return min(once, run(max(1, min(20, int(_CUDA_SECONDS / once)))))
