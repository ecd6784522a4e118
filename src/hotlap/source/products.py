"""Products of matrices, in any spelling."""

from __future__ import annotations

import ast

from hotlap.source.bodies import method, receiver
from hotlap.source.module import Source

_PRODUCTS = ("torch.matmul", "torch.bmm")


def product_of(source: Source, node: ast.AST | None) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and source.name_of(node.func) in _PRODUCTS and len(node.args) == 2:
        return node.args[0], node.args[1]
    if isinstance(node, ast.Call) and method(node) in ("matmul", "bmm") and len(node.args) == 1:
        return (receiver(node), node.args[0]) if source.name_of(node.func) is None else None
    if is_einsum(source, node) and isinstance(node, ast.Call):
        return node.args[1], node.args[2]
    return None


def is_bmm(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (method(node) or source.name_of(node.func) or "").endswith("bmm")


def is_einsum(source: Source, node: ast.AST | None) -> bool:
    is_named = isinstance(node, ast.Call) and source.name_of(node.func) == "torch.einsum"
    return is_named and isinstance(node, ast.Call) and len(node.args) == 3 and isinstance(node.args[0], ast.Constant)


def contracts_last(node: ast.expr) -> bool:
    """Whether an einsum multiplies rows with rows: `bid,bjd->bij`."""
    assert isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant)
    taken, _, made = str(node.args[0].value).replace(" ", "").partition("->")
    one, _, other = taken.partition(",")
    return bool(one and other) and one[-1] == other[-1] and one[-1] not in made
