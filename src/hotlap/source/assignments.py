"""What is assigned to what."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotlap.source.module import Source


def target_of(source: Source, value: ast.AST) -> ast.expr | None:
    """What an expression is assigned to, or added to."""
    holder = source.parent(value)
    if isinstance(holder, ast.AugAssign) and holder.value is value:
        return holder.target
    if isinstance(holder, ast.Assign) and len(holder.targets) == 1:
        return holder.targets[0]
    if isinstance(holder, ast.Tuple) and isinstance(assign := source.parent(holder), ast.Assign):
        assigned = [pair for target in assign.targets[:1] for pair in pairs(target, assign.value)]
        return next((target for target, given in assigned if given is value and len(assign.targets) == 1), None)
    return None


def pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """`a, b = 0, 1` is two assignments."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        if not any(isinstance(one, ast.Starred) for one in (*target.elts, *value.elts)):
            yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value
