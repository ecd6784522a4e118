"""A call and what is surely given to it, also through `**kwargs`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING, Final

from hotlap.source.callers import given_to, parameters
from hotlap.source.loops import Function

if TYPE_CHECKING:
    from hotlap.source.module import Source
    from hotlap.source.values import Known


class Doubt(Enum):
    ABSENT = "surely not given"
    UNSURE = "cannot tell"


ABSENT: Final = Doubt.ABSENT
UNSURE: Final = Doubt.UNSURE
Given = ast.expr | Doubt

_MOST_HOPS = 4  # from one dictionary to the next, before giving up
_READING_METHODS = {"get", "items", "keys", "values", "copy"}
_READING_FUNCTIONS = {"print", "len", "str", "repr", "sorted", "list", "dict", "bool", "isinstance", "type"}


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a function whose qualified name is known."""

    node: ast.Call
    name: str
    source: Source

    def setting(self, keyword: str, position: int | None = None) -> Given:
        """The expression given for a parameter, ABSENT when surely none is, UNSURE otherwise."""
        for given in self.node.keywords:
            if given.arg == keyword:
                return given.value
        if position is not None:
            reached = self.node.args[: position + 1]
            if any(isinstance(argument, ast.Starred) for argument in reached):
                return UNSURE
            if len(reached) > position:
                return reached[position]
        found: Given = ABSENT
        for given in self.node.keywords:
            if given.arg is None:
                inside = _look_up(self.source, given.value, keyword, self.node)
                if inside is not ABSENT:
                    found = inside
        return found

    def known(self, keyword: str, position: int | None = None) -> Known | Doubt:
        """As `setting`, but the plain value, through names, options' defaults and class attributes."""
        given = self.setting(keyword, position)
        if isinstance(given, Doubt):
            return given
        return self.source.known(given) or UNSURE


def _look_up(source: Source, mapping: ast.expr, keyword: str, at: ast.AST, hops: int = 0) -> Given:
    """What a mapping holds under a keyword at the moment of the call `at`."""
    if hops > _MOST_HOPS:
        return UNSURE
    if isinstance(mapping, ast.Dict):
        found: Given = ABSENT
        for key, value in zip(mapping.keys, mapping.values, strict=True):
            if key is None:
                inside = _look_up(source, value, keyword, at, hops + 1)
                found = found if inside is ABSENT else inside
            elif not isinstance(key, ast.Constant):
                found = UNSURE
            elif key.value == keyword:
                found = value
        return found
    if isinstance(mapping, ast.Call) and source.name_of(mapping.func) == "dict":
        return _handed_over(source, mapping, keyword, at, hops)
    if isinstance(mapping, ast.Call) and isinstance(mapping.func, ast.Attribute) and mapping.func.attr == "copy":
        return _look_up(source, mapping.func.value, keyword, at, hops + 1)
    if isinstance(mapping, ast.Call):
        return _returned(source, mapping, keyword, hops)
    if isinstance(mapping, ast.IfExp):
        return _either(
            _look_up(source, mapping.body, keyword, at, hops + 1),
            _look_up(source, mapping.orelse, keyword, at, hops + 1),
        )
    if isinstance(mapping, ast.BinOp) and isinstance(mapping.op, ast.BitOr):
        right = _look_up(source, mapping.right, keyword, at, hops + 1)
        return _look_up(source, mapping.left, keyword, at, hops + 1) if right is ABSENT else right
    if isinstance(mapping, ast.Name):
        return _look_up_name(source, mapping, keyword, at, hops)
    return UNSURE


def _returned(source: Source, call: ast.Call, keyword: str, hops: int) -> Given:
    """What a function of the project hands back: `**loader_options()`."""
    found = source.resolve(call.func)
    if found is None or not isinstance(found.node, ast.FunctionDef) or found.node.decorator_list:
        return UNSURE
    results = [node for node in ast.walk(found.node) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
    if len(results) != 1 or not isinstance(results[0], ast.Return) or results[0].value is None:
        return UNSURE
    return _look_up(found.source, results[0].value, keyword, results[0].value, hops + 1)


def _handed_over(source: Source, call: ast.Call, keyword: str, at: ast.AST, hops: int) -> Given:
    """What `dict(...)` or `.update(...)` takes in."""
    found: Given = ABSENT
    parts = [*call.args, *(given.value for given in call.keywords if given.arg is None)]
    for part in parts:
        inside = _look_up(source, part, keyword, at, hops + 1)
        found = found if inside is ABSENT else inside
    for given in call.keywords:
        if given.arg == keyword:
            found = given.value
    return found


def _either(one: Given, other: Given) -> Given:
    """Given in one branch only, or differently in both, is not sure."""
    if one is other:
        return one
    if isinstance(one, ast.expr) and isinstance(other, ast.expr) and ast.dump(one) == ast.dump(other):
        return one
    return UNSURE


def _look_up_name(source: Source, name: ast.Name, keyword: str, at: ast.AST, hops: int) -> Given:
    bindings = source.bindings(name)
    values = [(source, binding.value, at) for binding in bindings if binding.value is not None]
    if not values and len(bindings) == 1:
        values = [(where, value, value) for where, value in _given_to_parameter(source, name)]
    if not values or len(values) < len(bindings):
        return UNSURE  # a loop variable, an import
    found = reduce(_either, [_look_up(where, value, keyword, then, hops + 1) for where, value, then in values])
    for use in source.uses(name):
        change = _change_by(source, use, keyword, at, hops)
        if change is ABSENT:
            continue
        if change is UNSURE or not _surely_before(source, use, at):
            return UNSURE
        found = change
    return found


def _given_to_parameter(source: Source, name: ast.Name) -> list[tuple[Source, ast.expr]]:
    found = source.names.lookup(name)
    function = found[0].node if found else None
    is_parameter = isinstance(function, Function) and name.id in parameters(function)
    return (given_to(source, function, name.id) or []) if is_parameter and isinstance(function, Function) else []


def _change_by(source: Source, use: ast.Name, keyword: str, at: ast.AST, hops: int) -> Given:
    """What one mention of a dictionary's name puts under the keyword: ABSENT for nothing."""
    holder = source.parent(use)
    if not isinstance(use.ctx, ast.Load):
        return ABSENT  # an assignment, already weighed as a binding
    if isinstance(holder, ast.keyword):
        return ABSENT if holder.arg is None else UNSURE
    if isinstance(holder, ast.Dict):
        unpacked = [value for key, value in zip(holder.keys, holder.values, strict=True) if key is None]
        return ABSENT if any(value is use for value in unpacked) else UNSURE
    if isinstance(holder, ast.Subscript) and holder.value is use:
        if isinstance(holder.ctx, ast.Load):
            return ABSENT
        if not isinstance(holder.slice, ast.Constant):
            return UNSURE
        if holder.slice.value != keyword:
            return ABSENT
        statement = source.parent(holder)
        return statement.value if isinstance(statement, ast.Assign) and holder in statement.targets else UNSURE
    if isinstance(holder, ast.Attribute):
        call = source.parent(holder)
        if not isinstance(call, ast.Call) or call.func is not holder:
            return UNSURE
        if holder.attr == "update":
            return _handed_over(source, call, keyword, at, hops)
        if holder.attr in ("pop", "setdefault") and call.args and isinstance(call.args[0], ast.Constant):
            return UNSURE if call.args[0].value == keyword else ABSENT
        return ABSENT if holder.attr in _READING_METHODS else UNSURE
    if isinstance(holder, ast.Call):
        is_merged = isinstance(holder.func, ast.Attribute) and holder.func.attr == "update"  # `other.update(use)`
        return ABSENT if is_merged or source.name_of(holder.func) in _READING_FUNCTIONS else UNSURE
    reads = ast.Compare | ast.FormattedValue | ast.BoolOp | ast.UnaryOp | ast.If | ast.IfExp | ast.Expr | ast.BinOp
    if isinstance(holder, ast.IfExp) and holder.test is not use:
        return UNSURE
    return ABSENT if isinstance(holder, reads) else UNSURE


def _surely_before(source: Source, use: ast.Name, at: ast.AST) -> bool:
    """Whether a change always happens before the call: earlier in a block that the call's own block lies in."""
    changing = source.statement(use)
    block = source.block(changing)
    outer = source.statement(at)
    while not any(statement is outer for statement in block):
        holder = source.enclosing(outer, ast.stmt)
        if not isinstance(holder, ast.stmt):
            return False
        outer = holder
    return changing.lineno < outer.lineno
