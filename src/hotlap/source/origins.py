"""Where a value was made, and in which loops code runs: through the names, parameters, attributes and functions of
one file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from hotlap.source.calls import Call
from hotlap.source.loops import Function, Loop
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_BARS = ("tqdm.tqdm", "tqdm.auto.tqdm", "tqdm.notebook.tqdm")
_MOST_HOPS = 8


class Origins:
    """Traces values back in one file. What comes from outside of it is never guessed."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def makers(self, node: ast.AST, qualified: str) -> list[Call] | None:
        """The calls of a function that surely made a value; None when it may also have been made elsewhere."""
        found = self._ends(node, qualified, frozenset())
        if found is None:
            return None
        made = list(dict.fromkeys(found))
        return [Call(one, qualified, self.source) for one in made] or None

    def loops_around(self, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> set[Loop]:
        """Every loop in which a node runs: around it, and around the calls of the functions it stands in."""
        found: set[Loop] = set()
        below = node
        for above in self.source.ancestors(node):
            is_head = isinstance(above, ast.For | ast.AsyncFor) and below is above.iter
            if isinstance(above, Loop) and not is_head:
                found.add(above)
            if isinstance(above, Function) and above not in seen:
                for call in self.calls_of(above):
                    found |= self.loops_around(call, seen | {above})
            below = above
        return found

    def calls_of(self, function: ast.AST) -> list[ast.Call]:
        """The calls of a function or method of this file; of a method also by its name alone, where no other has it."""
        return self._calls.get(function, [])

    def _ends(self, node: ast.AST, qualified: str, seen: frozenset[ast.AST]) -> list[ast.Call] | None:
        if isinstance(node, ast.Call) and self.source.name_of(node.func) == qualified:
            return [node]
        if isinstance(node, ast.Constant) and node.value is None:
            return []
        if node in seen or len(seen) > _MOST_HOPS:
            return None
        givers = self._givers(node)
        if givers is None:
            return None
        ends: list[ast.Call] = []
        for giver in givers:
            inside = self._ends(giver, qualified, seen | {node})
            if inside is None:
                return None
            ends += inside
        return ends

    def _givers(self, node: ast.AST) -> list[ast.expr] | None:
        """The expressions whose value a node may have; None when it may have another."""
        if isinstance(node, ast.Name):
            return self._named(node)
        if isinstance(node, ast.Attribute) and spelling(node.value) == "self":
            return self._kept(node)
        if isinstance(node, ast.IfExp):
            return [node.body, node.orelse]
        if isinstance(node, ast.Call):
            if is_called(self.source, node, "enumerate", "iter", *_BARS) and node.args:
                return node.args[:1]
            function = self.source.definition(node.func)
            return self._returned(function) if isinstance(function, Function) else None
        return None

    def _named(self, name: ast.Name) -> list[ast.expr] | None:
        found = self.source.names.lookup(name)
        if found is None:
            return None
        scope, bindings = found
        values = [binding.value for binding in bindings if binding.value is not None]
        if values and len(values) == len(bindings):
            return values
        if len(bindings) == 1 and isinstance(scope.node, Function) and name.id in _parameters(scope.node):
            return self._given(scope.node, name.id)
        stores = [use for use in self.source.uses(name) if isinstance(use.ctx, ast.Store)]
        return self._unpacked(stores[0]) if len(stores) == len(bindings) == 1 else None

    def _given(self, function: Function, parameter: str) -> list[ast.expr] | None:
        """What a parameter is given, by every call of its function; None when one cannot be read or there is none."""
        given: list[ast.expr] = []
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        is_method = isinstance(self.source.parent(function), ast.ClassDef) and names[:1] == ["self"]
        for call in self.calls_of(function):
            place = names.index(parameter) - is_method if parameter in names else len(call.args)
            by_name = [one.value for one in call.keywords if one.arg == parameter]
            reached = call.args[: place + 1]
            if any(isinstance(one, ast.Starred) for one in reached) or (not by_name and len(reached) <= place):
                return None
            given += by_name or reached[place:]
        return given or None

    def _kept(self, attribute: ast.Attribute) -> list[ast.expr] | None:
        """What `self.x` is set to anywhere in its class."""
        owner = self.source.enclosing(attribute, ast.ClassDef)
        values: list[ast.expr] = []
        for node in ast.walk(owner) if owner else ():
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and spelling(node) == (f"self.{attribute.attr}")
            ):
                holder = self.source.parent(node)
                if not isinstance(holder, ast.Assign | ast.AnnAssign) or holder.value is None:
                    return None
                values.append(holder.value)
        return values or None

    def _unpacked(self, store: ast.Name) -> list[ast.expr] | None:
        """`train, test = make()`: the part of what the function returns."""
        holder = self.source.parent(store)
        assign = self.source.parent(holder) if isinstance(holder, ast.Tuple) else None
        if not isinstance(holder, ast.Tuple) or not isinstance(assign, ast.Assign):
            return None
        returned = self._givers(assign.value) if isinstance(assign.value, ast.Call) else None
        place, parts = holder.elts.index(store), []
        for value in returned or ():
            if not isinstance(value, ast.Tuple) or len(value.elts) != len(holder.elts):
                return None
            parts.append(value.elts[place])
        return parts or None

    def _returned(self, function: Function) -> list[ast.expr] | None:
        nodes = [node for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
        own = [node for node in nodes if self.source.enclosing(node, (ast.FunctionDef, ast.Lambda)) is function]
        values = [node.value for node in own if isinstance(node, ast.Return) and node.value is not None]
        return values if values and len(values) == len(own) else None

    @cached_property
    def _calls(self) -> dict[ast.AST, list[ast.Call]]:
        found: dict[ast.AST, list[ast.Call]] = {}
        methods: dict[str, list[ast.AST]] = {}
        for owner in (node for node in ast.walk(self.source.tree) if isinstance(node, ast.ClassDef)):
            for method in (one for one in owner.body if isinstance(one, Function)):
                methods.setdefault(method.name, []).append(method)
        for call in self.source.names.call_nodes:
            for function in self._called(call, methods):
                found.setdefault(function, []).append(call)
        return found

    def _called(self, call: ast.Call, methods: dict[str, list[ast.AST]]) -> Iterator[ast.AST]:
        definition = self.source.definition(call.func)
        if isinstance(definition, ast.ClassDef):
            yield from (one for one in definition.body if isinstance(one, Function) and one.name == "__init__")
        elif definition is not None:
            yield definition
        elif isinstance(call.func, ast.Attribute) and self.source.name_of(call.func) is None:
            alike = methods.get(call.func.attr, [])
            yield from alike if len(alike) == 1 else ()


def is_called(source: Source, call: ast.Call, *names: str) -> bool:
    """Whether a call is one of the named functions. `from x import *` makes no builtin doubtful here."""
    name = source.name_of(call.func)
    if name is None and isinstance(call.func, ast.Name) and source.names.lookup(call.func) is None:
        name = call.func.id
    return name in names


def iterated(source: Source, loop: ast.For | ast.AsyncFor) -> tuple[ast.expr, ast.expr]:
    """What a loop really goes through, and the target for it: without `enumerate` and progress bars."""
    target, over = loop.target, loop.iter
    while isinstance(over, ast.Call) and is_called(source, over, "enumerate", *_BARS) and over.args:
        if is_called(source, over, "enumerate") and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        over = over.args[0]
    return target, over


def given_anywhere(source: Source, keyword: str) -> list[ast.expr]:
    """All that a file gives under a keyword: in calls, in dictionaries, and, as the key itself, in any other way."""
    found: list[ast.expr] = []
    for node in source.names.parents:
        if isinstance(node, ast.keyword) and node.arg == keyword:
            found.append(node.value)
        elif isinstance(node, ast.Constant) and node.value == keyword:
            holder = source.parent(node)
            places = holder.keys if isinstance(holder, ast.Dict) else []
            found.append(holder.values[places.index(node)] if node in places else node)  # type: ignore[union-attr]
    return found


def _parameters(function: Function) -> list[str]:
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
