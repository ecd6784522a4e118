"""One step counted operation by operation: its flops, the bytes it moves, and what it keeps for backward.

A dispatch mode sees each operation below autograd and hands it on as it is. What is kept for backward is told by weak
references to the storages that forward made: those still alive when backward begins. Hooks on saved tensors would say
it more exactly, but torch.func refuses to run under them, and they switch the script's own ones off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hotlap.observe.look.tracks import Tracks

_ACCUMULATES = 2**64 - 1  # the number of every node that adds a gradient to a leaf
_OVERWRITES = {"copy_", "fill_", "zero_", "bernoulli_", "normal_", "uniform_", "random_", "exponential_", "set_"}
_READS_ROWS = {"embedding", "index_select", "index", "gather", "nll_loss_forward"}  # not all of their first input
_MOVES_NOTHING = {"lift_fresh", "resize_", "set_", "detach", "detach_", "alias", "is_same_size", "_fused_sdp_choice"}
_ASKS_A_TENSOR = {  # what a subclass answers about its own shape
    *("sym_is_contiguous", "is_contiguous", "is_strides_like_format", "is_non_overlapping_and_dense"),
    *("size", "sym_size", "stride", "sym_stride", "storage_offset", "sym_storage_offset", "numel", "sym_numel"),
    *("dim", "layout"),
}


@dataclass
class Tally:
    """One module in the step that was counted."""

    forward_flops: int = 0
    flops: int = 0
    moved_bytes: int = 0
    saved_bytes: int = 0
    flops_by_dtype: dict[str, int] = field(default_factory=dict)
    head_sizes: set[int] = field(default_factory=set)  # of fused attention


class Counter:
    def __init__(self, tracks: Tracks) -> None:
        self.tallies: dict[int | None, Tally] = {}  # None: outside every module
        self.activations = 0
        self.mistakes = 0  # operations that could not be counted
        self.is_complete = False
        self._tracks = tracks
        self._mode: Any = None
        self._born: dict[int, tuple[Any, int, int | None]] = {}  # storages made in forward: reference, bytes, place
        self._task = -1

    def start(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.flop_counter import flop_registry

        self._formulas = flop_registry
        counter = self

        class Mode(TorchDispatchMode):
            supports_higher_order_operators = True

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return counter._dispatched(func, args, kwargs or {})

        self._mode = Mode()
        self._mode.__enter__()

    def stop(self) -> None:
        """Modes form a stack, and the script may have put some of its own above ours since."""
        from torch.utils import _python_dispatch as modes

        if self._mode is None:
            return
        mode, self._mode = self._mode, None
        above = []
        while modes._len_torch_dispatch_stack() and modes._get_current_dispatch_mode() is not mode:
            above.append(modes._pop_mode())
        if modes._len_torch_dispatch_stack():
            mode.__exit__(None, None, None)
        for other in reversed(above):
            modes._push_mode(other)
        self._born.clear()

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **kwargs)
        if func._schema.name.partition("::")[2] in _ASKS_A_TENSOR:
            return NotImplemented
        task = torch._C._current_graph_task_id()
        if task != self._task:
            if task > self._task == -1:  # not one that a checkpoint starts inside another
                self._backward_begins()
            self._task = task
        out = func(*args, **kwargs)
        try:
            self._count(func, args, kwargs, out, task)
        except Exception:
            self.mistakes += 1  # never the script's business
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, task: int) -> None:
        place = self._whose(task)
        tally = self.tallies.setdefault(place, Tally())
        formula = self._formulas.get(func._overloadpacket)
        inputs, outputs = list(_tensors((args, kwargs))), list(_tensors(out))
        if formula is not None:
            flops = self._flops(func, formula, args, kwargs, out)
            tally.flops += flops
            dtype = str(inputs[0].dtype).removeprefix("torch.")
            tally.flops_by_dtype[dtype] = tally.flops_by_dtype.get(dtype, 0) + flops
            if task == -1:
                tally.forward_flops += flops
                if "_dot_product_" in func._schema.name:
                    tally.head_sizes.add(int(inputs[0].shape[-1]))
        known = {_storage_key(tensor) for tensor in inputs}
        if task == -1:
            self._note_born(outputs, known, place)
        if place is not None:
            tally.moved_bytes += _moved_bytes(func, inputs, outputs, known)

    def _flops(self, func: Any, formula: Any, args: Any, kwargs: Any, out: Any) -> int:
        """Torch's own formulas, but for one: up to 2.13 it takes a grouped convolution's weight gradient for a dense
        one's (pytorch/pytorch#183405). Either gradient takes as many flops as forward."""
        import torch

        if func._overloadpacket is torch.ops.aten.convolution_backward and args[9] > 1:
            gradient, *forward = args[:8]
            gradients = bool(args[10][0]) + bool(args[10][1])
            return gradients * int(self._formulas[torch.ops.aten.convolution](*forward, out_val=gradient))
        return int(formula(*args, **kwargs, out_val=out))

    def _whose(self, task: int) -> int | None:
        import torch

        stack = self._tracks.here().stack
        top = stack[-1] if stack else None
        if task == -1 or (top is not None and top.task != -1):
            return top.place if top is not None else None
        node = torch._C._current_autograd_node()
        if node is None:
            return None
        sequence = node._sequence_nr()
        if sequence == _ACCUMULATES:
            return self._tracks.owners.get(id(getattr(node, "variable", None)))
        return self._tracks.of_node(sequence, task)

    def _note_born(self, outputs: list[Any], known: set[int], place: int | None) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        for tensor in outputs:
            key = _storage_key(tensor)
            if key and key not in known and key not in self._born:
                storage = tensor.untyped_storage()
                self._born[key] = StorageWeakRef(storage), storage.nbytes(), place

    def _backward_begins(self) -> None:
        """What forward made and is still there; of several backwards in a step, the one with the most."""
        alive = [(size, place) for reference, size, place in self._born.values() if not reference.expired()]
        total = sum(size for size, _ in alive)
        if total <= self.activations:
            return
        self.activations = total
        for tally in self.tallies.values():
            tally.saved_bytes = 0
        for size, place in alive:
            self.tallies.setdefault(place, Tally()).saved_bytes += size


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _storage_key(tensor: Any) -> int:
    """A storage's address, which a weak reference keeps from being used again; 0 for what has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return 0


def _bytes(tensor: Any) -> int:
    """An expanded tensor is no larger than what it is a view of."""
    size = int(tensor.numel() * tensor.element_size())
    return min(size, int(tensor.untyped_storage().nbytes())) if _storage_key(tensor) else size


def _moved_bytes(func: Any, inputs: list[Any], outputs: list[Any], known: set[int]) -> int:
    """Inputs read and outputs written, each once. Views and bare allocations move nothing."""
    name = func._schema.name.partition("::")[2].partition(".")[0]
    if func.is_view or name in _MOVES_NOTHING or name.startswith(("empty", "new_empty")):
        return 0
    writes_inputs = func._schema.is_mutable
    if not writes_inputs and outputs and all(_storage_key(tensor) in known for tensor in outputs):
        return 0  # a view in all but its schema
    written = sum(map(_bytes, outputs or (inputs[:1] if writes_inputs else [])))
    unique = list({id(tensor): tensor for tensor in inputs}.values())
    first, rest = unique[:1], unique[1:]
    if name in _OVERWRITES:
        first = []
    elif name in _READS_ROWS:
        return written + sum(min(_bytes(tensor), written) for tensor in first) + sum(map(_bytes, rest))
    return written + sum(map(_bytes, first)) + sum(map(_bytes, rest))
