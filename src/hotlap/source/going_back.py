"""Whether gradients may flow back into a pass from elsewhere. What a recorded pass hands on has no gradient of its own,
so that a later pass which goes back through it would lose what it owes the first one. Where a file goes back in one
place only, nobody can; where it does in several, it must be plain what becomes of the results."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import constant, method, own_nodes
from hotlap.source.callers import parameters
from hotlap.source.device_values import READS
from hotlap.source.handed_on import SIZES, VIEWS, WORK
from hotlap.source.loops import Function
from hotlap.source.models import is_module, model_spellings
from hotlap.source.names import spelling
from hotlap.source.traffic import set_in

if TYPE_CHECKING:
    from hotlap.source.module import Source

_NEW = {f"torch.{name}" for name in ("empty", "zeros", "ones", "full", "eye", "arange", "rand", "randn", "randint")}
_KEEPING = {"append", "extend", "insert", "add"}
# What is asked of a result without going back through it later.
_LET_GO = {*READS, *SIZES, "detach", "data", "shape", "device", "dtype"} - {"cpu"}
_LATE = ("read_later", "read_now", "read_early")
_PLAIN = {"float", "int", "bool", "len", "print", "str", "repr", "format", "range"}
_LIBRARIES = ("torch.", "torchvision.", "numpy.", "math.", "tqdm.", "matplotlib.", "hotlap.")
_BACKWARD = ("torch.autograd.backward", "torch.autograd.grad")
_SETTING = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr
_PERHAPS_ITSELF = {"to", "cpu", "cuda", "float", "double", "half", "type", "contiguous"}
_DEPTH = 4


def backwards(place: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(place) if isinstance(node, ast.Call) and method(node) == "backward"]


def goes_back_again(source: Source, place: ast.AST, region: list[ast.stmt], results: set[str]) -> bool:
    """Whether something may go back through results of the region, which lies in a loop or a step's function."""
    inside = {one for statement in region for one in ast.walk(statement)}
    if not any(_is_backward(source, call) for call in source.names.call_nodes if call not in inside):
        return False
    results = results - set(bare(source, region))
    if any(_is_read_elsewhere(source, region, name) for name in results if "." in name):
        return True
    return _Flow(source, place, region, inside).reaches_another(results)


def _is_read_elsewhere(source: Source, region: list[ast.stmt], name: str) -> bool:
    """`self.fake`, by another function, of whatever object."""
    own, attribute = source.function_of(region[0]), name.rpartition(".")[2]
    found = [one for one in source.names.parents if isinstance(one, ast.Attribute) and one.attr == attribute]
    return any(isinstance(one.ctx, ast.Load) and source.function_of(one) is not own for one in found)


class _Flow:
    """What becomes of results, from the end of the region on, round its loop, and in the rest of its function."""

    def __init__(self, source: Source, place: ast.AST, region: list[ast.stmt], inside: set[ast.AST]) -> None:
        self._source, self._place, self._models = source, place, model_spellings(source)
        self._around = around = source.function_of(region[0]) or source.tree
        every = sorted(_statements(around), key=lambda one: one.lineno)
        own = [one for one in every if one not in inside]
        in_place = set(_statements(place))
        after = [one for one in own if one.lineno > region[-1].lineno]
        before = [one for one in own if one.lineno < region[0].lineno]
        self._round = [one for one in (*after, *before) if one in in_place]
        self._rest = [one for one in (*after, *before) if one not in in_place and one is not place]
        self._always = _blocks_around(source, place, region[0])

    def reaches_another(self, results: set[str]) -> bool:
        reached, ever = set(results), set(results)
        elsewhere: list[tuple[set[str], ast.stmt]] = []
        for number, statement in enumerate([*self._round, *self._rest]):
            if number == len(self._round):  # it may have been left anywhere
                reached, elsewhere = set(ever), []
            for names, within in elsewhere:
                reached |= names if not within.lineno <= statement.lineno <= (within.end_lineno or 0) else set()
            if self._is_doubtful(statement, reached):
                return True
            for names, value in self._settings(statement):
                if hands_on(value, reached):
                    reached |= names
                elif isinstance(statement, ast.Assign | ast.AnnAssign):  # something else goes by that name from here on
                    above = self._source.parent(statement)
                    if statement not in self._always or number >= len(self._round):
                        elsewhere += [(names & reached, above)] if isinstance(above, ast.stmt) else []
                        names = names if isinstance(above, ast.stmt) else set()  # as long as it is in there
                    reached -= names
            ever |= reached
        return False

    def _settings(self, statement: ast.stmt) -> Iterator[tuple[set[str], ast.expr]]:
        for node in _own(statement):
            if isinstance(node, _SETTING) and node.value is not None:
                yield set(_set_by(node)), node.value
            elif isinstance(node, ast.Call) and method(node) in _KEEPING and isinstance(node.func, ast.Attribute):
                yield from (({str(spelling(node.func.value))}, one) for one in node.args)
        if isinstance(statement, ast.For | ast.AsyncFor):
            yield set(_names(statement.target)), statement.iter
        if isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                if item.optional_vars is not None:
                    yield set(_names(item.optional_vars)), item.context_expr

    def _is_doubtful(self, statement: ast.stmt, reached: set[str]) -> bool:
        """Whether it goes back through what was reached, or gives it to somebody who might."""
        nodes = list(_own(statement))
        leaving = [one.value for one in nodes if isinstance(one, ast.Return | ast.Yield | ast.YieldFrom | ast.Await)]
        if (
            any(one is not None and hands_on(one, reached) for one in leaving)
            and not self._goes_to_one_who_only_looks()
        ):
            return True
        calls = [one for one in nodes if isinstance(one, ast.Call)]
        return any(hands_on(one, reached) and not self._is_harmless(one, reached) for one in calls)

    def _goes_to_one_who_only_looks(self) -> bool:
        """Whether all who call the function go back by it alone."""
        around = self._around
        found = self._source.callers(around) if isinstance(around, Function) else []
        callers = [(source, call) for source, call in found if _may_be_for(around, call)]  # not `optimizer.step()`
        for source, call in callers:
            beside = ast.walk(source.function_of(call) or source.tree)
            if any(isinstance(one, ast.Call) and one is not call and _goes_back(source, one) for one in beside):
                return False
        return bool(callers)

    def _is_harmless(self, call: ast.Call, reached: set[str]) -> bool:
        if _goes_back(self._source, call):
            return False
        given = [*call.args, *(one.value for one in call.keywords)]
        name = self._source.name_of(call.func) or ""
        if name in _PLAIN or name.startswith(_LIBRARIES) or not any(hands_on(one, reached) for one in given):
            return True  # a method of a result among them
        if method(call) in (WORK | VIEWS | _KEEPING) or spelling(call.func) in self._models:
            return True
        made = self._source.value_of(call.func)
        if isinstance(made, ast.Call):  # `criterion(...)`
            return (self._source.name_of(made.func) or "").startswith("torch.nn.") or is_module(self._source, made)
        return _is_plain_function(self._source, call)


def _may_be_for(function: ast.AST, call: ast.Call) -> bool:
    """By the number of what it is given."""
    assert isinstance(function, Function)
    named = function.args.args[1:] if isinstance(call.func, ast.Attribute) else function.args.args
    is_open = any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
    return is_open or len(call.args) + len(call.keywords) >= len(named) - len(function.args.defaults)


def hands_on(node: ast.AST, names: set[str]) -> bool:
    """Whether an expression has one of them in it, and does not let go of how that was made."""
    if isinstance(node, ast.Attribute) and node.attr in _LET_GO:
        return False
    if isinstance(node, ast.Lambda):
        return any(isinstance(one, ast.Name | ast.Attribute) and spelling(one) in names for one in ast.walk(node))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("float", "int", "len", *_LATE)
    ):
        return False
    is_text = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(constant(node.left), str)
    if is_text or isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and method(node) == "format"):
        return False
    if isinstance(node, ast.Name | ast.Attribute) and spelling(node) in names:
        return True
    return any(hands_on(one, names) for one in ast.iter_child_nodes(node))


def _is_plain_function(source: Source, call: ast.Call) -> bool:
    """A function of this file that keeps nothing, and calls no other of the project's."""
    found = source.definition(call.func)
    if not isinstance(found, Function):
        return False
    nodes = list(ast.walk(found))
    stores = [one for one in nodes if isinstance(one, ast.Attribute | ast.Subscript) and isinstance(one.ctx, ast.Store)]
    if stores or any(isinstance(one, ast.Global | ast.Nonlocal) for one in nodes):
        return False
    calls = [one for one in nodes if isinstance(one, ast.Call)]
    names = [(source.name_of(one.func) or "", method(one)) for one in calls]
    return all(name in _PLAIN or name.startswith(_LIBRARIES) or word in (WORK | _LET_GO) for name, word in names)


def bare(source: Source, region: list[ast.stmt]) -> Iterator[str]:
    """Names that a region sets to what surely has no gradient, and to nothing else: new tensors, sizes, and what is
    worked out without one."""
    settings = [node for statement in region for node in ast.walk(statement) if isinstance(node, _SETTING)]
    for statement in settings:
        value, names = statement.value, list(_set_by(statement))
        is_call = isinstance(value, ast.Call)
        is_bare = is_call and (source.name_of(value.func) in _NEW or method(value) in SIZES)
        if (is_bare or (is_call and _goes_without(source, value))) and sum(
            bool({*names} & {*_set_by(one)}) for one in settings
        ) == 1:
            yield from names


def _goes_without(source: Source, call: ast.Call) -> bool:
    """Whether a function gives back only what it has made without gradients, as one for hits does."""
    found = source.resolve(call.func)
    if found is None or not isinstance(found.node, ast.FunctionDef):
        return False
    nodes = list(own_nodes(found.source, found.node))
    leaving = [one for one in nodes if isinstance(one, ast.Return) and one.value is not None]
    drawn = (set_in(one.target) for one in nodes if isinstance(one, ast.For | ast.comprehension))
    given = set(parameters(found.node)).union(*drawn)
    values = [one.value for one in nodes if isinstance(one, ast.Return | _SETTING) and one.value is not None]
    values += [value for one in nodes if isinstance(one, ast.Call) and method(one) in _KEEPING for value in one.args]
    is_new = not any(_is_one_of(value, given) for value in values)
    return bool(leaving) and is_new and all(map(found.source.under_no_grad, leaving))


def _is_one_of(value: ast.expr, names: set[str]) -> bool:
    """Whether it may be one of them as it is, or have one in it."""
    if isinstance(value, ast.Tuple | ast.List):
        return any(_is_one_of(one, names) for one in value.elts)
    if isinstance(value, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        return _is_one_of(value.elt, names)
    while isinstance(value, ast.Call) and method(value) in _PERHAPS_ITSELF and isinstance(value.func, ast.Attribute):
        value = value.func.value
    is_made = isinstance(value, ast.Call | ast.BinOp | ast.UnaryOp | ast.Compare | ast.Constant | ast.Subscript)
    return not (is_made or (isinstance(value, ast.Name) and value.id not in names))


def _set_by(node: ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from _names(target)


def _names(target: ast.expr) -> Iterator[str]:
    """`loss`, `self.loss`, and `losses` in `losses[name] = loss`."""
    for one in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
        if isinstance(one, ast.Tuple | ast.List):
            yield from _names(one)
            continue
        yield str(spelling(one))
        while isinstance(one, ast.Subscript | ast.Attribute | ast.Starred):  # who has it hands it on
            one = one.value
            if spelling(one) not in (None, "self"):
                yield str(spelling(one))


def _blocks_around(source: Source, place: ast.AST, statement: ast.stmt) -> set[ast.stmt]:
    """Statements that are gone through whenever this one is."""
    found = set(source.block(statement))
    for above in source.ancestors(statement):
        if above is place:
            break
        found.update(source.block(above) if isinstance(above, ast.stmt) else ())
    return found


def _statements(place: ast.AST) -> Iterator[ast.stmt]:
    """Those that run with it: not what stands in functions and classes that are only defined there."""
    waiting = list(ast.iter_child_nodes(place))
    while waiting:
        node = waiting.pop()
        if isinstance(node, Function | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt):
            yield node
        waiting += ast.iter_child_nodes(node)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """What stands in a statement, without the statements in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)]


def _is_backward(source: Source, call: ast.Call) -> bool:
    return method(call) == "backward" or source.name_of(call.func) in _BACKWARD


def _goes_back(source: Source, call: ast.Call, depth: int = 0) -> bool:
    if _is_backward(source, call):
        return True
    made = source.value_of(call.func)
    if isinstance(made, ast.Lambda):
        return any(isinstance(one, ast.Call) and _is_backward(source, one) for one in ast.walk(made))
    found = source.definition(call.func) if depth < _DEPTH else None
    if not isinstance(found, Function):
        return False
    inner = [one for one in ast.walk(found) if isinstance(one, ast.Call)]
    return any(_goes_back(source, one, depth + 1) for one in inner)
