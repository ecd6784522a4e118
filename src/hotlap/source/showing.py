"""Statements that only look: they read what a step has made, print it, add it up. Forward and backward know nothing of
them, so the statements that go back may come first."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotlap.source.bodies import constant, method
from hotlap.source.device_values import READS
from hotlap.source.handed_on import SIZES, WORK
from hotlap.source.meters import only_adds
from hotlap.source.models import model_spellings
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_TOLD = "hotlap.parts.late_meters.tell_later"
LATE = ("hotlap.parts.late_reads.read_later", "hotlap.parts.late_reads.read_now")
_PURE = {"float", "int", "bool", "len", "str", "repr", "round", "min", "max", "sum", "abs", "format", "range", "zip"}
_PURE |= {"list", "tuple", "sorted", "enumerate", "print"}
_ASKING = {*READS, *SIZES, *WORK, "data", "astype", "format", "join", "strip", "split", "replace", "keys", "values"}
_ASKING |= {"items", "ljust", "rjust", "nelement"}
_TELLING = {"append", "add_scalar", "set_postfix", "set_postfix_str", "set_description", "write", "info", "debug"}
_ENDING = ("sys.exit", "exit", "quit")
_OF_PASSES = ("backward", "zero_grad")
_LOOKING = (
    ast.Name | ast.Constant | ast.Attribute | ast.Subscript | ast.Slice | ast.BinOp | ast.UnaryOp | ast.BoolOp
) | (ast.Compare | ast.IfExp | ast.Tuple | ast.List | ast.Dict | ast.JoinedStr | ast.FormattedValue | ast.keyword)
_HIDDEN = ("grad", "training", "parameters", "modules", "state_dict")  # what a pass changes, or is changed by
_FIELDS = re.compile(r"\{[^{}:]*\}")  # of a format, without a word on how a number is to be written
_NUMBERS = re.compile(r"(?:[^%]|%%|%[-+ 0#]*\d*(?:\.\d+)?[dfeg])*")  # the only conversions of a `%` format


def only_shows(source: Source, statement: ast.stmt) -> bool:
    """It neither computes for the pass nor changes anything that a pass could meet."""
    if source.mentions("register_hook", "register_full_backward_hook") or "torch.autograd.Function" in source.text:
        return False  # what is done in backward may be seen there
    if isinstance(statement, ast.If):
        inner = [*statement.body, *statement.orelse]
        return _is_pure(source, statement.test) and all(only_shows(source, one) for one in inner)
    if isinstance(statement, ast.Assign | ast.AugAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return _is_pure(source, statement.value) and all(isinstance(one, ast.Name) for one in _named(targets))
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        is_told = source.name_of(call.func) in ("print", _TOLD) or only_adds(source, call)
        is_told = is_told or (method(call) in _TELLING and not _is_own(source, method(call)))
        is_told = is_told or _ends(source, call)
        return is_told and all(_is_pure(source, one) for one in (*call.args, *call.keywords))
    if isinstance(statement, ast.Assert | ast.Raise):  # after the pass, and before the update
        given = [one for one in ast.iter_child_nodes(statement) if isinstance(one, ast.expr)]
        return all(_is_pure(source, one) or _is_error(source, one) for one in given)
    return isinstance(statement, ast.Pass)


def may_end(source: Source, statement: ast.stmt) -> bool:
    """The training: an error that computing would raise must not come first."""
    return any(isinstance(one, ast.Raise | ast.Assert) or _ends(source, one) for one in ast.walk(statement))


def can_come_first(source: Source, statement: ast.stmt) -> bool:
    """Of a pass: it clears gradients, goes back, or reckons with torch's own functions and changes nothing in place."""
    if isinstance(statement, ast.Expr):
        return True  # only those two are plain
    if not isinstance(statement, ast.Assign) or _changes_in_place(statement):
        return False
    calls = [node for node in ast.walk(statement.value) if isinstance(node, ast.Call)]
    return all((source.name_of(one.func) or "").startswith("torch.") or method(one) in WORK for one in calls)


def can_wait(showing: Sequence[ast.stmt], passed: Sequence[ast.stmt]) -> bool:
    """Whether it makes no difference to statements that only show if they come after some of a pass."""
    reads, writes = _reads_and_writes(showing)
    computed, stored = _reads_and_writes(passed)
    return not (reads | writes) & stored and not writes & computed


def shows_numbers(source: Source, statements: Sequence[ast.stmt], results: set[str]) -> bool:
    """Whether results are only read as numbers, or worked into what is. A tensor that is printed, or kept, tells how it
    was made, and what is done to it is seen by others."""
    tensors, inside = set(results), {node for statement in statements for node in ast.walk(statement)}
    for statement in _simple(statements):
        nodes = [one for one in ast.walk(statement) if spelling(one) in tensors and not _is_part(source, one)]
        loose = [one for one in nodes if not _is_read(source, one, statement)]
        if not loose:
            continue
        if not isinstance(statement, ast.Assign):
            return False
        targets = list(_named(statement.targets))
        if any(use not in inside for one in targets if isinstance(one, ast.Name) for use in _loads(source, one)):
            return False
        tensors |= {str(spelling(one)) for one in targets}
    return True


def _loads(source: Source, target: ast.Name) -> Iterator[ast.Name]:
    yield from (use for use in source.uses(target) if isinstance(use.ctx, ast.Load))


def _simple(statements: Sequence[ast.stmt]) -> Iterator[ast.stmt | ast.expr]:
    for statement in statements:
        if isinstance(statement, ast.If):  # of its test only whether it is true is seen
            yield from _simple([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Assert):
            yield from [statement.msg] if statement.msg is not None else []
        else:
            yield statement


def _is_part(source: Source, node: ast.AST) -> bool:
    """`self` of `self.loss`, which is looked at as a whole."""
    above = source.parent(node)
    return isinstance(above, ast.Attribute) and not _is_method(source, above)


def _is_method(source: Source, node: ast.Attribute) -> bool:
    call = source.parent(node)
    return isinstance(call, ast.Call) and call.func is node


def _is_read(source: Source, node: ast.AST, whole: ast.AST) -> bool:
    """Whether nothing but a number, or its size, leaves the expression in which it is mentioned."""
    inner = node
    for above in source.ancestors(node):
        if isinstance(above, ast.Call):
            if method(above) in ("item", "tolist", "numel", "size", "dim") and inner is above.func:
                return True
            name = source.name_of(above.func) or ""
            if name in ("float", "int", "len", *LATE) and inner is not above.func:
                return True
            template = constant(above.func.value) if isinstance(above.func, ast.Attribute) else None
            if method(above) == "format" and isinstance(template, str) and inner is node and node in above.args:
                return not _FIELDS.search(template)
        if isinstance(above, ast.Attribute) and above.attr in ("shape", "dtype", "device"):
            return True
        if isinstance(above, ast.FormattedValue) and inner is node:
            return above.format_spec is not None
        if isinstance(above, ast.BinOp) and isinstance(above.op, ast.Mod) and isinstance(constant(above.left), str):
            given = above.right.elts if isinstance(above.right, ast.Tuple) else [above.right]
            return node in given and bool(_NUMBERS.fullmatch(str(constant(above.left))))
        if above is whole:
            return False
        inner = above
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
            if _is_own(source, node.func.attr):
                return False
            if not _is_pure(source, node.func.value):
                return False
        return all(_is_pure(source, one) for one in (*node.args, *node.keywords))
    if isinstance(node, ast.Attribute) and (node.attr in _HIDDEN or spelling(node.value) in model_spellings(source)):
        return False
    parts = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr | ast.keyword)]
    return isinstance(node, _LOOKING) and all(_is_pure(source, one) for one in parts)


def _ends(source: Source, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and source.name_of(node.func) in _ENDING


def _is_error(source: Source, node: ast.expr) -> bool:
    """One of Python's own."""
    name = source.name_of(node.func if isinstance(node, ast.Call) else node) or ""
    kind = getattr(builtins, name, None)
    given = [*node.args, *node.keywords] if isinstance(node, ast.Call) else []
    return isinstance(kind, type) and issubclass(kind, BaseException) and all(_is_pure(source, one) for one in given)


def _is_own(source: Source, name: str | None) -> bool:
    """Whether a class of this file has a method of that name, which may do anything."""
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in source.names.parents)


def _reads_and_writes(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names, and the attributes of objects by their spelling; who is told something is written to."""
    reads, writes = set[str](), set[str]()
    for node in [one for statement in statements for one in ast.walk(statement)]:
        name = spelling(node) if isinstance(node, ast.Name | ast.Attribute) else None
        if name is not None:
            (writes if isinstance(node.ctx, ast.Store) else reads).add(name)  # type: ignore[attr-defined]
        if isinstance(node, ast.AugAssign):
            reads |= {str(spelling(node.target))}
        call = node.value if isinstance(node, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and method(call) not in _OF_PASSES:
            writes.add(str(spelling(call.func.value)))
        elif isinstance(call, ast.Call) and spelling(call.func) == "tell_later":
            writes.add(str(spelling(call.args[0])))
    return reads, writes


def _changes_in_place(statement: ast.stmt) -> bool:
    """`out.relu_()`, of which nothing is set."""
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [method(call) or "" for call in calls]
    is_in_place = any(name.endswith("_") and not name.endswith("__") for name in names)
    return is_in_place or any(one.arg in ("inplace", "out") for call in calls for one in call.keywords)
