"""Statements that only look: they read what a step has made, print it, add it up. Forward and backward know nothing of
them, so the statements that go back may come first."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotlap.source.bodies import method
from hotlap.source.device_values import READS
from hotlap.source.handed_on import SIZES, WORK
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_PURE = {"float", "int", "bool", "len", "str", "repr", "round", "min", "max", "sum", "abs", "format", "range", "zip"}
_PURE |= {"list", "tuple", "sorted", "enumerate", "print"}
_ASKING = {*READS, *SIZES, *WORK, "data", "astype", "format", "join", "strip", "split", "replace", "get_last_lr"}
_ASKING |= {"keys", "values", "items", "ljust", "rjust", "nelement", "mean", "argmax"}
_TELLING = {"append", "add_scalar", "set_postfix", "set_postfix_str", "set_description", "write", "info", "debug"}
LATE = ("hotlap.parts.late_reads.read_later", "hotlap.parts.late_reads.read_now")
_LOOKING = (
    ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.Slice | ast.BinOp | ast.UnaryOp | ast.BoolOp
) | (ast.Compare | ast.IfExp | ast.Tuple | ast.List | ast.Dict | ast.JoinedStr | ast.FormattedValue | ast.keyword)
_HIDDEN = ("grad", "training", "parameters", "modules", "state_dict")  # what a pass changes, or is changed by


def only_shows(source: Source, statement: ast.stmt) -> bool:
    """It neither computes for the pass nor changes anything that a pass could meet."""
    if isinstance(statement, ast.If):
        inner = [*statement.body, *statement.orelse]
        return _is_pure(source, statement.test) and all(only_shows(source, one) for one in inner)
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return _is_pure(source, statement.value) and all(isinstance(one, ast.Name) for one in _named(targets))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        given = [*call.args, *call.keywords]
        if source.name_of(call.func) == "print" or method(call) in _TELLING:
            return all(_is_pure(source, one) for one in given)
        is_read = any(isinstance(one, ast.Call) and _reads(source, one) for one in call.args)
        return method(call) == "update" and is_read and all(_is_pure(source, one) for one in given)
    return isinstance(statement, ast.Pass)


def can_wait(showing: Sequence[ast.stmt], passed: Sequence[ast.stmt]) -> bool:
    """Whether it makes no difference to statements that only show if they come after some of a pass."""
    reads, writes = _reads_and_writes(showing)
    computed, stored = _reads_and_writes(passed)
    is_apart = not (reads | writes) & stored and not writes & computed
    return is_apart and not any(map(_changes_in_place, passed))


def shows_whole(statements: Sequence[ast.stmt], names: set[str]) -> bool:
    """Whether one of the names is printed as a tensor, with all that torch tells of how it was made."""
    for node in [one for statement in statements for one in ast.walk(statement)]:
        shown: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("print", "str", "repr"):
            shown = node.args
        elif isinstance(node, ast.FormattedValue) and node.format_spec is None:
            shown = [node.value]
        if any(spelling(one) in names for one in shown):
            return True
    return False


def _named(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_pure(source: Source, node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = source.name_of(node.func) or ""
        is_known = name in _PURE or name in LATE or name.removeprefix("torch.") in WORK or name.startswith("math.")
        is_numpys = name.startswith("numpy.") and not name.startswith("numpy.random")
        if not (is_known or is_numpys):
            if not isinstance(node.func, ast.Attribute) or node.func.attr not in _ASKING:
                return False
            if not _is_pure(source, node.func.value):
                return False
        return all(_is_pure(source, one) for one in (*node.args, *node.keywords))
    if isinstance(node, ast.Attribute) and node.attr in _HIDDEN:
        return False
    parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr | ast.keyword)]
    return isinstance(node, _LOOKING) and all(_is_pure(source, one) for one in parts)


def _reads(source: Source, call: ast.Call) -> bool:
    return method(call) in READS or source.name_of(call.func) in (*LATE, "float", "int")


def _reads_and_writes(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names, and the attributes of objects by their spelling; who is told something is written to."""
    reads, writes = set[str](), set[str]()
    for node in [one for statement in statements for one in ast.walk(statement)]:
        name = spelling(node) if isinstance(node, ast.Name | ast.Attribute) else None
        if name is not None:
            (writes if isinstance(node.ctx, ast.Store) else reads).add(name)  # type: ignore[attr-defined]
        if isinstance(node, ast.AugAssign):
            reads |= {str(spelling(node.target))}
        if isinstance(node, ast.Call) and method(node) in (*_TELLING, "update"):
            writes.add(str(spelling(node.func.value)))  # type: ignore[attr-defined]
    return reads, writes


def _changes_in_place(statement: ast.stmt) -> bool:
    """`out.relu_()`, of which nothing is set."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [method(call) or "" for call in calls]
    is_in_place = any(name.endswith("_") and not name.endswith("__") and name != "requires_grad_" for name in names)
    return is_in_place or any(one.arg in ("inplace", "out") for call in calls for one in call.keywords)
