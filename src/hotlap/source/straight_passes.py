"""The pass of a training step, forward, loss and backward, where it is written as straight-line code: statements that
do the same in every step, so that they can stand in a function of their own and be recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import body_of, constant, method, own_nodes
from hotlap.source.device_values import READS, draws_on_the_host
from hotlap.source.edits import can_wrap
from hotlap.source.going_back import backwards, bare, goes_back_again
from hotlap.source.loops import Function, Loop
from hotlap.source.models import model_spellings, run_by
from hotlap.source.names import spelling
from hotlap.source.showing import LATE, can_come_first, can_wait, may_end, only_shows, shows_numbers
from hotlap.source.traffic import (
    NotStraight,
    Traffic,
    is_read_by_others,
    is_surely_set,
    names_in,
    set_anew,
    set_before,
    set_in,
)

if TYPE_CHECKING:
    from hotlap.source.module import Source

_CONTEXTS = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.amp.autocast_mode.autocast")
_CLEARING = ("zero_grad",)
# What Python decides or keeps, and what stops or hides a statement: a recording would not do it again.
_DECIDING = ast.Lambda | ast.NamedExpr
_SUSPENDING = ast.Await | ast.Yield | ast.YieldFrom
_CALLED = {"print", "input", "open", "next", "iter", "float", "int", "bool", "super", "eval", "exec", "locals", "vars"}
_TELLING = {*READS, "nonzero", "append", "extend", "update", "pop", "setdefault", "write", "log", "info", "debug"}
_TELLING |= {"step", "synchronize", "add_scalar", "save", "register_hook", "__setattr__"}
_ON_THE_HOST = ("numpy.random.", "random.", "time.")


@dataclass(frozen=True, eq=False)
class Pass:
    """`first` to `last` are whole statements of one block; the last one goes back."""

    first: ast.stmt
    last: ast.stmt
    inputs: tuple[str, ...]  # names it reads that each step sets anew,
    given: tuple[str, ...]  # and what is given for them: `fake.detach()` where it asks for nothing else of one
    results: tuple[str, ...]  # what it sets and others read afterwards: `loss`, `self.loss`
    number: int  # of the passes that a step has one after the other, from 0 on
    late: tuple[ast.stmt, ...]  # those of its statements that must come before `ahead_of` first
    ahead_of: ast.stmt | None


def straight_passes(source: Source) -> Iterator[Pass | tuple[ast.AST, NotStraight]]:
    """For each training loop its passes, or where it goes back and why that is none."""
    for loop in source.training_loops():
        place = loop if backwards(loop) else _step_function(source, loop)
        number = 0
        for call in backwards(place):
            try:
                yield _pass(source, place, call, number)
            except NotStraight as reason:
                yield call, reason
            else:
                number += 1


def _step_function(source: Source, loop: Loop) -> ast.AST:
    """The one function called in a loop that goes back for it; the loop itself where there is none, or several."""
    called = [source.definition(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)]
    found = list(dict.fromkeys(one for one in called if isinstance(one, Function) and backwards(one)))
    return found[0] if len(found) == 1 else loop


def _pass(source: Source, place: ast.AST, call: ast.Call, number: int) -> Pass:
    ending = source.parent(call)
    around = _around(source, ending, place) if isinstance(ending, ast.Expr) else None
    if not isinstance(ending, ast.Expr) or around is None:
        raise NotStraight("it depends on more than the loop whether a step goes back")
    if call.args or call.keywords:
        raise NotStraight("backward is told how to go")
    _is_plain_function(source, place)
    region, showing = _region(source, ending)
    between = _shown(source, region, [one for one in showing if one.lineno > region[0].lineno])
    region = [one for one in region if one not in between]
    late = [one for one in region if between and one.lineno > between[0].lineno]
    waits = [(one, [after for after in late if after.lineno > one.lineno]) for one in between]
    if not all(can_come_first(source, one) for one in late) or not all(can_wait([one], rest) for one, rest in waits):
        raise NotStraight(f"line {between[0].lineno} does something else than computing")
    if not all(can_wrap(source, one, one) for one in (*late, *between)) or not can_wrap(source, region[0], region[-1]):
        raise NotStraight("it shares a line with something else")
    traffic = Traffic(source, region, around)
    reads, stores = list(traffic.reads), list(traffic.stores)
    if name := next((one for one in stores if is_read_by_others(source, region, one)), ""):
        raise NotStraight(f"{name} is read by a function that is defined elsewhere")
    changing = set_anew(source, place)
    inputs = [name for name in reads if name in changing or name in stores]
    carried = set(reads) - set_before(source, around, region[0])
    results = tuple(_results(source, region, stores, carried))
    if goes_back_again(source, around, region, set(results)):
        raise NotStraight("another pass goes back through what it makes")
    given = [_given(source, region, name, name in traffic.surely_read) for name in inputs]
    if late and not shows_numbers(source, between, set(results).difference(bare(source, region))):
        raise NotStraight(f"line {between[0].lineno} does something else than computing")
    ahead_of = between[0] if late else None
    return Pass(region[0], region[-1], tuple(inputs), tuple(given), results, number, tuple(late), ahead_of)


def _shown(source: Source, region: list[ast.stmt], between: list[ast.stmt]) -> list[ast.stmt]:
    """Also what seems to compute, but is worked out of what is shown, or added to what the pass has not made."""
    stored = set[str]()
    for one in region:
        is_outside = isinstance(one, ast.AugAssign) and spelling(one.target) not in stored
        is_out_of_it = between and one.lineno > between[0].lineno and not can_wait(between, [one])
        if (is_outside or is_out_of_it) and only_shows(source, one):
            between = sorted([*between, one], key=lambda shown: shown.lineno)
        stored |= set_in(one)
    return between


def _given(source: Source, region: list[ast.stmt], name: str, is_surely_read: bool) -> str:
    """What is given for a name: itself, unless the pass asks for less of it, or may leave it alone."""
    if is_surely_read:
        return f"{name}.detach()" if _is_only_detached(source, region, name) else name
    if is_surely_set(source, name, region[0]):
        return name
    own = source.function_of(region[0])
    declared = [one for one in ast.walk(own or source.tree) if isinstance(one, ast.Global | ast.Nonlocal)]
    if any(name in one.names for one in declared) or source.mentions("NameError", "UnboundLocalError"):
        raise NotStraight(f"{name} may not be set where it begins")
    return f'locals().get("{name}")'


def _is_only_detached(source: Source, region: list[ast.stmt], name: str) -> bool:
    nodes = [node for statement in region for node in ast.walk(statement) if isinstance(node, ast.Name)]
    above = [source.parent(node) for node in nodes if node.id == name]
    return all(isinstance(one, ast.Attribute) and one.attr == "detach" for one in above)


def _around(source: Source, ending: ast.Expr, place: ast.AST) -> ast.AST | None:
    """The innermost loop that it stands in, or the step's function: it goes round as often as the code around it says.
    None where that is more than loops and `if`."""
    above, found = source.parent(ending), None
    while isinstance(above, ast.If | Loop) and above is not place:
        found = found or (above if isinstance(above, Loop) else None)
        above = source.parent(above)
    return (found or place) if above is place else None


def _is_plain_function(source: Source, place: ast.AST) -> None:
    holder = body_of(source, place) if isinstance(place, Loop) else place
    nodes = list(own_nodes(source, holder))
    if isinstance(holder, ast.AsyncFunctionDef) or any(isinstance(node, _SUSPENDING) for node in nodes):
        raise NotStraight("its function is a generator or asynchronous")
    called = {source.name_of(node.func) for node in nodes if isinstance(node, ast.Call)}
    if called & {"locals", "vars", "dir", "globals", "eval", "exec"}:
        raise NotStraight("variables are also reached in another way")


def _region(source: Source, ending: ast.Expr) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """From the first statement that clears gradients or calls a model to the one that goes back; and those between
    them that only show something."""
    block = source.block(ending)
    here = next(index for index, statement in enumerate(block) if statement is ending)
    region, showing, reason = [ending], list[ast.stmt](), NotStraight("nothing before it calls a model")
    for statement in reversed(block[:here]):
        if backwards(statement):  # which ends another pass
            break
        try:
            _is_plain(source, statement)
        except NotStraight as why:
            is_late = may_end(source, statement) and not all(isinstance(one, ast.Expr) for one in region)
            if is_late or not only_shows(source, statement):
                reason = why
                break
            showing.insert(0, statement)
        else:
            region.insert(0, statement)
    models = model_spellings(source)
    while region and not (_clears(source, region[0]) or _calls_model(region[0], models)):
        region = region[1:]
    if not any(_calls_model(statement, models) for statement in region):
        raise reason
    _is_plain(source, ending)
    return region, showing


def _clears(source: Source, statement: ast.stmt) -> bool:
    """`optimizer.zero_grad()`, or the call of a function that does nothing else."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if method(call) in _CLEARING:
        return True
    found = source.definition(call.func) if isinstance(call, ast.Call) and not (call.args or call.keywords) else None
    return isinstance(found, Function) and all(isinstance(one, ast.Expr) and _clears(source, one) for one in found.body)


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
    elif isinstance(statement, ast.If):
        _is_plain_test(source, statement.test)
        for inner in (*statement.body, *statement.orelse):
            _is_plain(source, inner)
    elif isinstance(statement, ast.For) and not statement.orelse:
        if not all(isinstance(one, ast.Name | ast.Tuple | ast.List | ast.Store) for one in ast.walk(statement.target)):
            raise NotStraight("something is set that other code may see")
        _is_plain_value(source, statement.iter)
        for inner in statement.body:
            _is_plain(source, inner)
    elif isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not all(_is_plain_target(one) for target in targets for one in _parts(target)):
            raise NotStraight("something is set that other code may see")
        _is_plain_value(source, statement.value)
    else:
        adds = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
        calls = isinstance(statement, ast.Expr) and (
            method(statement.value) == "backward" or _clears(source, statement)
        )
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


def _is_plain_test(source: Source, test: ast.expr) -> None:
    """What decides is looked at before each replay where it is a plain value; what a call says is not."""
    _is_plain_value(source, test)
    calls = [source.name_of(one.func) for one in ast.walk(test) if isinstance(one, ast.Call)]
    if any(name not in ("len", "isinstance", "hasattr") for name in calls):
        raise NotStraight(f"line {test.lineno} asks somebody what to do")


def _is_plain_value(source: Source, value: ast.expr) -> None:
    for node in ast.walk(value):
        is_open = isinstance(node, ast.Starred) and not isinstance(node.value, ast.Name | ast.Attribute)
        if isinstance(node, _DECIDING | _SUSPENDING) or is_open:
            raise NotStraight(f"line {value.lineno} is decided by Python")
        if isinstance(node, ast.comprehension) and node.is_async:
            raise NotStraight("its function is asynchronous")
        for test in [node.test] if isinstance(node, ast.IfExp) else getattr(node, "ifs", ()):
            _is_plain_test(source, test)
        if isinstance(node, ast.Call) and _wants_gradients(node):
            raise NotStraight(f"line {value.lineno} makes a tensor that gets a gradient")
        if isinstance(node, ast.Call) and _tells(source, node):
            raise NotStraight(f"line {value.lineno} waits for the device, draws on the host, or tells somebody")


def _wants_gradients(call: ast.Call) -> bool:
    asked = [constant(one.value) for one in call.keywords if one.arg == "requires_grad"]
    return method(call) in ("requires_grad_", "retain_grad") or any(one is not False for one in asked)


def _tells(source: Source, call: ast.Call) -> bool:
    name = source.name_of(call.func) or ""
    if name in ("float", "int", "bool") and all(isinstance(one, ast.Constant) for one in call.args):
        return False  # float("-inf")
    if method(call) == "log" and (name.startswith("torch.") or not call.args):
        return False  # a logarithm
    if name.startswith(_ON_THE_HOST) or name in LATE or draws_on_the_host(source, call):
        return True
    return name in _CALLED or (method(call) or name.rpartition(".")[2]) in _TELLING


def _results(source: Source, region: list[ast.stmt], stores: list[str], carried: set[str]) -> Iterator[str]:
    inside = {node for statement in region for node in ast.walk(statement)}
    for name in stores:
        if "." in name or name in carried:
            yield name
            continue
        node = next(one for statement in region for one in names_in(statement) if one.id == name)
        uses = [use for use in source.uses(node) if use not in inside]
        if any(not isinstance(use.ctx, ast.Store) or isinstance(source.parent(use), ast.AugAssign) for use in uses):
            yield name
