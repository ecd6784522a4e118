"""Who calls a function, and what each call gives to a parameter; starting a process or thread on it is a call too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.loops import Function

if TYPE_CHECKING:
    from hotlap.source.module import Source

_STARTED = ("Process", "Thread")  # Process(target=f, args=(...))


def called(call: ast.Call) -> ast.expr:
    """What a call runs: its function, or the one that a process or thread is started on."""
    name = last_name(call.func)
    if name in _STARTED:
        return next((one.value for one in call.keywords if one.arg == "target"), call.func)
    if name == "spawn":
        named = [one.value for one in call.keywords if one.arg == "fn"]
        return next(iter([*call.args[:1], *named]), call.func)
    return call.func


def last_name(node: ast.AST) -> str | None:
    """`train` of `engine.train`: what a call is looked for by before anything dearer is asked."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def callers(source: Source, function: Function) -> list[tuple[Source, ast.Call]]:
    """The calls of a function or method in its own file, then in the files beside it and one folder above. A class is
    the caller of its `__init__`; a method is also found by its name alone, where no other of the file has it."""
    found = [(source, call) for call in source.calls_by_function.get(function, ())]
    owner = source.parent(function)
    is_method = isinstance(owner, ast.ClassDef) and source.parent(owner) is source.tree
    if source.project is not None and (owner is source.tree or is_method):
        wanted = owner if isinstance(owner, ast.ClassDef) and function.name == "__init__" else function
        found += source.project.callers(source, wanted)
    return found


def calls_by_function(source: Source) -> dict[ast.AST, list[ast.Call]]:
    """The calls of each function of a file, as far as they stand in that file."""
    found: dict[ast.AST, list[ast.Call]] = {}
    methods: dict[str, list[ast.AST]] = {}
    for owner in (node for node in source.names.parents if isinstance(node, ast.ClassDef)):
        for method in (one for one in owner.body if isinstance(one, Function)):
            methods.setdefault(method.name, []).append(method)
    for call in source.names.call_nodes:
        for function in _run_by(source, call, methods):
            found.setdefault(function, []).append(call)
    return found


def given_to(source: Source, function: Function, parameter: str) -> list[tuple[Source, ast.expr]] | None:
    """What a parameter is given, by every call of its function; None when one cannot be read or there is none."""
    found: list[tuple[Source, ast.expr]] = []
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    is_bound = isinstance(source.parent(function), ast.ClassDef) and names[:1] == ["self"]
    for where, call in source.callers(function):
        by_place, by_name = _arguments(call)
        place = names.index(parameter) - is_bound if parameter in names else len(by_place)
        if place < 0:  # `self` itself
            return None
        reached = by_place[: place + 1]
        given = by_name.get(parameter) or (reached[place] if len(reached) > place else None)
        if given is None or any(isinstance(one, ast.Starred) for one in reached):
            return None
        found.append((where, given))
    return found or None


def parameters(function: Function) -> list[str]:
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def _arguments(call: ast.Call) -> tuple[list[ast.expr | None], dict[str | None, ast.expr]]:
    """What the function of a call is given by place and by name; None for what only the starter knows."""
    by_name = {one.arg: one.value for one in call.keywords}
    if called(call) is call.func:
        return list(call.args), by_name
    inside = by_name.get("args") or (call.args[1] if last_name(call.func) == "spawn" and len(call.args) > 1 else None)
    parts: list[ast.expr | None] = list(inside.elts) if isinstance(inside, ast.Tuple | ast.List) else []
    return ([None, *parts] if last_name(call.func) == "spawn" else parts), {}  # spawn gives its number first


def _run_by(source: Source, call: ast.Call, methods: dict[str, list[ast.AST]]) -> Iterator[ast.AST]:
    function = called(call)
    definition = source.definition(function)
    if isinstance(definition, ast.ClassDef):
        yield from (one for one in definition.body if isinstance(one, Function) and one.name == "__init__")
    elif definition is not None:
        yield definition
    elif isinstance(function, ast.Attribute) and source.name_of(function) is None:
        alike = methods.get(function.attr, [])
        yield from alike if len(alike) == 1 else ()
