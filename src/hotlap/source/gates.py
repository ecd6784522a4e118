"""How often a place inside a loop is reached: at every trip, now and then (`if i % n == 0`), or who knows."""

from __future__ import annotations

import ast
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hotlap.source.loops import Function, Loop
    from hotlap.source.module import Source


class Often(Enum):
    ALWAYS = "at every trip"
    SOMETIMES = "now and then"
    UNSURE = "cannot tell"


ALWAYS: Final = Often.ALWAYS
SOMETIMES: Final = Often.SOMETIMES
UNSURE: Final = Often.UNSURE

_DEFINING = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
_LEAVING = ast.Continue | ast.Break | ast.Return


def how_often(source: Source, node: ast.AST, place: Loop | Function) -> Often:
    """How often a node runs when the loop or function around it does, as far as conditions between the two say. One
    sure gate is enough."""
    is_doubtful = False
    below: ast.AST = node
    for above in source.ancestors(node):
        is_body = above is place and isinstance(place, _DEFINING)
        often = ALWAYS if is_body else _through(source, above, below)
        if often is SOMETIMES:
            return SOMETIMES
        if isinstance(below, ast.stmt):
            early = _skipped_before(source, below)
            if early is SOMETIMES:
                return SOMETIMES
            is_doubtful |= early is UNSURE
        is_doubtful |= often is UNSURE
        if above is place:
            return UNSURE if is_doubtful else ALWAYS
        below = above
    return UNSURE


def _through(source: Source, above: ast.AST, below: ast.AST) -> Often:
    """How often the child `below` is reached when `above` is."""
    if isinstance(above, _DEFINING | ast.Match | ast.ExceptHandler):
        return UNSURE
    if isinstance(above, ast.If | ast.IfExp) and not asks_for_none(above.test):
        body = above.body if isinstance(above.body, list) else [above.body]
        rest = above.orelse if isinstance(above.orelse, list) else [above.orelse]
        if any(below is one for one in body):
            return SOMETIMES if is_rare(source, above.test) else UNSURE
        if any(below is one for one in rest):
            return SOMETIMES if is_rarely_false(source, above.test) else UNSURE
    if isinstance(above, ast.BoolOp) and below is not above.values[0]:
        before = above.values[: next(index for index, one in enumerate(above.values) if one is below)]
        judge = is_rare if isinstance(above.op, ast.And) else is_rarely_false
        return SOMETIMES if any(judge(source, one) for one in before) else UNSURE
    if isinstance(above, ast.For | ast.While | ast.AsyncFor) and any(below is one for one in above.orelse):
        return SOMETIMES
    return ALWAYS


def _skipped_before(source: Source, statement: ast.stmt) -> Often:
    """`if i % n: continue` above a statement gates it as well."""
    found = ALWAYS
    for earlier in source.block(statement):
        if earlier is statement:
            break
        if isinstance(earlier, ast.If) and not earlier.orelse and isinstance(earlier.body[-1], _LEAVING):
            if is_rarely_false(source, earlier.test):
                return SOMETIMES
            # What ends the loop makes nothing after it rarer: every trip but the last goes past.
            if isinstance(earlier.body[-1], ast.Continue) and not is_rare(source, earlier.test):
                found = UNSURE
    return found


def asks_for_none(test: ast.expr) -> bool:
    """`if x is not None`: a part that a script has or has not, the same at every trip."""
    return isinstance(test, ast.Compare) and all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)


def is_rare(source: Source, test: ast.expr) -> bool:
    """Whether a condition surely holds now and then only: `i % n == 0`, `not i % n`, `step == 0`, with anything."""
    if isinstance(test, ast.BoolOp):
        judged = [is_rare(source, one) for one in test.values]
        return any(judged) if isinstance(test.op, ast.And) else all(judged)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_rarely_false(source, test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        sides = (test.left, test.comparators[0])
        return any(_is_remainder(source, side) for side in sides) or _is_one_moment(source, *sides)
    return False


def is_rarely_false(source: Source, test: ast.expr) -> bool:
    """The opposite: `i % n`, `i % n != 0`, `not i % n == 0`."""
    if isinstance(test, ast.BoolOp):
        judged = [is_rarely_false(source, one) for one in test.values]
        return all(judged) if isinstance(test.op, ast.And) else any(judged)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_rare(source, test.operand)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        sides = (test.left, test.comparators[0])
        is_other = isinstance(test.ops[0], ast.NotEq)
        is_above = isinstance(test.ops[0], ast.Gt) and _is_zero(test.comparators[0])
        return (is_other or is_above) and any(_is_remainder(source, side) for side in sides)
    return _is_remainder(source, test)


def _is_remainder(source: Source, node: ast.expr) -> bool:
    """`i % n`, with an n that is not surely 1 (every trip) and no text formatting."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return False
    every = source.known(node.right)
    if isinstance(node.left, ast.Constant) or (every is not None and type(every.value) is not int):
        return False
    return every is None or every.is_default or every.value > 1


def _is_one_moment(source: Source, left: ast.expr, right: ast.expr) -> bool:
    """`step == 0`, `i == len(loader) - 1`: a counter against one number."""
    for counter, moment in ((left, right), (right, left)):
        counts = isinstance(counter, ast.Name | ast.Attribute) or _is_shifted(counter)
        number = source.known(moment)
        is_number = number is not None and type(number.value) is int
        if counts and (is_number or _is_length(moment)) and _is_counted(source, counter):
            return True
    return False


def _is_shifted(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def _is_counted(source: Source, node: ast.expr) -> bool:
    """Whether a name is the index of an `enumerate` or `range`, or is counted up by `+=`."""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    return any(_counts_up(source, source.parent(use), use) for name in names for use in source.uses(name))


def _counts_up(source: Source, holder: ast.AST | None, use: ast.Name) -> bool:
    if isinstance(holder, ast.AugAssign):
        return holder.target is use and isinstance(holder.op, ast.Add)
    if isinstance(holder, ast.Tuple) and holder.elts and holder.elts[0] is use:
        loop = source.parent(holder)
        return isinstance(loop, ast.For) and loop.target is holder and _is_call(source, loop.iter, "enumerate")
    return isinstance(holder, ast.For) and holder.target is use and _is_call(source, holder.iter, "range")


def _is_call(source: Source, node: ast.AST, *names: str) -> bool:
    """`enumerate(x)`, also inside a progress bar: `tqdm(enumerate(x))`."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    return any(source.name_of(call.func) in names for call in calls)


def _is_length(node: ast.expr) -> bool:
    inside = node.left if isinstance(node, ast.BinOp) else node
    return isinstance(inside, ast.Call) and isinstance(inside.func, ast.Name) and inside.func.id == "len"


def _is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0
