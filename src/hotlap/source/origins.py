"""Where a value was made: through names, parameters, attributes and functions, also of other files of the project."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hotlap.source.callers import given_to, parameters
from hotlap.source.calls import Call
from hotlap.source.loops import Function
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_BARS = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm")
_MOST_HOPS = 8

_Value = tuple["Source", ast.expr]  # an expression, and the file it stands in


def makers(source: Source, node: ast.AST, qualified: str) -> list[Call] | None:
    """The calls of a function that surely made a value; None when it may also have been made elsewhere."""
    ends = _ends(source, node, qualified, frozenset())
    return list({end.node: end for end in ends}.values()) if ends else None


def _ends(source: Source, node: ast.AST, qualified: str, seen: frozenset[ast.AST]) -> list[Call] | None:
    if isinstance(node, ast.Call) and source.name_of(node.func) == qualified:
        return [Call(node, qualified, source)]
    if isinstance(node, ast.Constant) and node.value is None:
        return []
    if node in seen or len(seen) > _MOST_HOPS:
        return None
    givers = _givers(source, node)
    if givers is None:
        return None
    ends: list[Call] = []
    for where, giver in givers:
        inside = _ends(where, giver, qualified, seen | {node})
        if inside is None:
            return None
        ends += inside
    return ends


def _givers(source: Source, node: ast.AST) -> list[_Value] | None:
    """The expressions whose value a node may have; None when it may have another."""
    if isinstance(node, ast.Name):
        return _named(source, node)
    if isinstance(node, ast.Attribute) and spelling(node.value) == "self":
        return _kept(source, node)
    if isinstance(node, ast.IfExp):
        return [(source, node.body), (source, node.orelse)]
    if isinstance(node, ast.Call):
        if is_called(source, node, "enumerate", "iter", *_BARS) and node.args:
            return [(source, node.args[0])]
        function = source.resolve(node.func)
        if function is not None and isinstance(function.node, Function):
            return _returned(function.source, function.node)
    return None


def _named(source: Source, name: ast.Name) -> list[_Value] | None:
    found = source.names.lookup(name)
    if found is None:
        return None
    scope, bindings = found
    values = [binding.value for binding in bindings if binding.value is not None]
    if values and len(values) == len(bindings):
        return [(source, value) for value in values]
    if len(bindings) == 1 and isinstance(scope.node, Function) and name.id in parameters(scope.node):
        return given_to(source, scope.node, name.id)
    stores = [use for use in source.uses(name) if isinstance(use.ctx, ast.Store)]
    return _unpacked(source, stores[0]) if len(stores) == len(bindings) == 1 else None


def _kept(source: Source, attribute: ast.Attribute) -> list[_Value] | None:
    """What `self.x` is set to anywhere in its class."""
    owner = source.enclosing(attribute, ast.ClassDef)
    values: list[_Value] = []
    for node in ast.walk(owner) if owner else ():
        is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_stored and spelling(node) == f"self.{attribute.attr}":
            holder = source.parent(node)
            if not isinstance(holder, ast.Assign | ast.AnnAssign) or holder.value is None:
                return None
            values.append((source, holder.value))
    return values or None


def _unpacked(source: Source, store: ast.Name) -> list[_Value] | None:
    """`train, test = make()`: the part of what the function returns."""
    holder = source.parent(store)
    assign = source.parent(holder) if isinstance(holder, ast.Tuple) else None
    if not isinstance(holder, ast.Tuple) or not isinstance(assign, ast.Assign):
        return None
    returned = _givers(source, assign.value) if isinstance(assign.value, ast.Call) else None
    place, parts = holder.elts.index(store), []
    for where, value in returned or ():
        if not isinstance(value, ast.Tuple) or len(value.elts) != len(holder.elts):
            return None
        parts.append((where, value.elts[place]))
    return parts or None


def _returned(source: Source, function: Function) -> list[_Value] | None:
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
    own = [node for node in nodes if source.enclosing(node, (ast.FunctionDef, ast.Lambda)) is function]
    values = [node.value for node in own if isinstance(node, ast.Return) and node.value is not None]
    return [(source, value) for value in values] if values and len(values) == len(own) else None


def is_called(source: Source, call: ast.Call, *names: str) -> bool:
    """Whether a call is one of the named functions. `from x import *` makes no builtin doubtful here."""
    name = source.name_of(call.func)
    if name is None and isinstance(call.func, ast.Name) and source.names.lookup(call.func) is None:
        name = call.func.id
    return name in names


def iterated(source: Source, loop: ast.For | ast.AsyncFor) -> tuple[ast.expr, ast.expr]:
    """What a loop really goes through, and the target for it: without `enumerate` and progress bars."""
    target, over = loop.target, loop.iter
    while isinstance(over, ast.Call) and is_called(source, over, "enumerate", *_BARS) and over.args:
        if is_called(source, over, "enumerate") and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        over = over.args[0]
    return target, over


def given_anywhere(source: Source, node: ast.AST, keyword: str) -> list[tuple[Source, ast.expr]]:
    """All that a file gives under a keyword: in calls, in dictionaries, and, as the key itself, in any other way. Where
    it gives nothing, what the files do that call the function around the node."""
    found = [(source, value) for value in _given_in(source, keyword)]
    function = source.function_of(node)
    if found or function is None:
        return found
    others = dict.fromkeys(where for where, _ in source.callers(function) if where is not source)
    return [(where, value) for where in others for value in _given_in(where, keyword)]


def _given_in(source: Source, keyword: str) -> list[ast.expr]:
    found: list[ast.expr] = []
    for node in source.names.parents:
        if isinstance(node, ast.keyword) and node.arg == keyword:
            found.append(node.value)
        elif isinstance(node, ast.Constant) and node.value == keyword:
            holder = source.parent(node)
            places = holder.keys if isinstance(holder, ast.Dict) else []
            found.append(holder.values[places.index(node)] if node in places else node)  # type: ignore[union-attr]
    return found
