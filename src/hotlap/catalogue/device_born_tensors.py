"""Tensors made where they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import method, receiver
from hotlap.source.device_values import RANDOM
from hotlap.source.edits import Edit, insert_argument
from hotlap.source.gates import SOMETIMES
from hotlap.source.loops import Function, loops_around, makes_gradients
from hotlap.source.models import is_module_class
from hotlap.source.transfers import device_argument, names_device
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Fix, Site, Source

FILLED = tuple(f"torch.{name}" for name in ("empty", "zeros", "ones", "full", "eye", "arange", "tensor"))
LISTED = "torch.tensor"  # its values come from the host, wherever it is made
SIZED = tuple(f"torch.{name}Tensor" for name in ("", "Float", "Double", "Half", "Long", "Int", "Bool", "Byte"))
# What would change its meaning on the device, or has chosen already.
_CHOSEN = {"device", "out", "generator", "pin_memory", "requires_grad", None}
_KEEPING = {
    "unsqueeze",
    "view",
    "reshape",
    "expand",
    "repeat",
    "long",
    "float",
    "int",
    "bool",
    "type",
    "fill_",
    "zero_",
}
_DRAWING = {"random_", "uniform_", "normal_", "bernoulli_", "exponential_"}
_SCATTERING = {"scatter_", "scatter", "index_fill_"}  # with an index that lies on the host too


class DeviceBornTensors(Technique):
    """Zeros, ranges and random numbers are made on the device, not on the host and then copied there.

    ## Why it is faster
    `torch.zeros(n).to(device)` fills memory on the host, one core at work, and then makes the host wait for a copy from
    pageable memory. `torch.zeros(n, device=device)` is one small kernel, queued like any other: nothing is copied, and
    the host goes on.

    ## When it does not help
    Outside of the loop it is done once: only what runs in every step, in every evaluation batch, in every epoch, or in
    a model's `forward` is reported. A tensor made from a list must be copied anyway; there it saves one call a step,
    and what is made once an epoch is left alone. Where the tensor has a name, or takes an index from the host, it is
    reported without a fix: the index must be moved first.

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
        found = [
            (move, made) for move in source.method_calls("to", "cuda") if (made := _made(source, move)) is not None
        ]
        hot = _hot_places(source) if found else []
        told: set[ast.AST] = set()
        for move, made in found:
            is_step = any(place in hot for place in source.ancestors(move))
            if _device(source, move) is None or made.node in told or not (is_step or _is_repeated(source, move, made)):
                continue
            told.add(made.node)
            often = "in every step" if is_step else "again and again"
            message = f"{made.name} is filled on the host and copied {often}; device= makes it on the device"
            fix: Fix = "unsafe" if made.is_random else "safe"
            yield source.site(made.node if made.is_named else move, message, fix if made.is_plain else None)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source, move = site.source, site.node
        assert isinstance(move, ast.Call) and isinstance(move.func, ast.Attribute)
        made = _made(source, move)
        assert made is not None
        yield from insert_argument(made.node, f"device={_device(source, move)}", source=source)
        yield Edit(source.lines.span(move.func.value)[1], source.lines.span(move)[1], "")


@dataclass(frozen=True)
class _Made:
    """The call that makes a tensor which is then moved."""

    node: ast.Call
    name: str
    is_random: bool
    is_named: bool  # it has a name in between
    is_plain: bool  # nothing but `device=` is needed


def _made(source: Source, move: ast.Call) -> _Made | None:
    """How the moved tensor was made, through methods that keep it what it is."""
    moved = receiver(move)
    node: ast.AST | None = _only_moved(source, moved) if isinstance(moved, ast.Name) else moved
    through: set[str | None] = set()
    while isinstance(node, ast.Call) and method(node) in _KEEPING | _DRAWING | _SCATTERING:
        through.add(method(node))
        node = receiver(node)
    name = source.name_of(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name is None or name not in (*FILLED, *RANDOM, *SIZED):
        return None
    if name in SIZED and not through & (_DRAWING | {"fill_", "zero_"}):
        return None  # made from a list, or never filled
    if {given.arg for given in node.keywords} & _CHOSEN or any(isinstance(one, ast.Starred) for one in node.args):
        return None
    is_named = isinstance(moved, ast.Name)
    is_plain = not is_named and name not in SIZED and not through & _SCATTERING
    return _Made(node, name, name in RANDOM or bool(through & _DRAWING), is_named, is_plain)


def _only_moved(source: Source, name: ast.Name) -> ast.AST | None:
    """What a name was given, where it was given once, in its own function, and is only ever moved."""
    found = source.names.lookup(name)
    reads = [use for use in source.uses(name) if isinstance(use.ctx, ast.Load)]
    moves = [call for call in source.method_calls("to", "cuda") if receiver(call) in reads and _device(source, call)]
    is_own = found is not None and len(found[1]) == 1 and found[0] is source.names.scope_of.get(name)
    return found[1][0].value if is_own and found is not None and len(moves) == len(reads) else None


def _device(source: Source, move: ast.Call) -> str | None:
    """The text for `device=`, where the move surely says a device and nothing else."""
    if len(move.args) + len(move.keywords) > 1:
        return None
    if method(move) == "cuda":
        return None if move.args or move.keywords else '"cuda"'
    device = device_argument(move)
    return source.segment(device) if device is not None and names_device(source, device) else None


def _hot_places(source: Source) -> list[ast.AST]:
    """What runs in every step or for every evaluation batch: loops, the step's own function, and models' `forward`."""
    loops: list[ast.AST] = [*source.training_loops(), *source.evaluation_loops()]
    called = [source.definition(node.func) for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)]
    steps = [one for one in called if isinstance(one, Function) and makes_gradients(source, one, hops=0)]
    methods = [node for node in source.names.parents if isinstance(node, Function) and node.name == "forward"]
    return [*loops, *steps, *(one for one in methods if is_module_class(source, source.parent(one)))]


def _is_repeated(source: Source, move: ast.Call, made: _Made) -> bool:
    """Whether it is made again and again while a model is trained: in every epoch, or by what makes the batches."""
    if made.name == LISTED:
        return False
    around = loops_around(source, made.node)
    is_rare = any(where is source and source.how_often(move, loop) is SOMETIMES for where, loop in around)
    return not is_rare and any(makes_gradients(where, loop) for where, loop in around)
