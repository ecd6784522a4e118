"""Whether gradients flow back into a pass from elsewhere. What a recorded pass hands on has no gradient of its own, so
that a later pass which goes back through it would lose what it owes the first one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import method
from hotlap.source.device_values import READS
from hotlap.source.loops import Function
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_NEW = {f"torch.{name}" for name in ("empty", "zeros", "ones", "full", "eye", "arange", "rand", "randn", "randint")}
_SIZES = {"size", "dim", "numel"}
_KEEPING = {"append", "extend", "insert", "add", "update", "setdefault", "put"}
# What is asked of a result without going back through it later.
_LET_GO = {*READS, *_SIZES, "detach", "data", "shape", "device", "dtype"}
_PLAIN = {"float", "int", "bool", "len", "print", "str", "repr"}
_SETTING = ast.Assign | ast.AnnAssign | ast.AugAssign


def backwards(place: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(place) if isinstance(node, ast.Call) and method(node) == "backward"]


def goes_back_again(source: Source, place: ast.AST, region: list[ast.stmt], results: set[str]) -> bool:
    """Whether something in a loop, or a step's function, goes back through results of the region in it."""
    inside = {one for statement in region for one in ast.walk(statement)}
    statements = [one for one in ast.walk(place) if isinstance(one, ast.stmt) and one is not place]
    rest = sorted((one for one in statements if one not in inside), key=lambda one: one.lineno)
    again = next((n for n, one in enumerate(rest) if one.lineno > region[-1].lineno), len(rest))
    always = _blocks_around(source, place, region[0])
    reached, elsewhere = results - set(_bare(source, region)), list[tuple[set[str], ast.stmt]]()
    for statement in [*rest[again:], *rest[:again]]:  # round the loop, up to where it begins again
        for names, within in elsewhere:
            reached |= names if not within.lineno <= statement.lineno <= (within.end_lineno or 0) else set()
        for call in [node for node in _own(statement) if isinstance(node, ast.Call)]:
            if _hands_on(call, reached):
                if _goes_back(source, call):
                    return True
                if isinstance(call.func, ast.Attribute) and call.func.attr in _KEEPING:
                    reached.add(str(spelling(call.func.value)))
        if isinstance(statement, _SETTING) and statement.value is not None:
            names = set(_set_by(statement))
            if _hands_on(statement.value, reached):
                reached |= names
            elif not isinstance(statement, ast.AugAssign):  # something else goes by that name from here on
                above = source.parent(statement)
                if statement not in always and isinstance(above, ast.stmt):
                    elsewhere.append((names & reached, above))  # as long as it is in there
                reached -= names
    return False


def _blocks_around(source: Source, place: ast.AST, statement: ast.stmt) -> set[ast.stmt]:
    """Statements that are gone through whenever this one is."""
    found = set(source.block(statement))
    for above in source.ancestors(statement):
        if above is place:
            break
        found.update(source.block(above) if isinstance(above, ast.stmt) else ())
    return found


def _bare(source: Source, region: list[ast.stmt]) -> Iterator[str]:
    """Names that a region sets to what surely has no gradient, and to nothing else: new tensors, and sizes."""
    settings = [node for statement in region for node in ast.walk(statement) if isinstance(node, _SETTING)]
    for statement in settings:
        value, names = statement.value, list(_set_by(statement))
        is_bare = isinstance(value, ast.Call) and (source.name_of(value.func) in _NEW or method(value) in _SIZES)
        if is_bare and sum(bool({*names} & {*_set_by(one)}) for one in settings) == 1:
            yield from names


def _set_by(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[str]:
    """`loss`, `self.loss`, and `losses` in `losses[name] = loss`."""
    for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
        for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            yield str(spelling(one.value if isinstance(one, ast.Subscript | ast.Starred) else one))


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """What stands in a statement, without the statements in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)]


def _hands_on(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression has one of them in it, and does not let go of how that was made."""
    if isinstance(node, ast.Attribute) and node.attr in _LET_GO:
        return False
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _PLAIN:
        return False
    if isinstance(node, ast.Name | ast.Attribute) and spelling(node) in names:
        return True
    return any(_hands_on(one, names) for one in ast.iter_child_nodes(node))


def _goes_back(source: Source, call: ast.Call) -> bool:
    if method(call) == "backward" or source.name_of(call.func) == "torch.autograd.backward":
        return True
    found = source.definition(call.func)
    return isinstance(found, Function) and bool(backwards(found))
