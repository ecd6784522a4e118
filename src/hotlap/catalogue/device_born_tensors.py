"""Tensors made where they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.edits import Edit, insert_argument
from hotlap.source.loops import Function
from hotlap.source.models import is_module_class
from hotlap.source.transfers import device_argument, names_device
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

FILLED = tuple(f"torch.{name}" for name in ("empty", "zeros", "ones", "full", "eye", "arange", "tensor"))
RANDOM = tuple(f"torch.{name}" for name in ("rand", "randn", "randint", "randperm"))
# What would change its meaning on the device, or has chosen already.
_CHOSEN = {"device", "out", "generator", "pin_memory", "requires_grad", None}
_KEEPING = {"unsqueeze", "view", "reshape", "expand", "repeat", "long", "float", "int", "bool", "type", "fill_"}


class DeviceBornTensors(Technique):
    """Zeros, ranges and random numbers are made on the device, not on the host and then copied there.

    ## Why it is faster
    `torch.zeros(n).to(device)` fills memory on the host, one core at work, and then makes the host wait for a copy from
    pageable memory. `torch.zeros(n, device=device)` is one small kernel, queued like any other: nothing is copied, and
    the host goes on.

    ## When it does not help
    Outside of the loop it is done once: only what runs in every step, in every evaluation batch, or in a model's
    `forward` is reported. A tensor made from a list must be copied anyway; there it saves one call.

    ## What changes numerically
    Nothing for zeros, ones, ranges and given values. Random numbers come from the device's generator: other draws of
    the same distribution for the same seed, so that fix is marked unsafe. A tensor with `requires_grad=True` is left
    alone: born on the device it would be a leaf, and its gradient would be kept.

    ## Claims
    "Create tensors directly on the device" stands in the lists without a figure. What it saves is a copy and a wait a
    step, which shows where steps are short.
    """

    family = Family.COPY
    aliases = ("device=", "torch.zeros", "torch.randn", "factory functions")

    def parity(self, run: Run | None) -> Parity:
        return Parity.EQUIVALENT

    def spot(self, source: Source) -> Iterator[Site]:
        moves = [call for call in source.method_calls("to", "cuda") if _factory(source, call) is not None]
        hot = _hot_places(source) if moves else []
        for move in moves:
            made = _factory(source, move)
            assert made is not None
            if _device(source, move) and any(place in hot for place in source.ancestors(move)):
                name = source.name_of(made.func) or ""
                message = f"{name} is filled on the host and copied in every step; device= makes it on the device"
                yield source.site(move, message, "unsafe" if name in RANDOM else "safe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source, move = site.source, site.node
        assert isinstance(move, ast.Call) and isinstance(move.func, ast.Attribute)
        made = _factory(source, move)
        assert made is not None
        yield from insert_argument(made, f"device={_device(source, move)}", source=source)
        yield Edit(source.lines.span(move.func.value)[1], source.lines.span(move)[1], "")


def _factory(source: Source, move: ast.Call) -> ast.Call | None:
    """The call that makes the tensor which is then moved, through methods that keep it what it is."""
    node = move.func.value if isinstance(move.func, ast.Attribute) else None
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEPING:
        node = node.func.value
    if not isinstance(node, ast.Call) or source.name_of(node.func) not in (*FILLED, *RANDOM):
        return None
    if {given.arg for given in node.keywords} & _CHOSEN or any(isinstance(one, ast.Starred) for one in node.args):
        return None
    return node


def _device(source: Source, move: ast.Call) -> str | None:
    """The text for `device=`, where the move surely says a device and nothing else."""
    if len(move.args) + len(move.keywords) > 1:
        return None
    assert isinstance(move.func, ast.Attribute)
    if move.func.attr == "cuda":
        return None if move.args or move.keywords else '"cuda"'
    device = device_argument(move)
    return source.segment(device) if device is not None and names_device(source, device) else None


def _hot_places(source: Source) -> list[ast.AST]:
    """What runs in every step or for every evaluation batch: loops, the step's own function, and models' `forward`."""
    loops: list[ast.AST] = [*source.training_loops(), *source.evaluation_loops()]
    called = [source.definition(node.func) for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    steps = [one for one in called if isinstance(one, Function) and _makes_gradients(one)]
    methods = [node for node in source.names.parents if isinstance(node, Function) and node.name == "forward"]
    return [*loops, *steps, *(one for one in methods if is_module_class(source, source.parent(one)))]


def _makes_gradients(function: Function) -> bool:
    attributes = [node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)]
    return "backward" in attributes
