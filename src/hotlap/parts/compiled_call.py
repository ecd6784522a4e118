"""A module's call, compiled. A shape that comes up now and then, such as a smaller last batch, runs as it is; in modes
with CUDA graphs what comes out is the caller's to keep.

    from hotlap.parts.compiled_call import CompiledCall

    call = CompiledCall(mode="reduce-overhead")
    output = call(model, (inputs,), {})  # instead of model(inputs)
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

PLAIN = "default"
AS_WRITTEN = "as written"  # traced and changed, and then run operation by operation
_COMPILER = ("torch._dynamo", "torch._inductor")
_FEW, _RARE = 2, 1 / 8  # calls with other shapes, and their part of all, that are not worth compiling for
_MOVED_ON = 8  # calls in a row with another shape: then that is the usual one


class CompiledCall:
    """`call(module, args, kwargs)` in place of `module(*args, **kwargs)`; one for each module, or for several that are
    built alike. The module is handed in, not held: it may go, and what was compiled for it goes with this object."""

    def __init__(
        self, mode: str = PLAIN, steps: Callable[[], int] = int, changes: Sequence[Callable[[Any], int]] = ()
    ) -> None:
        """`steps`: how many there were, where some of them are replayed and never come here. `changes` are made in each
        graph before it is compiled; they tell how many there were."""
        import torch
        from torch._dynamo.utils import counters

        # Dynamo keeps what it compiles with the code object, and gives up after some variants: each gets its own.
        own = FunctionType(_call.__code__.replace(), _call.__globals__)
        compile = inspect.unwrap(torch.compile)  # the script is told when it compiles; this is not the script
        self._has_graphs = mode not in (PLAIN, AS_WRITTEN)
        self._backend = _Backend(mode, changes)
        how: dict[str, Any] = {"mode": mode} if mode != PLAIN else {}
        if mode == AS_WRITTEN or changes:
            how = {"backend": self._backend}
        self._run: Any = compile(own, **how, **({"dynamic": False} if self._has_graphs else {}))
        self._shapes: weakref.WeakKeyDictionary[Any, _Shapes] = weakref.WeakKeyDictionary()
        self._counters, self._steps = counters, steps
        self.has_run = False
        self.graphs = 0  # made so far
        self.pieces = 0  # of them, those the first call fell into

    @property
    def changed(self) -> int:
        """How many changes were made in its graphs."""
        return self._backend.changed

    def __call__(self, module: Any, args: Any, kwargs: Any) -> Any:
        shapes = self._shapes.get(module)
        if shapes is None:
            shapes = self._shapes[module] = _Shapes(self._has_graphs)
        if not shapes.are_worth_compiling(_signature((args, kwargs)), self._steps()):
            return module._call_impl(*args, **kwargs)
        before = self._counters["stats"]["unique_graphs"]
        if self._has_graphs:
            gradients.keep()
        out = self._run(module, args, kwargs)
        self.graphs += self._counters["stats"]["unique_graphs"] - before
        if not self.has_run:
            self.has_run, self.pieces = True, self.graphs
        return _copied(out, weakref.ref(module)) if self._has_graphs else out


class _Backend:
    """For dynamo: changes a graph before inductor compiles it as it would have, or before it runs as it is."""

    def __init__(self, mode: str, changes: Sequence[Callable[[Any], int]]) -> None:
        self._mode, self._changes, self.changed = mode, changes, 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.changed += sum(change(graph) for change in self._changes)
        if self._mode == AS_WRITTEN:
            return graph.forward
        from torch import _inductor

        from hotlap.parts.analysed_kernels import analysed_once

        with analysed_once():
            return _inductor.compile(graph, inputs, dict(_inductor.list_mode_options(self._mode)))


class _Shapes:
    """What a module is usually called with, which is not always what it is called with."""

    def __init__(self, has_graphs: bool) -> None:
        self._has_graphs = has_graphs
        self._usual: Any = None
        self._other: Any = None  # the latest that was not the usual one
        self._calls = self._others = self._in_a_row = 0

    def are_worth_compiling(self, signature: Any, steps: int) -> bool:
        """The usual ones are; others only where they are frequent and one variant serves them all, without graphs."""
        self._calls += 1
        if self._usual is None or signature == self._usual:
            self._usual, self._in_a_row = signature, 0
            return True
        self._others += 1
        self._in_a_row = self._in_a_row + 1 if signature == self._other else 1
        self._other = signature
        if not self._has_graphs:
            return self._others > max(_FEW, _RARE * max(self._calls, steps))
        if self._in_a_row < _MOVED_ON:
            return False
        self._usual = signature
        return True


def is_compilers(error: BaseException) -> bool:
    """Whether an error is the compiler's own, not the module's."""
    return type(error).__module__.startswith(_COMPILER)


def _call(module: Any, args: Any, kwargs: Any) -> Any:
    return module._call_impl(*args, **kwargs)


def _signature(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.requires_grad
    if isinstance(value, dict):
        return {key: _signature(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_signature(one) for one in value]
    return value if isinstance(value, (int, float, bool, str)) else type(value)


def _copied(out: Any, module: Callable[[], Any]) -> Any:
    """A graph writes its next output to the same place."""
    import torch
    from torch.utils._pytree import tree_map

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        made = leaf.clone()
        if made.requires_grad:
            made.register_hook(lambda _: gradients.written(module()))
        return made

    return copied(out) if isinstance(out, torch.Tensor) else tree_map(copied, out)


class Gradients:
    """Those that graphs have written. They write to the same place again, in whatever module: gradients that are still
    there when the next forward begins, since they are added up or cleared only later, are moved out of the way."""

    def __init__(self) -> None:
        self._written: weakref.WeakSet[Any] = weakref.WeakSet()  # modules
        self._last = False  # whether the script leaves them until the next forward
        self._early: Any = lambda: None

    def written(self, module: Any) -> None:
        if module is not None:
            self._written.add(module)

    def keep(self) -> None:
        """Before a forward."""
        early, self._early = self._early(), lambda: None
        if self._moved():
            self._last = True
        elif early is not None and early.grad is None:
            self._last = False  # they were moved for nothing

    def keep_early(self) -> None:
        """After an update, where they last: the device has its work then, and the next forward begins sooner. Not where
        the script holds one: what it clears until then must be the parameter's own."""
        moved = self._moved() if self._last and not _any_held(_parameters_in(list(self._written))) else []
        if moved:
            self._early = weakref.ref(moved[0])

    def _moved(self) -> list[Any]:
        """The parameters whose gradients have been moved."""
        import torch

        waiting = list(self._written)
        self._written.clear()
        owners = [parameter for parameter in _parameters_in(waiting) if parameter.grad is not None]
        if owners:
            with torch.no_grad():
                copies = torch._foreach_mul([parameter.grad for parameter in owners], 1.0)
            for parameter, grad in zip(owners, copies, strict=True):
                parameter.grad = grad
        return owners


def _any_held(parameters: list[Any]) -> bool:
    """Whether somebody has a gradient of these in hand."""
    import torch

    other = torch.empty(0, device="cpu", requires_grad=True)
    other.grad = torch.empty(0, device="cpu")
    usual = sys.getrefcount(other.grad)
    return any(sys.getrefcount(parameter.grad) > usual for parameter in parameters if parameter.grad is not None)


gradients = Gradients()  # of all modules: their graphs share memory


def _parameters_in(modules: list[Any]) -> list[Any]:
    """Each once, in every step: torch's own `parameters()` makes their names as well, which takes several times as
    long."""
    found, seen = [], set()
    for module in modules:
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            found += module._parameters.values()
            modules += module._modules.values()
    return list({id(one): one for one in found if one is not None}.values())
