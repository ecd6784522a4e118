"""What goes into a row of statements and what they set, name by name."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import own_nodes
from hotlap.source.callers import parameters
from hotlap.source.loops import Function
from hotlap.source.models import model_spellings
from hotlap.source.names import Comprehension, spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_SETTING = ast.Assign | ast.AnnAssign | ast.AugAssign


class NotStraight(Exception):
    """Why a pass cannot stand in a function of its own."""


class Traffic:
    """What goes into a region and what it sets, name by name in the order of its text; `self.loss` is a name, too."""

    def __init__(self, source: Source, region: list[ast.stmt], place: ast.AST) -> None:
        """`place`: the loop or function in which the region is gone through again and again."""
        self._source, self._region, self._is_begun_anew = source, region, isinstance(place, Function)
        self.reads: dict[str, None] = {}  # before they are set in the region,
        self.surely_read: set[str] = set()  # and those of them that are read whatever Python decides
        self.stores: dict[str, None] = {}
        self._perhaps: dict[str, None] = {}  # what only loops set, which may go round no time
        self._later: set[str | None] = set()  # attributes read before they are set
        self._depth = 0  # of what is gone through now and then
        self._go_through(region)
        if carried := self._later & (self.stores.keys() | self._perhaps.keys()):
            raise NotStraight(f"{carried.pop()} goes from step to step")
        if name := next((one for one in self._perhaps if "." in one or self._is_read_outside(one)), ""):
            raise NotStraight(f"whether {name} is set is decided by Python")

    def _go_through(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.With):
                for item in statement.items:
                    self._note(item)
                self._go_through(statement.body)
            elif isinstance(statement, ast.If):
                self._note(statement.test)
                self._branch(statement)
            elif isinstance(statement, ast.For):
                self._note(statement.iter)
                self._round(statement)
            else:
                self._note(statement)

    def _branch(self, statement: ast.If) -> None:
        """What only one of the ways sets is its own."""
        before, perhaps, ways = self.stores, self._perhaps, list[dict[str, None]]()
        loose = dict(perhaps)
        self._depth += 1
        for way in (statement.body, statement.orelse):
            self.stores, self._perhaps = dict(before), dict(perhaps)
            self._go_through(way)
            ways.append(self.stores)
            loose |= self._perhaps
        self._depth -= 1
        both = ways[0].keys() & ways[1].keys() | self.reads.keys()  # what goes in is there, whatever comes
        self.stores = {name: None for name in (*ways[0], *ways[1]) if name in both}
        self._perhaps = {name: None for name in loose if name not in self.stores}
        inside, own = set(ast.walk(statement)), list(names_in(statement))
        for name in (ways[0].keys() ^ ways[1].keys()) - self.reads.keys():
            node = next((one for one in own if one.id == name), None)
            if node is None or any(use not in inside for use in self._source.uses(node)):
                raise NotStraight(f"whether {name} is set is decided by Python")

    def _round(self, statement: ast.For) -> None:
        before = dict(self.stores)
        self._depth += 1
        self._note(statement.target)
        self._go_through(statement.body)
        self._depth -= 1
        new = [name for name in self.stores if name not in before]
        self._perhaps |= {name: None for name in new if name not in self.reads}
        self.stores = before | {name: None for name in new if name in self.reads}

    def _is_read_outside(self, name: str) -> bool:
        """And not only in other loops over that name."""
        inside = {one for statement in self._region for one in ast.walk(statement)}
        node = next(one for statement in self._region for one in names_in(statement) if one.id == name)
        uses = set(self._source.uses(node)) - inside
        return any(isinstance(use.ctx, ast.Load) and not self._is_in_a_loop_of_its_own(use) for use in uses)

    def _is_in_a_loop_of_its_own(self, use: ast.Name) -> bool:
        around = set(self._source.ancestors(self._region[0]))
        loops = [one for one in self._source.ancestors(use) if isinstance(one, ast.For) and one not in around]
        return any(sets(one.target, use.id) for one in loops)

    def _note(self, part: ast.AST) -> None:
        nodes, always = sorted(names_in(part), key=_place), set(_unbranched(part))
        for node in nodes:
            changes = isinstance(part, ast.AugAssign) and node is part.target
            if changes and node.id not in self.stores:
                raise NotStraight(f"{node.id} is changed in place")
            if isinstance(node.ctx, ast.Load) and node.id in self._perhaps:
                if not self._is_begun_anew:  # it may be that of the step before
                    raise NotStraight(f"whether {node.id} is set is decided by Python")
                self._perhaps.pop(node.id)
                self.stores[node.id] = None  # or it would have raised here
            elif isinstance(node.ctx, ast.Load) and node.id not in self.stores:
                self.reads[node.id] = None
                self.surely_read |= {node.id} if node in always and not self._depth else set()
        self._later |= {spelling(node) for node in ast.walk(part) if _is_read_attribute(node)} - set(self.stores)
        attributes = [one for one in ast.walk(part) if isinstance(one, ast.Attribute)]
        for one in (*nodes, *attributes):
            name = spelling(one) if isinstance(one.ctx, ast.Store) else None
            if name is not None:
                self.stores[name] = None
                self._perhaps.pop(name, None)


def names_in(node: ast.AST, own: frozenset[str] = frozenset()) -> Iterator[ast.Name]:
    """Without those that a comprehension sets for itself."""
    if isinstance(node, ast.Name) and node.id not in own:
        yield node
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, Comprehension):
        first = node.generators[0]
        yield from names_in(first.iter, own)  # which is asked before there are any
        own = own.union(*(set_in(one.target) for one in node.generators))
        parts = [*(one for one in parts if one is not first), first.target, *first.ifs]
    for part in parts:
        yield from names_in(part, own)


def set_anew(source: Source, place: ast.AST) -> set[str]:
    """By each step; where a few of them work on the same, as in `for _ in range(3)`, by what these stand in as well."""
    above, more = source.parent(place), set[str]()
    while isinstance(above, ast.If | ast.With):
        above = source.parent(above)
    if _is_counted(source, place) and isinstance(above, ast.For):
        made = [one for one in own_nodes(source, above) if isinstance(one, ast.Assign)]
        more = set().union(*map(set_in, made), set() if _is_counted(source, above) else set_in(above.target))
    elif _is_counted(source, place) and isinstance(above, Function):
        more = set(parameters(above))
    return set_in(place) | (more - model_spellings(source))


def _is_counted(source: Source, loop: ast.AST) -> bool:
    return isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and source.name_of(loop.iter.func) == "range"


def set_before(source: Source, place: ast.AST, first: ast.stmt) -> set[str]:
    """The names that are surely set anew before the pass: they do not go from step to step."""
    block = source.block(first)
    before: list[ast.AST] = [one for one in block[: block.index(first)] if isinstance(one, ast.Assign)]
    before += [place.target] if isinstance(place, ast.For | ast.AsyncFor) else []
    own = set(parameters(place)) if isinstance(place, Function) else set()
    return own.union(*map(set_in, before))


def is_read_by_others(source: Source, region: list[ast.stmt], name: str) -> bool:
    """Whether a function that is defined elsewhere looks at a name that the region sets: while the region runs in a
    function of its own, it would see the value of the step before."""
    node = next((one for statement in region for one in names_in(statement) if one.id == name), None)
    own, uses = source.function_of(region[0]), source.uses(node) if node is not None else []
    return any(source.function_of(use) is not own or source.enclosing(use, ast.Lambda) is not None for use in uses)


def _unbranched(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    always = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.IfExp):
        always = [node.test]
    elif isinstance(node, ast.BoolOp):
        always = [node.values[0]]
    elif isinstance(node, Comprehension):
        always = [node.generators[0].iter]
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
