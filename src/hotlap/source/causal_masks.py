"""Masks that surely are causal: each position sees itself and what came before it, and nothing else.

`is_causal=True` means a triangle from the first query and the first key on. So does a square slice from 0 of a triangle
of ones: with more than one row it only fits scores of that length. One of a single row masks nothing, however many keys
there are: so a single query sees a whole cache of them. All else stays a tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import dropwhile

from hotlap.source.bodies import constant, method, receiver, same
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.written_attributes import may_be_kin, written_elsewhere

_MOST_HOPS = 12
# Ones stay ones and zeros stay zeros.
_CONVERTING = {"to", "type", "type_as", "float", "half", "bfloat16", "int", "long", "byte", "cuda", "cpu"}
_COPYING = {"contiguous", "clone", "detach"}
_TRUTHS = ("torch.bool", "bool")
_FACTS = {"shape", "size", "device", "dtype", "ndim"}  # asking a tensor for these changes nothing


@dataclass(frozen=True)
class _Triangle:
    """Ones and zeros, by where the ones are: on the diagonal and below it, or strictly above it."""

    is_past: bool
    is_truth: bool  # of booleans, so that `~` turns it round
    side: ast.expr | None  # how long it is; None once it was cut
    axes: int = 2


def is_causal_fill(source: Source, condition: ast.expr, axes: int | None) -> bool:
    """Whether scores with so many axes (None: not seen), filled where the condition holds, are those of
    `is_causal=True`; or not filled at all, where they have a single row. A mask with more axes than scores would give
    them more."""
    triangle = _triangle(source, condition)
    return triangle is not None and not triangle.is_past and triangle.axes <= (axes or 2)


def made_for(source: Source, condition: ast.expr) -> Iterator[ast.stmt]:
    """The statements beside it that make nothing but this mask. One with a comment stays: that would go with it."""
    for node in ast.walk(condition):
        value = _made_once(source, node) if isinstance(node, ast.Name) and _triangle(source, node) is not None else None
        statement = source.parent(value) if value is not None else None
        if value is not None and isinstance(statement, ast.Assign):
            yield from made_for(source, value)
            rows = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
            if not any(source.lines.line_at(start) in rows for start, _ in source.comments):
                yield statement


def _triangle(source: Source, node: ast.AST | None, hops: int = 0) -> _Triangle | None:
    if hops > _MOST_HOPS:
        return None
    if isinstance(node, ast.Name):
        return _triangle(source, _made_once(source, node), hops + 1)
    if isinstance(node, ast.Attribute):
        return _triangle(source, _kept_once(source, node), hops + 1)
    if isinstance(node, ast.Compare):
        return _compared(_triangle(source, node.left, hops + 1), node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        inside = _triangle(source, node.operand, hops + 1)
        return replace(inside, is_past=not inside.is_past) if inside is not None and inside.is_truth else None
    if isinstance(node, ast.Subscript):
        inside = _triangle(source, node.value, hops + 1)
        return _sliced(inside, node) if inside is not None else None
    return _called(source, node, hops) if isinstance(node, ast.Call) else None


def _compared(inside: _Triangle | None, node: ast.Compare) -> _Triangle | None:
    """`== 0` turns it round; `== 1` and `!= 0` do not."""
    number = constant(node.comparators[0])
    is_equation = isinstance(node.ops[0], ast.Eq)
    if inside is None or len(node.ops) > 1 or number not in (0, 1) or not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        return None
    return replace(inside, is_past=inside.is_past == (is_equation == bool(number)), is_truth=True)


def _sliced(inside: _Triangle, node: ast.Subscript) -> _Triangle | None:
    """Axes of one in front, and the last two cut to one length from 0, or left whole."""
    given = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    kept = list(dropwhile(lambda one: isinstance(one, ast.Constant) and one.value is None, given))
    axes = inside.axes + len(given) - len(kept)
    if kept and constant(kept[0]) is Ellipsis:
        kept = [ast.Slice()] * (inside.axes - len(kept) + 1) + kept[1:]
    if not kept:
        return replace(inside, axes=axes)
    slices = [one for one in kept if isinstance(one, ast.Slice) and _is_from_the_start(one)]
    if len(slices) != len(kept) or len(kept) != inside.axes or any(one.upper is not None for one in slices[:-2]):
        return None
    rows, columns = slices[-2].upper, slices[-1].upper
    if rows is None and columns is None:
        return replace(inside, axes=axes)
    if rows is None or columns is None or not same(rows, columns) or not _is_steady(rows):
        return None
    if isinstance(rows, ast.Constant):  # a single row for many queries masks nothing, either
        return None
    return replace(inside, axes=axes, side=None)


def _is_from_the_start(one: ast.Slice) -> bool:
    return one.step is None and (one.lower is None or constant(one.lower) == 0)


def _is_steady(length: ast.expr) -> bool:
    """Whether it is worth the same when it is asked for twice; a negative one counts from the end."""
    calls = [node for node in ast.walk(length) if isinstance(node, ast.Call)]
    is_asked = all(method(call) == "size" or spelling(call.func) == "len" for call in calls)
    return is_asked and not isinstance(length, ast.UnaryOp)


def _called(source: Source, call: ast.Call, hops: int) -> _Triangle | None:
    name, kind = source.name_of(call.func), method(call)
    if name in ("torch.tril", "torch.triu"):
        return _cut_from_ones(source, name.removeprefix("torch."), call.args[:1], call.args[1:], call.keywords)
    if name is not None or kind is None:
        return None
    if kind.rstrip("_") in ("tril", "triu"):
        return _cut_from_ones(source, kind.rstrip("_"), [receiver(call)], call.args, call.keywords)
    inside = _triangle(source, receiver(call), hops + 1)
    if inside is None or kind in _COPYING:
        return inside
    if kind in _CONVERTING or kind == "bool":
        return replace(inside, is_truth=_is_of_truths(source, call, inside.is_truth))
    if kind == "logical_not":
        return replace(inside, is_past=not inside.is_past, is_truth=True)
    if kind == "unsqueeze" and [constant(one) for one in call.args] == [0]:
        return replace(inside, axes=inside.axes + 1)
    return _viewed(inside, call.args) if kind in ("view", "reshape") and not call.keywords else None


def _viewed(inside: _Triangle, args: list[ast.expr]) -> _Triangle | None:
    """`view(1, 1, n, n)` of n times n."""
    sizes = args[0].elts if len(args) == 1 and isinstance(args[0], ast.Tuple | ast.List) else args
    is_kept = inside.side is not None and len(sizes) >= 2 and all(same(one, inside.side) for one in sizes[-2:])
    return replace(inside, axes=len(sizes)) if is_kept else None


def _cut_from_ones(
    source: Source, kind: str, of: list[ast.expr], given: list[ast.expr], keywords: list[ast.keyword]
) -> _Triangle | None:
    """tril with the diagonal, or triu without it: only these two are the past and the future."""
    ones = _ones(source, of[0]) if of else None
    given = [*given, *(one.value for one in keywords if one.arg == "diagonal")]
    is_odd = len(given) > 1 or any(one.arg != "diagonal" for one in keywords)
    diagonal = constant(given[0]) if given else 0
    if ones is None or is_odd or diagonal != (0 if kind == "tril" else 1):
        return None
    return replace(ones, is_past=kind == "tril")


def _ones(source: Source, node: ast.expr) -> _Triangle | None:
    """`torch.ones(n, n)`, of any type; not yet a triangle."""
    if not isinstance(node, ast.Call):
        return None
    if source.name_of(node.func) == "torch.ones":
        given = node.args[0] if len(node.args) == 1 else None
        sizes = given.elts if isinstance(given, ast.Tuple | ast.List) else node.args
        is_square = len(sizes) == 2 and same(*sizes) and _is_steady(sizes[0])
        is_plain = all(one.arg in ("dtype", "device", "requires_grad") for one in node.keywords)
        truth = _is_of_truths(source, node, False)
        return _Triangle(True, truth, sizes[0]) if is_square and is_plain else None
    is_same = source.name_of(node.func) is None and method(node) in (_CONVERTING | _COPYING | {"bool"})
    inside = _ones(source, receiver(node)) if is_same else None
    return replace(inside, is_truth=_is_of_truths(source, node, inside.is_truth)) if inside is not None else None


def _is_of_truths(source: Source, call: ast.Call, before: bool) -> bool:
    """Whether a call that makes or converts a tensor surely gives booleans."""
    if method(call) == "bool":
        return True
    given = [*call.args, *(one.value for one in call.keywords)]
    if any(source.name_of(one) in _TRUTHS for one in given):
        return True
    is_moved = method(call) == "to" and all((spelling(one) or "").endswith("device") for one in given)
    return before and (is_moved or method(call) in ("cuda", "cpu", *_COPYING))


def _made_once(source: Source, name: ast.Name) -> ast.expr | None:
    """What a variable was given, where one statement of the same function gives it and only this place reads it."""
    bindings, uses = source.bindings(name), source.uses(name)
    is_seen = len(uses) == 2 and len({source.function_of(use) for use in uses}) == 1
    value = bindings[0].value if is_seen and len(bindings) == 1 else None
    statement = source.statement(value) if value is not None else None
    has_other_names = isinstance(statement, ast.Assign) and len(statement.targets) > 1
    return None if has_other_names else value


def _kept_once(source: Source, attribute: ast.Attribute) -> ast.expr | None:
    """What `__init__` keeps under `self.name`, as a buffer or plainly, where nobody can have changed it since."""
    owner = source.enclosing(attribute, ast.ClassDef)
    written = spelling(attribute)
    if owner is None or written != f"self.{attribute.attr}":
        return None
    alike = [node for node in source.names.parents if isinstance(node, ast.Attribute) and spelling(node) == written]
    around = [(node, source.enclosing(node, ast.ClassDef)) for node in alike]
    mentions = [node for node, one in around if one is not None and may_be_kin(source, one, owner)]
    stores = [node for node in mentions if not isinstance(node.ctx, ast.Load)]
    calls = [node for node in ast.walk(owner) if isinstance(node, ast.Call) and method(node) == "register_buffer"]
    named = [(_buffer_name(call), call) for call in calls]
    buffers = [call for name, call in named if name == attribute.attr or not isinstance(name, str)]
    if len(stores) + len(buffers) != 1 or _is_changed_outside(source, owner, attribute.attr):
        return None
    made = source.parent(stores[0]) if stores else buffers[0]
    function = source.function_of(made) if made is not None else None
    if function is None or function.name != "__init__" or source.parent(function) is not owner:
        return None
    if not all(_only_reads(source, node) for node in mentions if node not in stores):
        return None
    if isinstance(made, ast.Assign):
        return made.value if made.targets == stores else None
    return _buffer_value(made) if isinstance(made, ast.Call) and spelling(made.func) == "self.register_buffer" else None


def _buffer_name(call: ast.Call) -> object:
    """The node itself where it is no literal."""
    given = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "name")]
    return constant(given[0]) if given else None


def _buffer_value(call: ast.Call) -> ast.expr | None:
    given = [*call.args[1:2], *(one.value for one in call.keywords if one.arg == "tensor")]
    return given[0] if given else None


def _only_reads(source: Source, node: ast.expr, hops: int = 0) -> bool:
    """Whether a mention of a mask only asks for its shape, or leads to where scores are filled by it."""
    above = source.parent(node)
    if isinstance(above, ast.Attribute) and above.attr in _FACTS:
        return True
    inside: ast.AST = node
    for outside in source.ancestors(node):
        if method(outside) in ("masked_fill", "masked_fill_") and isinstance(outside, ast.Call):
            return outside.args[:1] == [inside]
        if isinstance(outside, ast.Call) and method(outside) not in (_CONVERTING | _COPYING | {"bool", "logical_not"}):
            return False
        if isinstance(outside, ast.stmt):
            target = outside.targets[0] if isinstance(outside, ast.Assign) else None
            reads = source.uses(target)[1:] if isinstance(target, ast.Name) else []
            return bool(reads) and hops < _MOST_HOPS and all(_only_reads(source, read, hops + 1) for read in reads)
        inside = outside
    return False


def _is_changed_outside(source: Source, owner: ast.ClassDef, name: str) -> bool:
    """Whether other code of the file may give an object of the class another mask. To crop one is no change."""
    written = written_elsewhere(source, owner, name)
    return any(not isinstance(one, ast.Attribute) or not _crops(source.parent(one), one) for one in written)


def _crops(statement: ast.AST | None, target: ast.Attribute) -> bool:
    """`block.mask = block.mask[:, :, :n, :n]`."""
    value = statement.value if isinstance(statement, ast.Assign) and statement.targets == [target] else None
    if not isinstance(value, ast.Subscript) or ast.unparse(value.value) != ast.unparse(target):
        return False
    whole = _Triangle(True, False, None, len(value.slice.elts) if isinstance(value.slice, ast.Tuple) else 1)
    return whole.axes >= 2 and _sliced(whole, value) == whole
