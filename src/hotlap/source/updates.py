"""Updates written by hand, parameter by parameter: `for p in model.parameters(): p.data.add_(p.grad, alpha=-lr)`.

A loop that does nothing else can be written as one call over all parameters, with the same operations on the same
numbers. That is proven here, or the loop is left alone: its factor must be a plain number, and nobody may miss its
variable."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_IN_PLACE = {ast.Add: "add_", ast.Sub: "sub_"}


def updates_by_hand(source: Source) -> Iterator[ast.For]:
    for call in source.method_calls("parameters"):
        loop = source.parent(call)
        name = loop.target.id if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) else None
        if isinstance(loop, ast.For) and name and any(_moves_weight(node, name) for node in ast.walk(loop)):
            yield loop


def batched(source: Source, loop: ast.For) -> str | None:
    """One call that does what the loop does; None where that is not certain."""
    assert isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Call)
    name, is_plain = loop.target.id, not loop.iter.args and not loop.iter.keywords
    if not is_plain or loop.orelse or spelling(loop.iter.func) is None or _is_missed(source, loop, loop.target):
        return None
    statement, condition = _unguarded(loop, name)
    update = _update(statement) if statement is not None else None
    if update is None:
        return None
    weight, operation, change = update
    if spelling(weight) != f"{name}.data" and not (spelling(weight) == name and source.under_no_grad(loop)):
        return None
    gradient, factor = change
    if spelling(gradient) not in (f"{name}.grad", f"{name}.grad.data"):
        return None
    number = factor.value if isinstance(factor, ast.keyword) else factor
    if number is not None and not _is_number(source, number):
        return None
    over = f"for {name} in {source.segment(loop.iter)}{condition}"
    weights, gradients = (f"[{source.segment(one)} {over}]" for one in (weight, gradient))
    if not condition and spelling(weight) == name:
        weights = f"list({source.segment(loop.iter)})"
    if number is not None and number is factor:
        gradients = f"torch._foreach_mul({gradients}, {source.segment(number)})"
    alpha = [f"alpha={source.segment(factor.value)}"] if isinstance(factor, ast.keyword) else []
    return _call(source, loop, f"torch._foreach_{operation}", [weights, gradients, *alpha])


def _call(source: Source, loop: ast.For, function: str, given: list[str]) -> str:
    """One argument a line, in the place of the loop."""
    start, _ = source.lines.span(loop)
    before = source.text[source.lines.start(source.lines.line_at(start)) : start]
    indent, newline = before if before.isspace() else "", source.lines.newline
    return newline.join([f"{function}(", *(f"{indent}    {one}," for one in given), f"{indent})"])


_Change = tuple[ast.expr, "ast.expr | ast.keyword | None"]  # the gradient, and what it is multiplied with


def _update(statement: ast.stmt) -> tuple[ast.expr, str, _Change] | None:
    """`p.data.sub_(lr * p.grad)`, `p.data.add_(p.grad, alpha=-lr)` or `p -= lr * p.grad`: weight, operation, change."""
    if isinstance(statement, ast.AugAssign) and type(statement.op) in _IN_PLACE:
        return statement.target, _IN_PLACE[type(statement.op)], _change(statement.value)
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return None
    if call.func.attr not in _IN_PLACE.values() or [one.arg for one in call.keywords] not in ([], ["alpha"]):
        return None
    if call.keywords:
        return call.func.value, call.func.attr, (call.args[0], call.keywords[0])
    return call.func.value, call.func.attr, _change(call.args[0])


def _change(value: ast.expr) -> _Change:
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        is_left = ".grad" in (spelling(value.left) or "")
        return (value.left, value.right) if is_left else (value.right, value.left)
    return value, None


def _unguarded(loop: ast.For, name: str) -> tuple[ast.stmt | None, str]:
    """The only statement of a loop, and what it is done under: `if p.grad is not None`, or nothing."""
    statement = loop.body[0] if len(loop.body) == 1 else None
    if not isinstance(statement, ast.If):
        return statement, ""
    guard = ast.dump(ast.parse(f"{name}.grad is not None", mode="eval").body)
    if ast.dump(statement.test) != guard or statement.orelse or len(statement.body) != 1:
        return None, ""
    return statement.body[0], f" if {name}.grad is not None"


def _is_number(source: Source, node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _is_number(source, node.operand)
    known = source.known(node)
    return known is not None and isinstance(known.value, int | float)


def _is_missed(source: Source, loop: ast.For, target: ast.Name) -> bool:
    """Whether the loop's variable is used outside of loops that set it themselves."""

    def is_set(use: ast.Name) -> bool:
        above = [one.target for one in source.ancestors(use) if isinstance(one, ast.For)]
        return any(isinstance(one, ast.Name) and one.id == target.id for one in above)

    return not all(map(is_set, source.uses(target)))


def _moves_weight(node: ast.AST, name: str) -> bool:
    """Whether a node changes the parameter, or its `data`, by something with its gradient in it."""
    weight, given = None, []
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("add_", "sub_"):
        weight, given = node.func.value, [*node.args, *(one.value for one in node.keywords)]
    elif isinstance(node, ast.AugAssign):
        weight, given = node.target, [node.value]
    elif isinstance(node, ast.Assign):
        weight, given = node.targets[0], [node.value]
    used = {spelling(one) for part in given for one in ast.walk(part)}
    return weight is not None and spelling(weight) in (name, f"{name}.data") and f"{name}.grad" in used
