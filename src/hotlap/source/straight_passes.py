"""The pass of a training step, forward, loss and backward, where it is written as straight-line code: statements that
do the same in every step, so that they can stand in a function of their own and be recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import body_of, method, own_nodes
from hotlap.source.callers import parameters
from hotlap.source.device_values import READS
from hotlap.source.edits import can_wrap
from hotlap.source.loops import Function, Loop
from hotlap.source.models import model_spellings, run_by
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

_CONTEXTS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast_mode.autocast")
_CLEARING = ("zero_grad",)
# What Python decides or keeps, and what stops or hides a statement: a recording would not do it again.
_DECIDING = ast.IfExp | ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp | ast.NamedExpr
_SUSPENDING = ast.Await | ast.Yield | ast.YieldFrom
_CALLED = {"print", "input", "open", "next", "iter", "float", "int", "bool", "super", "eval", "exec", "locals", "vars"}
_TELLING = {*READS, "nonzero", "append", "extend", "update", "pop", "setdefault", "write", "log", "info", "debug"}
_TELLING |= {"step", "synchronize", "add_scalar", "save", "register_hook", "__setattr__"}


class NotStraight(Exception):
    """Why a pass cannot stand in a function of its own."""


@dataclass(frozen=True, eq=False)
class Pass:
    """`first` to `last` are whole statements of one block; the last one goes back."""

    first: ast.stmt
    last: ast.stmt
    inputs: tuple[str, ...]  # names it reads that each step sets anew
    results: tuple[str, ...]  # what it sets and others read afterwards: `loss`, `self.loss`


def straight_passes(source: Source) -> Iterator[Pass | tuple[ast.AST, NotStraight]]:
    """For each training loop its pass, or where it goes back and why that is none."""
    for loop in source.training_loops():
        backwards = _backwards(loop)
        place: ast.AST = loop
        if not backwards:
            place = _step_function(source, loop)
            backwards = _backwards(place)
        if backwards:
            try:
                yield _pass(source, place, backwards)
            except NotStraight as reason:
                yield backwards[0], reason


def _backwards(place: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(place) if isinstance(node, ast.Call) and method(node) == "backward"]


def _step_function(source: Source, loop: Loop) -> ast.AST:
    """The one function called in a loop that goes back for it; the loop itself where there is none, or several."""
    called = [source.definition(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)]
    found = list(dict.fromkeys(one for one in called if isinstance(one, Function) and _backwards(one)))
    return found[0] if len(found) == 1 else loop


def _pass(source: Source, place: ast.AST, backwards: list[ast.Call]) -> Pass:
    if len(backwards) > 1:
        raise NotStraight("a step goes back more than once")
    ending, call = source.parent(backwards[0]), backwards[0]
    if not isinstance(ending, ast.Expr) or source.parent(ending) is not place:
        raise NotStraight("it depends on more than the loop whether a step goes back")
    if call.args or call.keywords:
        raise NotStraight("backward is told how to go")
    _is_plain_function(source, place)
    region = _region(source, ending)
    if not can_wrap(source, region[0], region[-1]):
        raise NotStraight("it shares a line with something else")
    reads, stores = _traffic(region)
    changing = _set_in(place)
    inputs = [name for name in reads if name in changing or name in stores]
    carried = set(reads) - _set_before(source, place, region[0])
    return Pass(region[0], region[-1], tuple(inputs), tuple(_results(source, region, stores, carried)))


def _is_plain_function(source: Source, place: ast.AST) -> None:
    holder = body_of(source, place) if isinstance(place, Loop) else place
    nodes = list(own_nodes(source, holder))
    if isinstance(holder, ast.AsyncFunctionDef) or any(isinstance(node, _SUSPENDING) for node in nodes):
        raise NotStraight("its function is a generator or asynchronous")
    called = {source.name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    if called & {"locals", "eval", "exec", "torch.autograd.grad"} or source.mentions("create_graph", "retain_graph"):
        raise NotStraight("gradients or variables are also reached in another way")


def _region(source: Source, ending: ast.Expr) -> list[ast.stmt]:
    """From the first statement that clears gradients or calls a model to the one that goes back."""
    block = source.block(ending)
    here = next(index for index, statement in enumerate(block) if statement is ending)
    start, reason = here, NotStraight("nothing before it calls a model")
    while start > 0:
        try:
            _is_plain(source, block[start - 1])
        except NotStraight as why:
            reason = why
            break
        start -= 1
    models = model_spellings(source)
    region = block[start : here + 1]
    while region and not _begins(region[0], models):
        region = region[1:]
    if not any(_calls_model(statement, models) for statement in region):
        raise reason
    _is_plain(source, ending)
    return region


def _begins(statement: ast.stmt, models: frozenset[str]) -> bool:
    clears = isinstance(statement, ast.Expr) and method(statement.value) in _CLEARING
    return clears or _calls_model(statement, models)


def _calls_model(statement: ast.stmt, models: frozenset[str]) -> bool:
    return any(isinstance(node, ast.Call) and run_by(node, models) for node in ast.walk(statement))


def _is_plain(source: Source, statement: ast.stmt) -> None:
    if isinstance(statement, ast.With):
        for item in statement.items:
            call = item.context_expr
            name = source.name_of(call.func) if isinstance(call, ast.Call) else None
            if name not in _CONTEXTS or item.optional_vars is not None:
                raise NotStraight("a context other than autocast is entered")
            _is_plain_value(source, call)
        for inner in statement.body:
            _is_plain(source, inner)
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not all(_is_plain_target(one) for target in targets for one in _parts(target)):
            raise NotStraight("something is set that other code may see")
        _is_plain_value(source, statement.value)
    else:
        adds = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
        calls = isinstance(statement, ast.Expr) and method(statement.value) in (*_CLEARING, "backward")
        if not isinstance(statement, ast.AugAssign | ast.Expr) or not (adds or calls):
            raise NotStraight(f"line {statement.lineno} does something else than computing")
        _is_plain_value(source, statement.value)


def _parts(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _is_plain_target(target: ast.expr) -> bool:
    """`loss`, `self.loss`."""
    if isinstance(target, ast.Attribute):
        return isinstance(target.value, ast.Name) and target.value.id == "self"
    return isinstance(target, ast.Name)


def _is_plain_value(source: Source, value: ast.expr) -> None:
    for node in ast.walk(value):
        if isinstance(node, _DECIDING | _SUSPENDING | ast.Starred):
            raise NotStraight(f"line {value.lineno} is decided by Python")
        if isinstance(node, ast.Call) and _tells(source, node):
            raise NotStraight(f"line {value.lineno} waits for the device, or tells somebody")


def _tells(source: Source, call: ast.Call) -> bool:
    name = source.name_of(call.func) or ""
    if name in ("float", "int", "bool") and all(isinstance(one, ast.Constant) for one in call.args):
        return False  # float("-inf")
    if method(call) == "log" and (name.startswith("torch.") or not call.args):
        return False  # a logarithm
    return name in _CALLED or (method(call) or name.rpartition(".")[2]) in _TELLING


def _traffic(region: list[ast.stmt]) -> tuple[list[str], list[str]]:
    """Names read before they are set in the region, and what is set there, attributes of `self` among it."""
    reads: dict[str, None] = {}
    stores: dict[str, None] = {}
    later: set[str | None] = set()  # attributes read before they are set
    for statement in _flat(region):
        nodes = sorted((one for one in ast.walk(statement) if isinstance(one, ast.Name)), key=_place)
        for node in nodes:
            changes = isinstance(statement, ast.AugAssign) and node is statement.target
            if changes and node.id not in stores:
                raise NotStraight(f"{node.id} is changed in place")
            if isinstance(node.ctx, ast.Load) and node.id not in stores:
                reads[node.id] = None
        later |= {spelling(node) for node in ast.walk(statement) if _is_read_attribute(node)} - set(stores)
        for one in ast.walk(statement):
            name = spelling(one) if isinstance(getattr(one, "ctx", None), ast.Store) else None
            if name is not None:
                stores[name] = None
    if carried := later & stores.keys():
        raise NotStraight(f"{carried.pop()} goes from step to step")
    return list(reads), list(stores)


def _place(node: ast.Name) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_read_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)


def _flat(region: list[ast.stmt]) -> Iterator[ast.stmt | ast.withitem]:
    for statement in region:
        if isinstance(statement, ast.With):
            yield from statement.items
            yield from _flat(statement.body)
        else:
            yield statement


def _set_in(place: ast.AST) -> set[str]:
    """The names that are set anew each time a place is gone through."""
    names = {node.id for node in ast.walk(place) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return names | set(parameters(place)) if isinstance(place, Function) else names


def _set_before(source: Source, place: ast.AST, first: ast.stmt) -> set[str]:
    """The names that are surely set anew before the pass: they do not go from step to step."""
    block = source.block(first)
    before: list[ast.AST] = [one for one in block[: block.index(first)] if isinstance(one, ast.Assign)]
    before += [place.target] if isinstance(place, ast.For | ast.AsyncFor) else []
    own = set(parameters(place)) if isinstance(place, Function) else set()
    return own.union(*map(_set_in, before))


def _results(source: Source, region: list[ast.stmt], stores: list[str], carried: set[str]) -> Iterator[str]:
    inside = {node for statement in region for node in ast.walk(statement)}
    for name in stores:
        if "." in name or name in carried:
            yield name
            continue
        node = next(one for one in inside if isinstance(one, ast.Name) and one.id == name)
        if any(use not in inside and not isinstance(use.ctx, ast.Store) for use in source.uses(node)):
            yield name
