"""What goes into a row of statements and what they set, name by name."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.callers import parameters
from hotlap.source.loops import Function
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_SETTING = ast.Assign | ast.AnnAssign | ast.AugAssign


class NotStraight(Exception):
    """Why a pass cannot stand in a function of its own."""


class Traffic:
    """What goes into a region and what it sets, name by name in the order of its text; `self.loss` is a name, too."""

    def __init__(self, source: Source, region: list[ast.stmt]) -> None:
        self._source = source
        self.reads: dict[str, None] = {}  # before they are set in the region
        self.stores: dict[str, None] = {}
        self._later: set[str | None] = set()  # attributes read before they are set
        self._go_through(region)
        if carried := self._later & self.stores.keys():
            raise NotStraight(f"{carried.pop()} goes from step to step")

    def _go_through(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.With):
                for item in statement.items:
                    self._note(item)
                self._go_through(statement.body)
            elif isinstance(statement, ast.If):
                self._note(statement.test)
                self._branch(statement)
            else:
                self._note(statement)

    def _branch(self, statement: ast.If) -> None:
        """What only one of the ways sets is its own."""
        before, ways = self.stores, list[dict[str, None]]()
        for way in (statement.body, statement.orelse):
            self.stores = dict(before)
            self._go_through(way)
            ways.append(self.stores)
        self.stores = {name: None for name in ways[0] if name in ways[1]}
        inside = set(ast.walk(statement))
        for name in ways[0].keys() ^ ways[1].keys():
            node = next((one for one in inside if isinstance(one, ast.Name) and one.id == name), None)
            if node is None or any(use not in inside for use in self._source.uses(node)):
                raise NotStraight(f"whether {name} is set is decided by Python")

    def _note(self, part: ast.AST) -> None:
        nodes = sorted((one for one in ast.walk(part) if isinstance(one, ast.Name)), key=_place)
        for node in nodes:
            changes = isinstance(part, ast.AugAssign) and node is part.target
            if changes and node.id not in self.stores:
                raise NotStraight(f"{node.id} is changed in place")
            if isinstance(node.ctx, ast.Load) and node.id not in self.stores:
                self.reads[node.id] = None
        self._later |= {spelling(node) for node in ast.walk(part) if _is_read_attribute(node)} - set(self.stores)
        for one in ast.walk(part):
            name = spelling(one) if isinstance(getattr(one, "ctx", None), ast.Store) else None
            if name is not None:
                self.stores[name] = None


def is_read_in_a_branch(region: list[ast.stmt], name: str) -> bool:
    """And nowhere else, where it would have to be set."""
    always = [node for statement in region for node in _unbranched(statement)]
    return not any(isinstance(node, ast.Name) and node.id == name for node in always)


def is_read_by_others(source: Source, region: list[ast.stmt], name: str) -> bool:
    """Whether a function that is defined elsewhere looks at a name that the region sets: while the region runs in a
    function of its own, it would see the value of the step before."""
    nodes = (node for statement in region for node in ast.walk(statement) if isinstance(node, ast.Name))
    node = next((one for one in nodes if one.id == name), None)
    own, uses = source.function_of(region[0]), source.uses(node) if node is not None else []
    return any(source.function_of(use) is not own or source.enclosing(use, ast.Lambda) is not None for use in uses)


def _unbranched(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if isinstance(node, ast.If | ast.IfExp):
        always = [node.test]
    else:
        always = node.values[:1] if isinstance(node, ast.BoolOp) else list(ast.iter_child_nodes(node))  # type: ignore[assignment]
    for one in always:
        yield from _unbranched(one)


def is_surely_set(source: Source, name: str, statement: ast.stmt) -> bool:
    """Whether a name has a value when a statement is reached: set before it in a block that it stands in."""
    inner: ast.AST = statement
    for above in source.ancestors(statement):
        settings = [one for one in _earlier(source, inner) if isinstance(one, _SETTING) and one.value is not None]
        if any(sets(one, name) for one in settings):
            return True
        if isinstance(above, ast.For) and sets(above.target, name):
            return True
        if isinstance(above, Function):
            return name in parameters(above)
        inner = above
    return False


def _earlier(source: Source, node: ast.AST) -> list[ast.stmt]:
    block = source.block(node) if isinstance(node, ast.stmt) else []
    return list(itertools.takewhile(lambda one: one is not node, block))


def sets(node: ast.AST, name: str) -> bool:
    return name in set_in(node)


def set_in(place: ast.AST) -> set[str]:
    """The names that are set anew each time a place is gone through."""
    names = {node.id for node in ast.walk(place) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | set(parameters(place)) if isinstance(place, Function) else names


def _place(node: ast.Name) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_read_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
