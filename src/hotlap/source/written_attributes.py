"""Where a file sets or writes to an attribute of a class's objects from outside the class: as far as the file tells."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.source.bodies import constant, method
from hotlap.source.module import Source
from hotlap.source.names import spelling

_MOST_HOPS = 12
_SETTING = {"setattr": 1, "delattr": 1, "register_buffer": 0, "register_parameter": 0, "register_module": 0}
_SETTING |= {"add_module": 0}  # each with the place of the name
_STORES = ("_buffers", "_modules", "_parameters", "__dict__")


def may_be_kin(source: Source, one: ast.ClassDef, owner: ast.ClassDef) -> bool:
    """Whether an object may be of both classes: one is made of the other, or of something that is not seen."""
    is_seen = all(isinstance(source.definition(base), ast.ClassDef) or source.name_of(base) for base in one.bases)
    return one is owner or not is_seen or _inherits(source, one, owner) or _inherits(source, owner, one)


def written_elsewhere(source: Source, owner: ast.ClassDef, name: str) -> Iterator[ast.AST]:
    """The attributes, calls and items by which other code may set, write to or hook what objects keep by that name."""
    for node in source.names.parents:
        if isinstance(node, ast.Attribute) and node.attr == name:
            around = source.enclosing(node, ast.ClassDef)
            is_own = spelling(node) == f"self.{name}" and around is not None
            is_other = is_own and around is not None and (around is owner or not may_be_kin(source, around, owner))
            if not is_other and _is_written(source, node):
                yield node
        elif isinstance(node, ast.Call) and _sets(source, node, name):
            around = source.enclosing(node, ast.ClassDef)
            is_own = around is not None and (spelling(node.func) or "").startswith("self.")
            if not is_own or around is None or (around is not owner and may_be_kin(source, around, owner)):
                yield node
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and constant(node.slice) == name:
            is_store = isinstance(node.value, ast.Attribute) and node.value.attr in _STORES
            if is_store or method(source.value_of(node.value)) == "state_dict":
                yield node


def _is_written(source: Source, node: ast.Attribute) -> bool:
    """Set, or written to at once: `x.name = `, `x.name[0] = `, `x.name.data = `, `x.name.fill_()`, `out=x.name`."""
    above = source.parent(node)
    if not isinstance(node.ctx, ast.Load) or (isinstance(above, ast.keyword) and above.arg == "out"):
        return True
    if not isinstance(above, ast.Attribute | ast.Subscript) or above.value is not node:
        return False
    if isinstance(above, ast.Attribute) and method(source.parent(above)) == above.attr:
        return above.attr.startswith("register_") or (above.attr.endswith("_") and not above.attr.endswith("__"))
    return not isinstance(above.ctx, ast.Load)


def _sets(source: Source, call: ast.Call, name: str) -> bool:
    place = _SETTING.get((spelling(call.func) or method(call) or "").rpartition(".")[2])
    return place is not None and name in [constant(one) for one in call.args[place : place + 1]]


def _inherits(source: Source, one: ast.ClassDef, owner: ast.ClassDef, hops: int = 0) -> bool:
    bases = [source.definition(base) for base in one.bases] if hops < _MOST_HOPS else []
    above = [base for base in bases if isinstance(base, ast.ClassDef) and base is not one]
    return owner in above or any(_inherits(source, base, owner, hops + 1) for base in above)
