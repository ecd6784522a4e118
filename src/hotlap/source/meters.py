"""Meters that a loop tells of values on the device: `losses.update(loss.item(), n)`.

Such a call may be put off until somebody looks at the meter, if its method does nothing but arithmetic on the meter's
own attributes. That is proven here from the text of its class, in this file or another, or refused with the reason."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import method
from hotlap.source.callers import last_name
from hotlap.source.loops import Function
from hotlap.source.running_totals import Refused, is_compiled
from hotlap.source.waits import ordered_by_hand, waits

if TYPE_CHECKING:
    from hotlap.source.module import Source

_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div
_OWN_WAYS = {"__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__slots__", "__del__", "__reduce_ex__"}
_OWN_WAYS |= {"__init_subclass__", "__new__"}
_BUILDING = ("isinstance", "super", "defaultdict")  # functions that may be given a class


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
    sums = _sums(source, call)
    if sums is None:
        return None
    if is_compiled(source, source.function_of(call)):
        raise Refused("its function is compiled")
    if ordered_by_hand(source):
        raise Refused("work on the device is ordered by hand, perhaps by this wait")
    reads = [node for node in waits(source) if node in set(ast.walk(call))]
    if any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords):
        raise Refused("handed on with others in every step")
    if any(method(one) != "item" or _handed_to(source, one) is not call for one in reads):
        raise Refused("told together with what is needed at once")
    sums.may_be_told(call, reads)
    return Told(call, tuple(one for one in reads if isinstance(one, ast.Call)))


def only_adds(source: Source, call: ast.Call) -> bool:
    """Whether a call does nothing but arithmetic on its object's own attributes."""
    try:
        return isinstance(call.func, ast.Attribute) and _sums(source, call) is not None
    except Refused:
        return False


def _sums(source: Source, call: ast.Call) -> _Sums | None:
    """What a meter's method does; None for what is no method."""
    found = source.resolve(call.func)
    kind = found.source.parent(found.node) if found is not None else None
    if found is None or not isinstance(found.node, ast.FunctionDef) or not isinstance(kind, ast.ClassDef):
        return None
    sums = _Sums(found.node)
    _is_meter(found.source, kind, found.node, sums)
    kept = sums.attributes | {found.node.name}
    if any(_is_put_elsewhere(node, found.node.name) for one in (source, found.source) for node in ast.walk(one.tree)):
        raise Refused("handed to a method that is replaced")
    if any(_is_changed(one, node, kind, kept) for one in (source, found.source) for node in ast.walk(one.tree)):
        raise Refused("its class is used for more than making meters")
    return sums


def _handed_to(source: Source, read: ast.AST) -> ast.Call | None:
    """The call of a named object's method that a value, or arithmetic on it, is an argument of."""
    value = read
    while isinstance(above := source.parent(value), ast.BinOp | ast.UnaryOp | ast.keyword):
        if not isinstance(above, ast.keyword) and not isinstance(above.op, _ARITHMETIC | ast.USub):
            return None
        value = above
    call = source.parent(value)
    is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    if not is_method or not isinstance(call.func.value, ast.Name) or value is call.func:  # type: ignore[union-attr]
        return None
    return call  # type: ignore[return-value]


def _is_meter(source: Source, kind: ast.ClassDef, function: ast.FunctionDef, sums: _Sums) -> None:
    bound = next(one for one in source.names.scopes if one.node is kind).bindings
    is_plain = all(isinstance(base, ast.Name) and base.id == "object" for base in kind.bases)
    is_bare = is_plain and not kind.keywords and not kind.decorator_list and not _OWN_WAYS & bound.keys()
    if not is_bare or any(_looks_past(node) for one in kind.body for node in ast.walk(one)):
        raise Refused("handed to an object with ways of its own")
    if len(bound[function.name]) > 1:
        raise Refused("handed to a method that is replaced")
    if function.name.startswith("__") and not function.name.endswith("__"):
        raise Refused("handed to a private method, whose name Python makes another")
    if not all(isinstance(one.value, ast.Constant) for name in sums.attributes & bound.keys() for one in bound[name]):
        raise Refused("handed to a method that does more than add up")


def _looks_past(node: ast.AST) -> bool:
    """Whether a class's own text asks for what a meter's attributes do not tell: `type(self)`, `cls.total = 0`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "type"
    if not isinstance(node, ast.Attribute):
        return False
    is_stored = not isinstance(node.ctx, ast.Load)
    return last_name(node.value) in (("cls", "__class__") if is_stored else ("object",))


class _Sums:
    """The arithmetic of a method, which does nothing else; raises `Refused` where it does."""

    def __init__(self, function: ast.FunctionDef) -> None:
        given = function.args
        names = [one.arg for one in (*given.posonlyargs, *given.args)]
        is_simple = not (given.vararg or given.kwarg or given.kwonlyargs or function.decorator_list)
        if not is_simple or not names or not all(isinstance(one, ast.Constant) for one in given.defaults):
            raise Refused("handed to a method that does more than add up")
        self.own, *self.parameters = names
        self.defaults = dict(zip(reversed(names), reversed(given.defaults), strict=False))
        self.attributes: set[str] = set()  # that are set or read
        self.divisors: set[str] = set()  # the parameters that must not be 0
        self._known = set(self.parameters)
        self._counts: dict[str, set[str] | None] = {name: {name} for name in self.parameters}
        for place, statement in enumerate(function.body):
            if not isinstance(statement, ast.Pass) and (place or not _is_text(statement)) and not self._adds(statement):
                raise Refused("handed to a method that does more than add up")

    def may_be_told(self, call: ast.Call, reads: list[ast.AST]) -> None:
        """What cannot be called like this, or divides by nothing, has to raise where it is told."""
        given = dict(zip(self.parameters, call.args, strict=False)) | {str(one.arg): one.value for one in call.keywords}
        is_full = self.defaults.keys() | given.keys() >= set(self.parameters) >= given.keys()
        if not is_full or len(given) < len(call.args) + len(call.keywords):
            raise Refused("handed to a method that takes something else")
        for name in self.divisors:
            is_read = name in given and any(node in reads for node in ast.walk(given[name]))
            if is_read or (name not in given and not _is_above_zero(self.defaults[name])):
                raise Refused("perhaps divided by nothing")

    def _adds(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, _ARITHMETIC):
            target: ast.expr = statement.target
            value: ast.expr = ast.BinOp(target, statement.op, statement.value)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        else:
            return False
        if not self._is_sum(value):
            return False
        counts = self._of(value, target)
        name = self._spelled(target)
        if name is None:
            return False
        self._counts[name] = counts
        self._known.add(name)
        return True

    def _spelled(self, node: ast.AST) -> str | None:
        """`count` for a variable, `.count` for an attribute of its own."""
        if isinstance(node, ast.Name) and node.id != self.own:
            return node.id
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self.own:
            self.attributes.add(node.attr)
            return f".{node.attr}"
        return None

    def _is_sum(self, node: ast.expr) -> bool:
        """Arithmetic on numbers, arguments and the object's attributes."""
        if isinstance(node, ast.BinOp):
            if isinstance(node.op, ast.Div):
                counts = self._of(node.right)
                if counts is None:
                    raise Refused("perhaps divided by nothing")
                self.divisors |= counts
            return isinstance(node.op, _ARITHMETIC) and self._is_sum(node.left) and self._is_sum(node.right)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, ast.USub) and self._is_sum(node.operand)
        name = self._spelled(node)
        if name is not None:
            return name.startswith(".") or name in self._known
        return isinstance(node, ast.Constant) and type(node.value) in (int, float)

    def _of(self, node: ast.expr, target: ast.expr | None = None) -> set[str] | None:
        """The parameters that have to be above 0 for this to be so; None where that is not enough. A count that is
        added to was not below it."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult | ast.Div):
            left, right = self._of(node.left), self._of(node.right)
            is_own = target is not None and self._spelled(node.left) == self._spelled(target)
            if is_own and isinstance(node.op, ast.Add) and left is None:
                return right
            return None if left is None or right is None else left | right
        name = self._spelled(node)
        if name is not None:
            return self._counts.get(name)
        return set() if _is_above_zero(node) else None


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_above_zero(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and node.value > 0


def _is_changed(source: Source, node: ast.AST, kind: ast.ClassDef, kept: set[str]) -> bool:
    """Whether a node is the class, and neither called, nor a base, nor a type hint, nor given to `isinstance`."""
    if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return False
    if (source.name_of(node) or last_name(node) or "").rpartition(".")[2] != kind.name:
        return False
    while isinstance(above := source.parent(node), ast.Tuple | ast.Subscript | ast.BinOp):
        node = above
    if isinstance(above, ast.Attribute):
        return above.attr in kept or above.attr.startswith("__")
    if isinstance(above, ast.Call):
        return node is not above.func and last_name(above.func) not in _BUILDING
    if isinstance(above, Function | ast.AnnAssign):
        return node not in (getattr(above, "returns", None), getattr(above, "annotation", None))
    return not isinstance(above, ast.ClassDef | ast.arg | ast.keyword | ast.pattern)


def _is_put_elsewhere(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and not isinstance(node.ctx, ast.Load)
