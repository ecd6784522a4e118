"""Single numbers that a step shows after its pass, in statements that do other things besides:
`losses.append(loss.item())`, in every step or now and then."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hotlap.source.bodies import constant, method, own_nodes, receiver
from hotlap.source.early_reads import Readings, after, leans_on_waiting
from hotlap.source.handed_on import handed_on
from hotlap.source.names import spelling
from hotlap.source.straight_passes import Pass

if TYPE_CHECKING:
    from hotlap.source.module import Source

_COMPREHENSION = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def single_reads(source: Source, found: Pass, beside: Readings | None) -> Iterator[ast.Call]:
    """`loss.item()` in what is done after a pass; not in the statements that are read as a whole."""
    taken = beside.statements if beside is not None else ()
    if not leans_on_waiting(source):
        yield from _reads_in(source, found, after(source, found), taken, set())


def _reads_in(
    source: Source, found: Pass, block: list[ast.stmt], taken: Sequence[ast.stmt], handed: set[str]
) -> Iterator[ast.Call]:
    """`handed`: names of tensors that others could have changed before."""
    names = {*found.results, *found.inputs}
    for statement in block:
        if isinstance(statement, ast.If):
            yield from _reads_of(source, found, statement.test, handed)
            for part in (statement.body, statement.orelse):
                yield from _reads_in(source, found, part, taken, handed | handed_on(source, statement.test, names))
        elif isinstance(statement, ast.With):
            entered = handed.union(*(handed_on(source, item, names) for item in statement.items))
            yield from _reads_in(source, found, statement.body, taken, entered)
        elif statement not in taken and isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign | ast.Return):
            yield from _reads_of(source, found, statement, handed)
        handed = handed | handed_on(source, statement, names)


def _reads_of(source: Source, found: Pass, whole: ast.stmt | ast.expr, handed: set[str]) -> Iterator[ast.Call]:
    for node in own_nodes(source, whole):
        if not isinstance(node, ast.Call) or method(node) != "item" or node.args or node.keywords:
            continue
        name = spelling(receiver(node))
        is_known = name in found.results and name not in handed
        is_known = is_known and name not in _handed_on_beside(source, whole, node, set(found.results))
        if is_known and not _is_put_off(source, node, whole) and not _is_shown_as_written(source, node):
            yield node


def _handed_on_beside(source: Source, whole: ast.AST, node: ast.AST, names: set[str]) -> set[str]:
    """By what else the same statement does, but for the calls that are given what is read."""
    handed: set[str] = set()
    while node is not whole:
        above = source.parent(node)
        assert above is not None
        for beside in ast.iter_child_nodes(above):
            is_called = isinstance(above, ast.Call) and beside is above.func and spelling(beside) is not None
            if beside is not node and not is_called:
                handed |= handed_on(source, beside, names)
        node = above
    return handed


def _is_put_off(source: Source, node: ast.AST, whole: ast.stmt | ast.expr) -> bool:
    """Whether something in the midst of a statement decides when, and how often, it is done."""
    between = [*itertools.takewhile(lambda one: one is not whole, source.ancestors(node)), whole]
    return any(isinstance(one, ast.IfExp | ast.BoolOp | ast.Lambda | _COMPREHENSION) for one in between)


def _is_shown_as_written(source: Source, node: ast.AST) -> bool:
    """`f"{loss.item()=}"`, where Python puts the text before the equals sign into the string."""
    strings = (one for one in source.ancestors(node) if isinstance(one, ast.JoinedStr))
    return any(".item" in str(constant(part)) for string in strings for part in string.values)
