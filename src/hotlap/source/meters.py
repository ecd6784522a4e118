"""Meters that a loop tells of values on the device: `losses.update(loss.item(), n)`.

Such a call may be put off until somebody looks at the meter, if its method does nothing but arithmetic on the meter's
own attributes. That is proven here from the text of its class, in this file or another, or refused with the reason."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import method
from hotlap.source.running_totals import Refused, is_compiled
from hotlap.source.waits import ordered_by_hand, waits

if TYPE_CHECKING:
    from hotlap.source.module import Source

_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div
_OWN_WAYS = {"__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__slots__", "__del__", "__reduce_ex__"}


@dataclass(frozen=True)
class Told:
    """A call of a meter's method, a statement of its own, and what is read from the device for it."""

    call: ast.Call
    reads: tuple[ast.Call, ...]

    def text(self, source: Source, tell: str, later: str) -> str:
        """The call, put off."""
        function = self.call.func
        assert isinstance(function, ast.Attribute)
        end = source.lines.span(self.call)[1]
        at = source.text.index("(", source.lines.span(function)[1]) + 1
        inner = ""
        for read in sorted(self.reads, key=source.lines.span):
            assert isinstance(read.func, ast.Attribute)
            start, stop = source.lines.span(read)
            inner, at = f"{inner}{source.text[at:start]}{later}({source.segment(read.func.value)})", stop
        return f'{tell}({source.segment(function.value)}, "{function.attr}", {inner}{source.text[at:end]}'


def told(source: Source, read: ast.AST) -> Told | None:
    """None where what is read goes elsewhere; raises `Refused` where it goes to a meter, and has to in every step."""
    call = _handed_to(source, read)
    if call is None or not isinstance(source.parent(call), ast.Expr):
        return None
    found = source.resolve(call.func)
    kind = found.source.parent(found.node) if found is not None else None
    if found is None or not isinstance(found.node, ast.FunctionDef) or not isinstance(kind, ast.ClassDef):
        return None
    _is_meter(kind, found.node)
    if any(_is_put_elsewhere(node, found.node.name) for one in (source, found.source) for node in ast.walk(one.tree)):
        raise Refused("handed to a method that is replaced")
    if is_compiled(source, source.function_of(call)):
        raise Refused("its function is compiled")
    if ordered_by_hand(source):
        raise Refused("work on the device is ordered by hand, perhaps by this wait")
    reads = [node for node in waits(source) if node in set(ast.walk(call))]
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        raise Refused("handed on with others in every step")
    if any(method(one) != "item" or _handed_to(source, one) is not call for one in reads):
        raise Refused("told together with what is needed at once")
    return Told(call, tuple(one for one in reads if isinstance(one, ast.Call)))


def _handed_to(source: Source, read: ast.AST) -> ast.Call | None:
    """The call of a named object's method that a value, or arithmetic on it, is an argument of."""
    value = read
    while isinstance(above := source.parent(value), ast.BinOp | ast.UnaryOp | ast.keyword):
        if isinstance(above, ast.BinOp) and not isinstance(above.op, _ARITHMETIC):
            return None
        value = above
    call = source.parent(value)
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    if not is_method or not isinstance(call.func.value, ast.Name) or value is call.func:  # type: ignore[union-attr]
        return None
    return call  # type: ignore[return-value]


def _is_meter(kind: ast.ClassDef, function: ast.FunctionDef) -> None:
    members = {one.name: one for one in kind.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    others = {target.id for one in kind.body for target in _targets(one) if isinstance(target, ast.Name)}
    is_plain = all(isinstance(base, ast.Name) and base.id == "object" for base in kind.bases)
    if not is_plain or kind.keywords or kind.decorator_list or _OWN_WAYS & (members.keys() | others):
        raise Refused("handed to an object with ways of its own")
    stored = _stored(function)
    if stored is None or stored & members.keys():
        raise Refused("handed to a method that does more than add up")


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, ast.AnnAssign) else []


def _stored(function: ast.FunctionDef) -> set[str] | None:
    """The attributes it sets, where it does nothing else; None where it does."""
    given = function.args
    names = [one.arg for one in (*given.posonlyargs, *given.args)]
    is_simple = not (given.vararg or given.kwarg or given.kwonlyargs or function.decorator_list)
    if not is_simple or not names or not all(isinstance(one, ast.Constant) for one in given.defaults):
        return None
    own, known = names[0], set(names[1:])
    found: set[str] = set()
    for place, statement in enumerate(function.body):
        if isinstance(statement, ast.Pass) or (place == 0 and _is_text(statement)):
            continue
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, _ARITHMETIC):
            target: ast.expr = statement.target
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
        else:
            return None
        if not _is_sum(statement.value, own, known):
            return None
        if isinstance(target, ast.Name) and target.id != own:
            if isinstance(statement, ast.AugAssign) and target.id not in known:
                return None
            known.add(target.id)
        elif isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == own:
            found.add(target.attr)
        else:
            return None
    return found


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_sum(node: ast.expr, own: str, known: set[str]) -> bool:
    """Arithmetic on numbers, arguments and the object's attributes."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, _ARITHMETIC) and _is_sum(node.left, own, known) and _is_sum(node.right, own, known)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_sum(node.operand, own, known)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == own
    if isinstance(node, ast.Name):
        return node.id in known
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_put_elsewhere(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
