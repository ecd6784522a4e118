"""Whether statements can be taken away, and what they read be read further down instead."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from hotlap.source.bodies import attributes, method
from hotlap.source.loops import Function, Loop
from hotlap.source.module import Source
from hotlap.source.names import spelling

Piece = tuple[ast.expr, ast.stmt]  # an expression, and the statement it is read by
_ODD = ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Starred | ast.Lambda
_LATER = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.Lambda
_APART = Function | ast.Lambda | ast.GeneratorExp | ast.ClassDef  # what runs at another time, or under other names
_SIMPLE = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
_PURE = {
    "print",
    "len",
    "range",
    "int",
    "float",
    "bool",
    "zip",
    "enumerate",
    "min",
    "max",
    "tuple",
    "list",
    "isinstance",
}
_PURE_MODULES = ("torch.", "math.", "numpy.", "einops.")
_SPIES = {"locals", "vars", "eval", "exec", "dir"}
_MOST_NAMES = 8


def is_read_elsewhere(source: Source, made: Sequence[ast.stmt], product: ast.expr) -> bool:
    """Whether what statements make is read by anything but them and the product they lead to."""
    return any(
        _reads(source, use) and not _comes_before(source, use, made) and not _is_made_anew(source, use, made)
        for target in _targets(made)
        for use in source.uses(target)
        if not any(above is product or above in made for above in source.ancestors(use))
    )


def can_move(source: Source, pieces: Sequence[Piece], made: Sequence[ast.stmt], product: ast.expr) -> bool:
    """Whether pieces are worth the same where the product stands, and nobody can miss what the statements make."""
    last = source.statement(product)
    block = source.block(last)
    if any(isinstance(node, _ODD) or _is_in_place(source, node) for piece, _ in pieces for node in ast.walk(piece)):
        return False
    if not made:
        return True
    is_within = any(isinstance(above, _LATER) for above in source.ancestors(product) if last in source.ancestors(above))
    if not isinstance(last, _SIMPLE) or is_within or not are_own(source, made, product):
        return False
    stored = {target.id for target in _targets(made)}
    for piece, at in pieces:
        names = {node.id for node in ast.walk(piece) if isinstance(node, ast.Name)}
        between = [one for one in block[block.index(at) + 1 : block.index(last)] if one not in made]
        if names & stored or any(_changes(source, node, names) for one in between for node in ast.walk(one)):
            return False
    outside = set(ast.walk(last)) - set(ast.walk(product)) - set(source.ancestors(product))
    return not any(isinstance(node, ast.NamedExpr) or may_change(source, node) for node in outside)


def are_own(source: Source, made: Sequence[ast.stmt], product: ast.expr) -> bool:
    """Whether the names are variables of the function alone, which nobody asks for all it has."""
    function = source.function_of(product)
    if function is None:
        return False
    scopes = [found[0].node for target in _targets(made) if (found := source.names.lookup(target))]
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    return all(node is function for node in scopes) and not any(spelling(call.func) in _SPIES for call in calls)


def is_changed_in_place(source: Source, made: ast.expr) -> bool:
    """Whether a result, or a view of it, is written to afterwards: its maker may need it for backward."""
    last = source.statement(made)
    waiting: list[ast.expr] = [made]
    seen: set[str] = set()
    while waiting:
        top = _view(source, waiting.pop())
        if top is None:
            return True
        statement = source.parent(top)
        if isinstance(statement, ast.Call) and top is not statement.func and _is_in_place(source, statement):
            return True
        for target in _given(source, top):
            if isinstance(target, ast.Name) and target.id not in seen and len(seen) < _MOST_NAMES:
                seen.add(target.id)
                later = [one for one in source.uses(target) if one is not target and _is_later(source, one, last)]
                if any(isinstance(source.parent(one), ast.AugAssign) and not _is_load(one) for one in later):
                    return True
                waiting += [one for one in later if _is_load(one)]
    return False


def is_viewed(source: Source, made: ast.expr) -> bool:
    """Whether a result is asked for a `view` of itself at once, which the order of its axes in memory may rule out."""
    statement = source.parent(made)
    target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is made else None
    results: list[ast.expr] = [made]
    for use in source.uses(target) if isinstance(target, ast.Name) else []:
        if _is_later(source, use, source.statement(made)):
            results.append(use)
            if not _is_load(use) and source.statement(use) is not statement:
                results += [node for node in ast.walk(source.statement(use)) if isinstance(node, ast.Name)]
                break  # from here on it is something else
    name = target.id if isinstance(target, ast.Name) else None
    above = [source.parent(one) for one in results if one is made or (isinstance(one, ast.Name) and one.id == name)]
    return any(isinstance(one, ast.Attribute) and one.attr == "view" for one in above)


def may_change(source: Source, node: ast.AST) -> bool:
    """Whether a call may write to tensors or to the object it belongs to."""
    if not isinstance(node, ast.Call) or _is_in_place(source, node):
        return isinstance(node, ast.Call)
    name, written = source.name_of(node.func), spelling(node.func) or ""
    if name is not None:
        return name not in _PURE and not name.startswith(_PURE_MODULES)
    if written.startswith("self."):
        return _layer(source, node) is None
    return not isinstance(node.func, ast.Attribute) or ast.unparse(node.func).startswith(("super(", "cls."))


def _targets(made: Sequence[ast.stmt]) -> list[ast.Name]:
    found = [one.targets[0] if isinstance(one, ast.Assign) else one.target for one in made
             if isinstance(one, ast.Assign | ast.AugAssign)]  # fmt: skip
    return [one for one in found if isinstance(one, ast.Name)]


def _is_load(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _reads(source: Source, use: ast.Name) -> bool:
    return not isinstance(use.ctx, ast.Store) or isinstance(source.parent(use), ast.AugAssign)


def _comes_before(source: Source, use: ast.Name, made: Sequence[ast.stmt]) -> bool:
    """Whether a place is left for good when the statements are reached."""
    around = next((above for above in source.ancestors(use) if isinstance(above, _APART)), None)
    is_again = any(isinstance(above, Loop) for above in source.ancestors(made[0]))
    return not is_again and around is source.function_of(made[0]) and use.lineno < made[0].lineno


def _is_made_anew(source: Source, use: ast.Name, made: Sequence[ast.stmt]) -> bool:
    """Whether on every way to a place its name was given something else since: by a statement above it, with none of
    the others between the two."""
    around = next((above for above in source.ancestors(use) if isinstance(above, _APART)), None)
    if around is not source.function_of(made[0]):
        return False
    statement: ast.stmt | None = source.statement(use)
    while statement is not None and statement is not around:
        block = source.block(statement)
        for place in range(block.index(statement), -1, -1):
            one = block[place]
            if one is not statement and one not in made and _gives(one, use.id):
                return True
            if any(inside in made for inside in ast.walk(one)):
                break
        statement = source.enclosing(statement, ast.stmt)
    return False


def _gives(statement: ast.stmt, name: str) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for one in targets for part in (one.elts if isinstance(one, ast.Tuple | ast.List) else [one])]
    return any(isinstance(part, ast.Name) and part.id == name for part in parts)


def _changes(source: Source, node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names and not _is_load(node)
    if isinstance(node, ast.Attribute | ast.Subscript):
        return not isinstance(node.ctx, ast.Load)
    is_odd = isinstance(
        node, Function | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Yield | ast.YieldFrom | ast.Await
    )
    return is_odd or isinstance(node, ast.AugAssign) or may_change(source, node)


def _layer(source: Source, call: ast.Call) -> ast.Call | None:
    """The call that made the layer of torch called here, as `self.name`; where there is just one."""
    owner = source.enclosing(call, ast.ClassDef)
    values = attributes(source).get(owner, {}).get(spelling(call.func) or "", []) if owner is not None else []
    made = values[0] if len(values) == 1 else None
    is_layer = isinstance(made, ast.Call) and (source.name_of(made.func) or "").startswith("torch.nn.")
    return made if is_layer and isinstance(made, ast.Call) else None


def _is_in_place(source: Source, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = (spelling(node.func) or method(node) or "").rpartition(".")[2]
    made = _layer(source, node)
    options = [one for call in (node, made) if call is not None for one in call.keywords]
    is_told = any(one.arg in ("out", "inplace") and ast.unparse(one.value) != "False" for one in options)
    return is_told or (name.endswith("_") and not name.endswith("__"))


def _given(source: Source, value: ast.expr) -> list[ast.expr]:
    """What an expression is assigned to, by itself or as one of several."""
    above = source.parent(value)
    several = above if isinstance(above, ast.Tuple | ast.List) else None
    statement = source.parent(several) if several is not None else above
    if not isinstance(statement, ast.Assign):
        return []
    if several is None:
        return statement.targets
    alike = [one.elts for one in statement.targets if isinstance(one, ast.Tuple | ast.List)]
    return [one[several.elts.index(value)] for one in alike if len(one) == len(several.elts)]


def _view(source: Source, node: ast.expr) -> ast.expr | None:
    """What is left of a tensor after methods and indices that may only look at it; None where one writes to it."""
    above = source.parent(node)
    while isinstance(above, ast.Attribute | ast.Subscript | ast.Call) and node in (
        getattr(above, "value", None), getattr(above, "func", None)
    ):  # fmt: skip
        if _is_in_place(source, above) or (isinstance(above, ast.Subscript) and not isinstance(above.ctx, ast.Load)):
            return None
        node, above = above, source.parent(above)
    return node


def _is_later(source: Source, use: ast.Name, last: ast.stmt) -> bool:
    in_a_loop = source.enclosing(last, (ast.For, ast.While, ast.AsyncFor)) is not None
    return in_a_loop or (use.lineno, use.col_offset) > (last.end_lineno or last.lineno, 0)
