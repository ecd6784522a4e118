"""How many axes a tensor is seen to have: from the views it went through in its own function."""

from __future__ import annotations

import ast

from hotlap.source.bodies import constant, method, receiver
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.plain_numbers import is_number

_MOST_HOPS = 12
_SHAPING = {"view", "reshape", "permute"}
_KEEPING = {"transpose", "contiguous", "to", "float", "half", "bfloat16", "type_as", "clone", "detach", "swapaxes"}


def axis_count(source: Source, node: ast.AST | None, at: ast.stmt, hops: int = 0) -> int | None:
    """The number of axes as read by statement `at`; None when it is not seen."""
    if hops > _MOST_HOPS:
        return None
    if isinstance(node, ast.Name):
        return _of_name(source, node.id, at, hops)
    if isinstance(node, ast.Subscript):
        whole = axis_count(source, node.value, at, hops + 1)
        return whole - 1 if whole is not None and type(constant(node.slice)) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div) and is_number(source, node.right):
        return axis_count(source, node.left, at, hops + 1)
    if not isinstance(node, ast.Call) or source.name_of(node.func) is not None:
        return None
    if method(node) in _SHAPING:
        given = (
            node.args[0].elts if len(node.args) == 1 and isinstance(node.args[0], ast.Tuple | ast.List) else node.args
        )
        is_plain = len(given) > 1 and not node.keywords and not any(isinstance(one, ast.Starred) for one in given)
        return len(given) if is_plain else None
    return axis_count(source, receiver(node), at, hops + 1) if method(node) in _KEEPING else None


def _of_name(source: Source, name: str, at: ast.stmt, hops: int) -> int | None:
    """By the last statement above that gives it; None where that is not sure to have run."""
    block = source.block(at)
    for statement in reversed(block[: block.index(at)]):
        if not any(isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load)
                   for node in ast.walk(statement)):  # fmt: skip
            continue
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return None
        target, value = statement.targets[0], statement.value
        if spelling(target) == name:
            return axis_count(source, value, statement, hops + 1)
        if not isinstance(target, ast.Tuple | ast.List) or any(isinstance(one, ast.Starred) for one in target.elts):
            return None
        if isinstance(value, ast.Tuple | ast.List):
            places = [spelling(one) for one in target.elts]
            is_matched = len(value.elts) == len(places)
            return axis_count(source, value.elts[places.index(name)], statement, hops + 1) if is_matched else None
        if isinstance(value, ast.Call) and method(value) in ("chunk", "split", "unbind"):
            whole = axis_count(source, receiver(value), statement, hops + 1)
            return whole if whole is None or method(value) != "unbind" else whole - 1
        whole = axis_count(source, value, statement, hops + 1)
        return whole - 1 if whole is not None else None  # one along the first axis each
    return None
