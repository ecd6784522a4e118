"""What a node does in a graph that dynamo traced, whichever way the script wrote it: `a @ b`, `torch.matmul(a, b)` and
`a.matmul(b)` are one operation."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.node import map_arg
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils._pytree import tree_leaves

_IN_PLACE = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}
_ARITHMETIC = ("add", "sub", "mul", "div", "matmul", "masked_fill", "where", "softmax")
_NAMES: dict[Any, str] = {
    **{getattr(operator, name): plain for name, plain in _IN_PLACE.items()},
    **{getattr(operator, name): name for name in ("add", "sub", "mul", "matmul")},
    operator.truediv: "div",
    **{getattr(torch, name): name for name in (*_ARITHMETIC, "einsum", "full", "dropout")},
    torch.bmm: "matmul",
    torch.subtract: "sub",
    torch.multiply: "mul",
    torch.divide: "div",
    torch.true_divide: "div",
    functional.softmax: "softmax",
    functional.dropout: "dropout",
    functional.multi_head_attention_forward: "multi_head_attention",
}
_METHODS = {name: name for name in (*_ARITHMETIC, "to")}
_METHODS |= {"bmm": "matmul", "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub"}
_METHODS |= dict.fromkeys(("float", "half", "bfloat16", "type", "type_as", "contiguous"), "to")
_OPERATORS = {"add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"}
_OPERATORS |= {"matmul", "concat"}  # each with a form that works in place
CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups"), (None, 1, 0, 1, 1)
_IDLE = ("_log_api_usage_once",)  # they neither make nor change anything


def operation(node: Any) -> str:
    """By its plain name, also where it works in place; or nothing."""
    if not isinstance(node, Node):
        return ""
    if node.op == "call_method":
        name = str(node.target)
        return _METHODS.get(name.removesuffix("_") if not name.endswith("__") else name, "")
    return _NAMES.get(node.target, "") if node.op == "call_function" else ""


def changes_its_input(node: Node) -> bool:
    """Whether it may write to a tensor that is there already."""
    if node.kwargs.get("out") is not None:
        return True
    if node.op == "call_method":
        name = str(node.target)
        return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    if node.op != "call_function":
        return node.op == "call_module"
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return True
    name = getattr(node.target, "__name__", "")
    is_operators = getattr(node.target, "__module__", "") == "_operator"
    if name == "setitem" or (is_operators and name.startswith("i") and name[1:] in _OPERATORS):
        return True
    if name.endswith("_") and not name.endswith("__"):
        return True
    return bool(argument(node, "inplace"))


def permutation(node: Node) -> list[int] | None:
    """The order in which it hands on the dimensions of its input, where that is all it does."""
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    source, *given = node.args or (None,)
    if value(source) is None or value(node) is None or node.kwargs or node.op not in ("call_method", "call_function"):
        return None
    size = value(source).dim()
    order, rest = list(range(size)), given[0] if given and isinstance(given[0], (list, tuple)) else given
    if name == "getattr" and given == ["mT"]:
        rest = (-2, -1)
    if not all(isinstance(place, int) for place in rest):
        return None
    if name == "permute" and len(rest) == size:
        return [place % size for place in rest]
    if name in ("transpose", "swapaxes", "swapdims", "getattr") and len(rest) == 2:
        one, other = rest
        order[one], order[other] = order[other], order[one]
        return order
    return None


def argument(node: Node, name: str) -> Any:
    """What a Python function is given by that name, be it by position; None where it knows no such name."""
    if name in node.kwargs or not inspect.isfunction(node.target):
        return node.kwargs.get(name)
    try:
        bound = inspect.signature(node.target).bind_partial(*node.args)
    except (TypeError, ValueError):
        return None
    return bound.arguments.get(name)


def value(node: Any) -> Any:
    """The tensor without data that dynamo gave a node, or None."""
    found = node.meta.get("example_value") if isinstance(node, Node) else None
    return found if isinstance(found, torch.Tensor) else None


def is_setting(node: Node) -> bool:
    """Whether it makes nothing, but turns something on or off: gradients, autocast."""
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and "example_value" not in node.meta and name not in _IDLE


def after(node: Node) -> Iterator[Node]:
    """All that follow it in the graph."""
    later = node.next
    while later.op != "root":
        yield later
        later = later.next


def between(first: Node, last: Node) -> Iterator[Node]:
    """What stands after the one and before the other."""
    return takewhile(lambda one: one is not last, after(first))


def turns_nothing(first: Node, last: Node) -> bool:
    """Whether gradients, or autocast, are on or off at one as they are at the other."""
    return not any(is_setting(one) for one in between(first, last))


def is_changed_after(node: Node, given: Node) -> bool:
    """Whether something is written to where a tensor lies, once that node is past."""
    return any(writes_to(one, given) for one in after(node))


def writes_to(node: Node, given: Any) -> bool:
    """Whether it may write to where a tensor lies: its first input, of several each, or what is to hold the result; of
    an operation whose schema says so, any."""
    if not changes_its_input(node):
        return False
    first = node.all_input_nodes if isinstance(node.target, OpOverload) else node.args[:1]
    return any(shares_memory(given, one) for one in tree_leaves([*first, node.kwargs.get("out")]))


def shares_memory(one: Any, other: Any) -> bool:
    """Whether some tensor of one node lies where one of the other does."""
    return not _storages(one).isdisjoint(_storages(other))


def _storages(node: Any) -> set[int]:
    made = tree_leaves(node.meta.get("example_value")) if isinstance(node, Node) else []
    return {StorageWeakRef(leaf.untyped_storage()).cdata for leaf in made if isinstance(leaf, torch.Tensor)}


def given(node: Node, names: Sequence[str], defaults: Sequence[Any]) -> list[Any]:
    """What it is given, by the names of torch's parameters; the last ones have defaults."""
    known = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    known |= dict(zip(names, node.args, strict=False)) | node.kwargs
    return [known[name] for name in names]


def square(given: Any) -> int | None:
    """3 of `3`, `(3,)` and `(3, 3)`."""
    sides = set(given) if isinstance(given, (tuple, list)) else {given}
    side = sides.pop() if len(sides) == 1 else None
    return side if isinstance(side, int) and not isinstance(side, bool) else None


def is_same(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Of sizes, some of which may be symbols: whether they are known to be equal, without asking for a guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    first, second = list(one), list(other)
    return len(first) == len(second) and all(
        a == b if type(a) is type(b) is int else statically_known_true(a == b)
        for a, b in zip(first, second, strict=True)
    )


class Writer:
    """Puts nodes before another one, each with the tensor without data that it makes."""

    def __init__(self, before: Node) -> None:
        self._graph, self._before = before.graph, before
        self._made: list[Node] = []

    def function(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        return self._write("call_function", target, args, kwargs)

    def method(self, name: str, *args: Any, **kwargs: Any) -> Node:
        return self._write("call_method", name, args, kwargs)

    def erase(self) -> None:
        for node in reversed(self._made):
            self._graph.erase_node(node)
        self._made.clear()

    def _write(self, kind: str, target: Any, args: Any, kwargs: Any) -> Node:
        with self._graph.inserting_before(self._before):
            node = self._graph.create_node(kind, target, args, kwargs)
        self._made.append(node)
        known = map_arg((args, kwargs), value)
        mode = next(one.fake_mode for one in tree_leaves(known) if isinstance(one, FakeTensor))
        with mode:
            given, options = known
            if kind == "call_method":
                target, given = getattr(given[0], target), given[1:]
            made = target(*given, **options)
        node.meta["example_value"] = made
        return node


def cast(writer: Writer, node: Node, kind: torch.dtype) -> Node:
    return node if value(node).dtype is kind else writer.method("to", node, kind)
