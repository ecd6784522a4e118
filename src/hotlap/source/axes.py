"""Chains of view, permute and view again, read as what they do to the axes of a tensor."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass

from hotlap.source.bodies import body_of, method, own_nodes, receiver
from hotlap.source.module import Source
from hotlap.source.names import spelling

_SHAPING = ("view", "reshape")
_PRIMES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149)


@dataclass(frozen=True, eq=False)
class Rearrangement:
    """`tensor` with its axes split, put into another order and joined, as one pattern."""

    node: ast.Call  # the whole chain
    first: ast.stmt | None  # the statement before, where the chain begins there
    tensor: ast.expr
    pattern: str
    sizes: tuple[tuple[str, str], ...]  # of the split axes: name and expression


@dataclass(frozen=True)
class _Axis:
    name: str
    value: int  # a made-up size, so that products can be recognised


def rearrangements(source: Source) -> Iterator[Rearrangement]:
    for call in source.method_calls(*_SHAPING):
        found = _read(source, call)
        if found is not None:
            yield found


def _read(source: Source, last: ast.Call) -> Rearrangement | None:
    inner, orders = receiver(last), []
    while isinstance(inner, ast.Call) and method(inner) in ("permute", "transpose", "contiguous"):
        if method(inner) != "contiguous":
            orders.append(inner)
        inner = receiver(inner)
    first: ast.stmt | None = None
    if isinstance(inner, ast.Name):
        first, inner = _line_before(source, last, inner)
    if not orders or not isinstance(inner, ast.Call) or method(inner) not in _SHAPING:
        return None
    tensor = receiver(inner)
    shape = _known_shape(source, tensor, inner)
    split = _Splitting(source).read(shape, _arguments(inner)) if shape else None
    if split is None:
        return None
    before, parts, sizes, values = split
    for order in reversed(orders):
        parts = _ordered(order, parts) or []
    after = _joined(parts, _arguments(last), values) if parts else None
    if after is None:
        return None
    return Rearrangement(last, first, tensor, f"{before} -> {after}", sizes)


def _line_before(source: Source, last: ast.Call, name: ast.Name) -> tuple[ast.stmt | None, ast.expr]:
    """The view that the statement right before gave to the name, where nothing else reads it."""
    statement = source.statement(last)
    block = source.block(statement)
    place = block.index(statement)
    before = block[place - 1] if place else None
    if not isinstance(before, ast.Assign) or [spelling(one) for one in before.targets] != [name.id]:
        return None, name
    later = [
        one
        for one in own_nodes(source, body_of(source, last))
        if isinstance(one, ast.Name) and one.id == name.id and one.lineno > before.lineno and one is not name
    ]
    ends = [one for one in later if isinstance(one.ctx, ast.Load)]
    is_replaced = isinstance(statement, ast.Assign) and [spelling(one) for one in statement.targets] == [name.id]
    return (before, before.value) if is_replaced or not ends else (None, name)


def _arguments(call: ast.Call) -> list[ast.expr]:
    only = call.args[0] if len(call.args) == 1 else None
    return list(only.elts) if isinstance(only, ast.Tuple | ast.List) else list(call.args)


def _known_shape(source: Source, tensor: ast.expr, at: ast.Call) -> list[str] | None:
    """The names that `a, b, c = tensor.shape` gave to its axes, with nothing assigned to the tensor since."""
    written = spelling(tensor)
    known: list[str] | None = None
    if written is None:
        return None
    stores = [node for node in own_nodes(source, body_of(source, at)) if isinstance(node, ast.Assign)]
    for node in sorted(stores, key=lambda one: one.lineno):
        if node.lineno >= at.lineno:
            break
        of = node.value.func if isinstance(node.value, ast.Call) and not node.value.args else node.value
        is_shape = isinstance(of, ast.Attribute) and of.attr in ("shape", "size") and spelling(of.value) == written
        target = node.targets[0]
        if is_shape and isinstance(target, ast.Tuple | ast.List):
            names = [one.id for one in target.elts if isinstance(one, ast.Name)]
            known = names if len(names) == len(target.elts) == len(set(names)) else None
        elif written in {spelling(one) for given in node.targets for one in ast.walk(given)}:
            known = None
    return known


class _Splitting:
    """Matches the arguments of the first view against the axes there were."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.values: dict[str, int] = {}  # made-up sizes by the text of the expression
        self.primes = iter(_PRIMES)
        self.sizes: list[tuple[str, str]] = []

    def read(
        self, shape: list[str], arguments: list[ast.expr]
    ) -> tuple[str, list[_Axis], tuple[tuple[str, str], ...], dict[str, int]] | None:
        taken = {name.lower() for name in shape}
        if len(taken) < len(shape) or not all(name.isidentifier() and not name.startswith("_") for name in taken):
            return None
        left, parts, words = list(arguments), [], []
        for axis in shape:
            if left and ast.unparse(left[0]) == axis:
                self.values[axis] = self._prime()
                parts.append(_Axis(axis.lower(), self.values[axis]))
                words.append(axis.lower())
                left = left[1:]
                continue
            pair = self._pair(axis, left[:2])
            if pair is None:
                return None
            parts += pair
            words.append(f"({pair[0].name} {pair[1].name})")
            left = left[2:]
        is_split = any(word.startswith("(") for word in words)
        return (" ".join(words), parts, tuple(self.sizes), self.values) if is_split and not left else None

    def _pair(self, axis: str, pair: list[ast.expr]) -> list[_Axis] | None:
        """`axis // k, k` or `k, axis // k`, either of which may stand as -1."""
        for whole, factor in ((0, 1), (1, 0)) if len(pair) == 2 else ():
            size = ast.unparse(pair[factor])
            if ast.unparse(pair[whole]) in ("-1", f"{axis} // {size}") and size != "-1" and f"{axis} //" not in size:
                self.values.setdefault(size, int(size) if size.isdigit() else self._prime())
                rest = self._prime()
                self.values[axis] = rest * self.values[size]
                name = f"p{len(self.sizes) + 1}"
                self.sizes.append((name, self.source.segment(pair[factor])))
                found = {whole: _Axis(axis.lower(), rest), factor: _Axis(name, self.values[size])}
                return [found[0], found[1]]
        return None

    def _prime(self) -> int:
        return next(self.primes)


def _ordered(call: ast.Call, parts: list[_Axis]) -> list[_Axis] | None:
    try:
        given = [int(ast.unparse(one)) for one in _arguments(call)]
    except ValueError:
        return None
    count = len(parts)
    if not all(-count <= one < count for one in given):
        return None
    places = [one % count for one in given]
    if method(call) == "transpose":
        if len(places) != 2:
            return None
        order = list(range(count))
        order[places[0]], order[places[1]] = order[places[1]], order[places[0]]
        places = order
    return [parts[one] for one in places] if sorted(places) == list(range(count)) else None


def _joined(parts: list[_Axis], arguments: list[ast.expr], values: dict[str, int]) -> str | None:
    """The right side of the pattern: neighbours joined until their product is what each argument says."""
    wanted = [_value(one, values) for one in arguments]
    unknown = [place for place, one in enumerate(wanted) if one == -1]
    known = math.prod(one for one in wanted if one is not None and one != -1)
    total = math.prod(part.value for part in parts)
    if None in wanted or len(unknown) > 1 or len(wanted) >= len(parts) or total % known:
        return None
    sizes = [total // known if one == -1 else one for one in wanted]
    left, words = list(parts), []
    for size in sizes:
        group: list[str] = []
        product = 1
        while left and product != size:
            product *= left[0].value
            group.append(left.pop(0).name)
        if product != size or not group:
            return None
        words.append(group[0] if len(group) == 1 else f"({' '.join(group)})")
    return " ".join(words) if not left else None


def _value(node: ast.expr, values: dict[str, int]) -> int | None:
    """The made-up size of an expression; -1 for one left open; None when it is not known."""
    written = ast.unparse(node)
    if written in values:
        return values[written]
    if written == "-1" or written.isdigit():
        return int(written)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.FloorDiv):
        left, right = _value(node.left, values), _value(node.right, values)
        if left is not None and right is not None and -1 not in (left, right):
            return left * right if isinstance(node.op, ast.Mult) else left // right
    return None
