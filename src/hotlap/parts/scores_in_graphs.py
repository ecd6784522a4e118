"""The scores of attention written by hand, in a graph that dynamo traced: a product of queries and keys, and what is
done with it before the softmax."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

import torch
from torch.fx import Node

from hotlap.parts.graph_operations import Writer, changes_its_input, is_changed_after, is_same, operation, value

LOW = -1e4  # a score this low leaves no weight beside others
_SLIGHT = 0.01  # by which it may be scaled, and still leave none
_SCALE, _TIMES, _OVER, _ADD, _SUBTRACT, _FILL, _KEEP = "scale", "times", "over", "add", "subtract", "fill", "keep"
_METHODS = {_TIMES: "mul", _OVER: "div"}


class Left(Exception):
    """This one stays as it is; why, in a few words."""


@dataclass
class Scores:
    product: Node
    query: tuple[Node, list[int]]  # with the order of its dimensions that makes rows of it
    key: tuple[Node, list[int]]
    changes: list[tuple[Any, ...]] = field(default_factory=list)  # in their order: a kind and what it works with
    nodes: list[Node] = field(default_factory=list)  # in their order, the product first

    def apply(self, writer: Writer, query: Node, dtype: Any) -> tuple[Node, Node | None, float]:
        """The queries, perhaps scaled, the mask and the scale, as torch's own attention wants them where it computes in
        that type."""
        scale, mask = 1.0, _Mask(writer, dtype)
        for kind, given, *more in self.changes:
            if kind == _SCALE:
                scale *= given
                mask.scale(given)
            elif kind in _METHODS:
                query = _cast(writer, writer.method(_METHODS[kind], query, given), query)
                mask.scale(given, _METHODS[kind])
            elif kind in (_ADD, _SUBTRACT):
                if is_changed_after(self.product, given):
                    raise Left("what is added to its scores is changed in place later")  # and kept for backward
                mask.add(given, kind == _SUBTRACT)
            else:
                mask.fill(given, kind == _KEEP, *more)
        return mask.apart(query), mask.made(), scale


class _Mask:
    """What is added to scores, and what of them is kept. A low number that takes the place of scores keeps nothing of
    them. Where it is all that a row has, its weights are even and no gradient goes back to its query: so the query is
    made zero, and all is kept."""

    def __init__(self, writer: Writer, dtype: Any) -> None:
        self._writer, self._dtype = writer, dtype
        self._added: Any = None
        self._kept: Any = None
        self._filled: Any = None  # where a low number stands,
        self._low = 0.0  # and which
        self._even: Any = None  # rows

    def scale(self, by: Any, method: str = "mul") -> None:
        is_plain = not isinstance(by, Node)
        if self._kept is not None and not (is_plain and by > 0):
            raise Left("it is scaled after it was masked, and not surely by more than nothing")
        if self._filled is not None and not (is_plain and by >= _SLIGHT):
            raise Left("it is scaled after it was masked, and the mask with it")
        if self._added is not None:
            self._added = self._writer.method(method, self._added, by)
        self._low = self._low * by if is_plain else self._low

    def add(self, given: Node, is_subtracted: bool) -> None:
        if self._filled is not None:
            raise Left("something is added after a number has taken the place of scores")
        if self._added is not None:
            self._added = self._writer.method("sub" if is_subtracted else "add", self._added, given)
        else:
            self._added = self._writer.method("neg", given) if is_subtracted else given

    def fill(self, mask: Node, is_kept: bool, low: float) -> None:
        if low == -math.inf:
            self._kept = self._joined("logical_and", self._kept, mask if is_kept else self._not(mask))
            return
        if not low <= LOW or self._kept is not None or self._low not in (0.0, low):
            raise Left(f"it is masked with {low:g}, which is not the same as leaving out")
        self._low = low
        self._filled = self._joined("logical_or", self._filled, self._not(mask) if is_kept else mask)

    def apart(self, query: Node) -> Node:
        """The queries, without those whose scores are all numbers."""
        if self._filled is None:
            return query
        nothing = (
            self._filled if self._kept is None else self._joined("logical_or", self._filled, self._not(self._kept))
        )
        self._even = self._writer.method("all", nothing, -1, True)
        return self._writer.method("masked_fill", query, self._even, 0.0)

    def made(self) -> Node | None:
        """After `apart`."""
        kept, made = self._kept, self._added
        if self._filled is not None:
            kept = self._joined("logical_and", kept, self._joined("logical_or", self._even, self._not(self._filled)))
        if made is not None:
            if self._even is not None:
                made = self._writer.method("masked_fill", made, self._even, 0.0)
            if kept is not None:
                made = self._writer.method("masked_fill", made, self._not(kept), -math.inf)
            made = self._written(made)
        else:
            made = kept
        if made is None:
            return None
        dimensions = value(made).dim()
        for _ in range((4 if dimensions > 2 else 2) - dimensions):  # kernels take two or four
            made = self._writer.method("unsqueeze", made, 0)
        return made

    def _written(self, added: Node) -> Node:
        """What is added, in the type that is computed in. A row of nothing but low numbers is raised as a whole: with
        them, kernels lose the sum of its weights to rounding, and make its gradients several times too large."""
        lowest = torch.finfo(value(added).dtype).min
        highest = self._writer.method("amax", self._writer.method("detach", added), -1, True)
        raised = self._writer.method("sub", added, self._writer.method("clamp", highest, lowest, 0.0))
        return raised if value(raised).dtype is self._dtype else self._writer.method("to", raised, self._dtype)

    def _not(self, mask: Node) -> Node:
        return self._writer.method("logical_not", mask)

    def _joined(self, how: str, one: Node | None, other: Node) -> Node:
        return other if one is None else self._writer.method(how, one, other)


def scores_of(node: Any, reader: Node) -> Scores:
    """Up from what the softmax is given."""
    if not isinstance(node, Node) or value(node) is None:
        raise Left("its scores are not made here")
    if list(node.users) != [reader]:
        raise Left("its scores are used elsewhere as well")
    kind = operation(node)
    if kind in ("matmul", "einsum"):
        return _product(node)
    if kind == "to":
        return _through(node, _first(node), None)
    if kind in ("mul", "div", "add", "sub"):
        return _arithmetic(node, kind)
    if kind == "masked_fill":
        arguments = dict(zip(("input", "mask", "value"), node.args, strict=False)) | dict(node.kwargs)
        low = _number(arguments.get("value"))
        return _through(node, arguments.get("input"), (_FILL, _boolean(arguments.get("mask")), low))
    if kind == "where" and len(node.args) == 3 and not node.kwargs:
        return _chosen(node)
    raise Left(f"{getattr(node.target, '__name__', node.target)} stands between scores and softmax")


def _through(node: Node, source: Any, change: tuple[Any, ...] | None) -> Scores:
    found = scores_of(source, node)
    before, after = value(source), value(node)
    if not is_same(before.shape, after.shape):
        raise Left("its scores change their shape")
    if not after.dtype.is_floating_point or after.dtype.itemsize < before.dtype.itemsize:
        raise Left("its scores are rounded")
    if change is not None:
        found.changes.append(change)
    found.nodes.append(node)
    return found


def _arithmetic(node: Node, kind: str) -> Scores:
    if len(node.args) != 2 or node.kwargs:
        raise Left("its scores are added up in another way")
    one, other = node.args
    try:
        return _through(node, one, _change(kind, other))
    except Left:
        if kind in ("div", "sub") or not isinstance(other, Node):
            raise
    return _through(node, other, _change(kind, one))


def _change(kind: str, by: Any) -> tuple[Any, ...]:
    if isinstance(by, (int, float)) and not isinstance(by, bool):
        if kind in ("add", "sub"):
            raise Left("a number is added to its scores")
        return _SCALE, (float(by) if kind == "mul" else 1 / by)
    tensor = value(by)
    if tensor is None or not tensor.dtype.is_floating_point:
        raise Left("its scores are changed by something that is no floating-point tensor")
    if kind in ("add", "sub"):
        return {"add": _ADD, "sub": _SUBTRACT}[kind], by
    if not is_same([tensor.numel()], [1]):
        raise Left("its scores are scaled one by one")
    return {"mul": _TIMES, "div": _OVER}[kind], by


def _chosen(node: Node) -> Scores:
    first, second, third = node.args
    if node.op == "call_method":
        first, second = second, first
    mask = _boolean(first)
    if isinstance(second, Node) and not _is_number(second):
        return _through(node, second, (_KEEP, mask, _number(third)))
    return _through(node, third, (_FILL, mask, _number(second)))


def _product(node: Node) -> Scores:
    if changes_its_input(node):
        raise Left("its product is of another kind")
    (one, other, made), (query, key) = letters(node)
    if len(made) not in (3, 4):
        raise Left("its product is of another kind")
    *heads, row, column = made
    if row in other or column not in other:
        (one, query), (other, key) = (other, key), (one, query)
    width = "".join(({*one} & {*other}) - {*made})
    if len(width) != 1 or {*one} != {*heads, row, width} or {*other} != {*heads, column, width}:
        raise Left("its product is of another kind")
    orders = [[names.index(name) for name in (*heads, last, width)] for names, last in ((one, row), (other, column))]
    common = [
        [value(given).shape[place] for place in (*order[:-2], order[-1])]
        for given, order in zip((query, key), orders, strict=True)
    ]
    if not is_same(*common):
        raise Left("its keys are shared between queries or heads")
    return Scores(node, (query, orders[0]), (key, orders[1]), nodes=[node])


def letters(node: Node) -> tuple[list[str], list[Node]]:
    """Of a product of two tensors: the names of the dimensions of both and of the result; and the two."""
    text, *operands = ("", *node.args) if operation(node) == "matmul" else node.args
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = list(operands[0])
    if len(operands) != 2 or any(value(one) is None for one in operands) or node.kwargs:
        raise Left("its product is of another kind")
    sizes = {value(one).dim() for one in (*operands, node)}
    if not text and len(sizes) == 1:
        heads = ascii_uppercase[: sizes.pop() - 2]
        text = f"{heads}ij,{heads}jk->{heads}ik"
    found = re.fullmatch(r"([a-zA-Z]+),([a-zA-Z]+)->([a-zA-Z]+)", str(text).replace(" ", ""))
    names = list(found.groups()) if found else []
    if not names or any(len(set(one)) != len(one) for one in names):
        raise Left("its product is of another kind")
    return names, operands  # type: ignore[return-value]


def _number(given: Any) -> float:
    if isinstance(given, Node) and _is_number(given):
        given = given.args[1]
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise Left("it is masked with something that is no plain number")
    return float(given)


def _is_number(node: Node) -> bool:
    """A tensor made of a plain number."""
    return operation(node) == "full" and len(node.args) == 2 and isinstance(node.args[1], (int, float))


def _boolean(given: Any) -> Node:
    found = value(given)
    if found is None or found.dtype is not torch.bool:
        raise Left("its mask is not of booleans")
    return given  # type: ignore[no-any-return]


def _first(node: Node) -> Any:
    return node.args[0] if node.args else None


def _cast(writer: Writer, node: Node, like: Node) -> Node:
    kind = value(like).dtype
    return node if value(node).dtype is kind else writer.method("to", node, kind)
