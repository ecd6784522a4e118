"""Where memory goes: its level now and then while the script trains, and what it consists of at the end."""

from __future__ import annotations

import itertools
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hotlap.observe.machine import _groups, _text, usable_memory
from hotlap.observe.meters import peak_resident_bytes, resident_bytes
from hotlap.observe.scrutiny_facts import GrowthFacts, MemoryFacts

_EVERY = 16  # steps between readings, once the first few are taken
_READINGS = 256  # at most; then every other goes, and they are taken half as often
_RESERVE = 0.1  # of the device, for fragments of the allocator and for what varies
_CREEP = 4096  # bytes a step: below it, Python's own heap and our record grow as fast
_ENOUGH = 8  # readings after settling, to tell growth from chance


class Memory:
    """Reads the level of memory now and then. `device` is where the script trains, if that is known."""

    def __init__(self, device: str | None = None) -> None:
        self.levels: list[list[float]] = []
        self._device = device
        self._next, self._every = 1, _EVERY
        self._was_on_device = False

    def step(self, count: int) -> None:
        """At every boundary between two steps. Reading costs tens of microseconds, so most steps return here."""
        if count < self._next:
            return
        self._next = count * 2 if count < _EVERY else count - count % self._every + self._every
        index = _cuda_index(self._device)
        if (index is not None) is not self._was_on_device:
            self._was_on_device = index is not None
            self.levels.clear()  # resident bytes until CUDA was started: another quantity
        level = resident_bytes() if index is None else _stat(index, "allocated_bytes", "current")
        self.levels.append([count, level])
        if len(self.levels) > _READINGS:
            self._every *= 2
            del self.levels[1::2]

    def facts(
        self, roots: Iterable[Any], optimizers: Iterable[Any], activations: int = 0, growth: Sequence[GrowthFacts] = ()
    ) -> MemoryFacts:
        """What memory holds, each storage counted once. Gradients that `zero_grad` has just dropped are taken to be
        as large as the parameters under optimization: they are back at the next update."""
        from torch.nn.parameter import is_lazy

        roots, optimizers = list(roots), list(optimizers)
        updated = [p for o in optimizers for group in o.param_groups for p in group["params"] if not is_lazy(p)]
        weights = [*(p for root in roots for p in root.parameters() if not is_lazy(p)), *updated]
        device = _home(weights, self._device)
        seen: set[int] = set()
        weight_bytes = _bytes(weights, device, seen)
        buffer_bytes = _bytes((b for root in roots for b in root.buffers() if not is_lazy(b)), device, seen)
        gradients = [p.grad for p in weights if p.grad is not None]
        gradient_bytes = _bytes(gradients, device, seen)
        if not gradients:
            gradient_bytes = _bytes((p for p in updated if p.requires_grad), device, set())
        state_bytes = _bytes((t for o in optimizers for t in _tensors(dict(o.state))), device, seen)
        peak, reserved, total, free = _device_levels(device) if device.startswith("cuda") else _process_levels()
        return MemoryFacts(
            peak=peak,
            weights=weight_bytes,
            buffers=buffer_bytes,
            gradients=gradient_bytes,
            optimizer_state=state_bytes,
            activations=activations,
            reserved=reserved,
            total=total,
            free=free,
            levels=[list(level) for level in self.levels],
            growth=list(growth),
        )


def trend(levels: Sequence[Sequence[float]]) -> float:
    """Bytes a step by which memory grows after settling; 0.0 unless it goes on growing all the time.

    The slope is the median over all pairs of readings (Theil-Sen). A warm-up, a jump and a saw-tooth have slopes as
    well, so nearly all pairs must rise, and each quarter must stand clearly above the one before."""
    settled = [(step, level) for step, level in levels if step > levels[-1][0] / 3]
    if len(settled) < _ENOUGH:
        return 0.0
    pairs = [(a, b) for number, a in enumerate(settled) for b in settled[number + 1 :] if b[0] > a[0]]
    signs = sum((b[1] > a[1]) - (b[1] < a[1]) for a, b in pairs)
    if not pairs or signs < 0.8 * len(pairs):
        return 0.0
    size = len(settled) / 4
    quarters = [statistics.median(s[1] for s in settled[round(i * size) : round((i + 1) * size)]) for i in range(4)]
    rises = [after - before for before, after in itertools.pairwise(quarters)]
    if min(rises) < 0.5 * max(rises):
        return 0.0
    slope = statistics.median((b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs)
    return slope if slope >= _CREEP else 0.0


def batch_that_fits(facts: MemoryFacts, batch: int) -> int | None:
    """The largest batch for the device, in eights (or in whole batches, when those are smaller), if what a sample
    takes is known. Fixed: weights, buffers, gradients, optimizer state and what others hold on the device."""
    if not (batch > 0 and facts.activations > 0 and facts.total > 0 and facts.reserved > 0):
        return None
    fixed = facts.weights + facts.buffers + facts.gradients + facts.optimizer_state
    others = max(0, facts.total - facts.free - facts.reserved)
    # the peak also has what a step needs for moments only: workspaces, gradients of activations
    a_sample = max(facts.activations, facts.peak - fixed) / batch
    unit = min(batch, 8)
    fits = int((facts.total * (1 - _RESERVE) - fixed - others) / a_sample)
    return fits // unit * unit if fits >= unit else None


def free_memory(root: Path = Path("/")) -> int:
    """Bytes this process could still take: what the system has, cut by what its control groups leave."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    left = [int(found[1]) * 1024 if found else _available_bytes()]
    for group in _groups(root, "memory"):
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit, used = _text(group / limit_name).strip(), _text(group / used_name).strip()
            if limit.isdigit() and used.isdigit():
                cache = re.search(r"^(?:total_)?inactive_file (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                left.append(max(0, int(limit) - int(used) + (int(cache[1]) if cache else 0)))
    return min(left)


def _home(parameters: list[Any], device: str | None) -> str:
    """The device that holds most of the parameters."""
    sizes: dict[str, int] = {}
    for parameter in parameters:
        sizes[str(parameter.device)] = sizes.get(str(parameter.device), 0) + parameter.numel()
    return max(sizes, key=lambda name: sizes[name]) if sizes else device or "cpu"


def _bytes(tensors: Iterable[Any], device: str, seen: set[int]) -> int:
    """Bytes of the storages on this device that were not seen before."""
    total = 0
    for tensor in tensors:
        for part in _strided(tensor):
            try:
                storage = part.untyped_storage()
            except (RuntimeError, NotImplementedError):  # an opaque tensor: nothing to be told
                continue
            if storage._cdata not in seen and str(part.device) == device:
                seen.add(storage._cdata)
                total += storage.nbytes()
    return total


def _strided(tensor: Any) -> list[Any]:
    import torch

    tensor = getattr(tensor, "_local_tensor", tensor)  # a shard stands for its own part
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    return [tensor] if tensor.layout is torch.strided else []


def _tensors(state: Any, depth: int = 4) -> Iterator[Any]:
    """Also in the lists inside an optimizer's state: LBFGS keeps its history there."""
    import torch

    if isinstance(state, torch.Tensor):
        yield state
    elif depth and isinstance(state, (dict, list, tuple)):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _tensors(part, depth - 1)


def _cuda_index(device: str | None) -> int | None:
    torch = sys.modules.get("torch")
    if torch is None or (device is not None and not device.startswith("cuda")) or not torch.cuda.is_initialized():
        return None
    return torch.device(device).index if device and ":" in device else int(torch.cuda.current_device())


def _stat(index: int, name: str, which: str) -> int:
    import torch

    # what memory_allocated does, without flattening and sorting a hundred other figures
    return int(torch.cuda.memory_stats_as_nested_dict(index).get(name, {}).get("all", {}).get(which, 0))


def _device_levels(device: str) -> tuple[int, int, int, int]:
    import torch

    index = torch.device(device).index or 0
    free, total = torch.cuda.mem_get_info(index)
    return _stat(index, "allocated_bytes", "peak"), _stat(index, "reserved_bytes", "peak"), total, free


def _process_levels() -> tuple[int, int, int, int]:
    return peak_resident_bytes(), 0, usable_memory(), free_memory()


def _available_bytes() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
