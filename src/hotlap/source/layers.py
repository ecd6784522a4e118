"""Which layer of a network surely feeds which: by their place in a container, or by how `forward` calls them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from hotlap.source.bodies import attributes, constant, method, own_nodes
from hotlap.source.calls import ABSENT, Call
from hotlap.source.loops import Function
from hotlap.source.module import Source
from hotlap.source.names import spelling


def fed_layers(source: Source) -> Iterator[tuple[Call, Call]]:
    """Pairs of calls that build two layers, the first of which hands its output to the second and to nothing else."""
    for first, second in [*_in_containers(source), *_appended(source), *_in_classes(source)]:
        one, other = _built(source, first), _built(source, second)
        if one is not None and other is not None:
            yield one, other


def _built(source: Source, node: ast.AST) -> Call | None:
    name = source.name_of(node.func) if isinstance(node, ast.Call) else None
    return Call(node, name, source) if isinstance(node, ast.Call) and name is not None else None


def _in_containers(source: Source) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Neighbours in `nn.Sequential(a, b)`, in an OrderedDict of it, and in a list that is unpacked into one."""
    for call in source.calls("torch.nn.Sequential"):
        yield from pairwise(call.node.args)
        for argument in call.node.args:
            inside = argument.args[0] if isinstance(argument, ast.Call) and len(argument.args) == 1 else None
            is_ordered = isinstance(argument, ast.Call) and source.name_of(argument.func) == "collections.OrderedDict"
            if is_ordered and isinstance(inside, ast.List | ast.Tuple):
                entries = [one.elts[-1] for one in inside.elts if isinstance(one, ast.Tuple) and one.elts]
                if len(entries) == len(inside.elts):
                    yield from pairwise(entries)
            if isinstance(argument, ast.Starred):
                yield from _in_lists(source, argument.value)


def _in_lists(source: Source, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Neighbours in the literals that a list is made of or grows by."""
    if isinstance(value, ast.List | ast.Tuple):
        yield from pairwise(value.elts)
    elif isinstance(value, ast.Name):
        for use in source.uses(value):
            statement = source.statement(use)
            if isinstance(statement, ast.Assign | ast.AugAssign) and not isinstance(use.ctx, ast.Load):
                yield from _literals(statement.value)
            elif method(source.parent(source.parent(use) or use)) == "extend":
                yield from _literals(statement)


def _literals(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for one in ast.walk(node):
        if isinstance(one, ast.List):
            yield from pairwise(one.elts)


def _appended(source: Source) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`layers.append(a)` and `layers.append(b)` one after the other, for a list that becomes a Sequential."""
    unpacked = [argument for call in source.calls("torch.nn.Sequential") for argument in call.node.args]
    lists = {spelling(one.value) for one in unpacked if isinstance(one, ast.Starred)} - {None}
    for call in source.method_calls("append"):
        statement = source.statement(call)
        block = source.block(statement)
        place = next(index for index, one in enumerate(block) if one is statement)
        following = block[place + 1] if place + 1 < len(block) else None
        other = following.value if isinstance(following, ast.Expr) else None
        if not isinstance(other, ast.Call) or method(other) != "append" or len(call.args) != 1 or len(other.args) != 1:
            continue
        assert isinstance(call.func, ast.Attribute) and isinstance(other.func, ast.Attribute)
        owner = spelling(call.func.value)
        if owner in lists and owner == spelling(other.func.value):
            yield call.args[0], other.args[0]


def _in_classes(source: Source) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`self.bn(self.conv(x))`, or the same in two statements, where that is all that happens to `self.conv`."""
    for owner, built in attributes(source).items():
        layers = {name: values[0] for name, values in built.items() if _is_one_call(values)}
        if len(layers) < 2:
            continue
        takers: dict[str, set[str | None]] = {}
        for node in ast.walk(owner):
            name = spelling(node) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) else None
            if name in layers:
                call = source.parent(node)
                is_called = isinstance(call, ast.Call) and call.func is node
                taker = _taker(source, call) if is_called and isinstance(call, ast.Call) else None
                takers.setdefault(name, set()).add(taker)
        for name, found in takers.items():
            taken_by = found.pop() if len(found) == 1 else None
            if taken_by in layers:
                yield layers[name], layers[taken_by]


def _is_one_call(values: list[ast.expr]) -> bool:
    return len(values) == 1 and isinstance(values[0], ast.Call)


def _taker(source: Source, call: ast.Call) -> str | None:
    holder = source.parent(call)
    if isinstance(holder, ast.Call) and holder.args == [call]:
        return spelling(holder.func)
    if not isinstance(holder, ast.Assign) or len(holder.targets) != 1 or not isinstance(holder.targets[0], ast.Name):
        return None
    block = source.block(holder)
    place = next(index for index, one in enumerate(block) if one is holder)
    after = block[place + 1 : place + 2]
    name = holder.targets[0].id
    reads = [node for one in after for node in own_nodes(source, one) if _reads(node, name)]
    taker = source.parent(reads[0]) if len(reads) == 1 else None
    if not isinstance(taker, ast.Call) or taker.args != reads:
        return None
    is_kept = isinstance(after[0], ast.Assign) and spelling(after[0].targets[0]) == name
    return spelling(taker.func) if is_kept or not _read_later(source, holder, after[0], name) else None


def _reads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _read_later(source: Source, holder: ast.stmt, after: ast.stmt, name: str) -> bool:
    function = source.enclosing(holder, (ast.FunctionDef, ast.AsyncFunctionDef))
    nodes = list(own_nodes(source, function)) if isinstance(function, Function) else []
    return any(_reads(node, name) and node.lineno > (after.end_lineno or 0) for node in nodes)


def is_switched_on(call: Call, keyword: str, position: int) -> bool:
    """Whether a switch that is on by default surely is on."""
    given = call.setting(keyword, position)
    return given is ABSENT or constant(given) is True
