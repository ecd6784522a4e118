"""The graphs that tensors keep alive: how far they reach back, and how much they hold."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable
from typing import Any

_NODES = 20_000
_LEAF = 2**63  # sequence numbers from here on belong to the accumulators of parameters


class KeptGraphs:
    """Nodes are numbered as they are made: what is below a node has a smaller number."""

    def __init__(self, torch: Any, roots: list[Any], optimizers: list[Any]) -> None:
        self._torch, self._roots, self._optimizers = torch, roots, optimizers

    def reached(self, starts: list[Any], numbers: list[int], seconds: float) -> list[bool]:
        """Whether the graph of each start has the node of the number that goes with it. One walk for all, since those
        of a step share most of their graphs."""
        bits = {number: 1 << place for place, number in enumerate(dict.fromkeys(numbers))}
        nodes = _nodes(starts, min(bits, default=0), seconds)
        below: dict[int, int] = {}
        for number in sorted(nodes):  # as they were made: what is below a node comes before it
            numbers_below = [n._sequence_nr() for n, _ in nodes[number].next_functions if n is not None]
            below[number] = bits.get(number, 0)
            for other in numbers_below:
                below[number] |= below.get(other, bits.get(other, 0))
        return [bool(below[s._sequence_nr()] & bits[n]) for s, n in zip(starts, numbers, strict=True)]

    def bytes_kept(self, tensors: list[Any], oldest: int, seconds: float) -> float:
        """By these tensors and the graphs behind them, reckoned from the last few. Above an oldest node only the graph
        counts."""
        nodes = _nodes([t.grad_fn for t in tensors[-2:] if t.grad_fn is not None], oldest, seconds)
        own: dict[int, int] = {}
        for tensor in tensors[-8:] if not oldest else ():
            own |= _storage(tensor)
        behind = sum(size for number, size in self._saved(nodes.values()).items() if number not in own)
        if len(own) == 1 and len(tensors) > 2:
            own = {}  # views of one tensor, which is there anyway
        each = behind / len(tensors[-2:]) + sum(own.values()) / len(tensors[-8:])
        return each * len(tensors)

    def _saved(self, nodes: Iterable[Any]) -> dict[int, int]:
        """What the graph keeps for backward, as it lies there: unpacking could run hooks of the script's."""
        found: dict[int, int] = {}
        for node in nodes:
            for name in _saved_names(type(node)):
                try:
                    raw = getattr(node, name)
                    for one in raw if isinstance(raw, (list, tuple)) else (raw,):
                        data = getattr(one, "data", None)
                        if issubclass(type(data), self._torch.Tensor):
                            found |= _storage(data)
                except RuntimeError:  # freed by backward
                    continue
        return {number: size for number, size in found.items() if number not in self._kept} if found else {}

    @functools.cached_property
    def _kept(self) -> set[int]:
        """Storages of parameters and buffers: they are there whatever else is kept."""
        tensors = [t for root in self._roots for t in (*root.parameters(), *root.buffers())]
        tensors += [p for o in self._optimizers for group in o.param_groups for p in group["params"]]
        return {number for tensor in tensors for number in _storage(tensor)}


def _nodes(starts: list[Any], oldest: int, seconds: float) -> dict[int, Any]:
    """The nodes of the graphs newer than the oldest asked for, by number, those near the starts first."""
    found = {node._sequence_nr(): node for node in starts}
    queue, until = list(found.values()), time.perf_counter() + seconds
    for node in queue:
        if len(queue) > _NODES or time.perf_counter() > until:
            break
        for below, _ in node.next_functions:
            number = below._sequence_nr() if below is not None else _LEAF
            if oldest < number < _LEAF and number not in found:
                found[number] = below
                queue.append(below)
    return found


def _storage(tensor: Any) -> dict[int, int]:
    try:
        storage = tensor.untyped_storage()
        return {storage._cdata: storage.nbytes()}
    except Exception:  # sparse, wrapped, not there yet: nothing to be told
        return {}


@functools.cache
def _saved_names(node: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
