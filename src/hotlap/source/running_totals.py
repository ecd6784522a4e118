"""Numbers that a loop adds up from values on the device and shows later: `total += loss.item()` and its relatives.

Such a number may stay unread until a statement uses it. That is proven here from source, or refused with the reason:
nobody but its own function sees it, it is only ever set to a number or added to, and no step needs its value."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hotlap.source.assignments import pairs, target_of
from hotlap.source.bodies import method
from hotlap.source.callers import last_name, parameters
from hotlap.source.gates import ALWAYS, SOMETIMES
from hotlap.source.loops import Function, Loop
from hotlap.source.waits import ordered_by_hand

if TYPE_CHECKING:
    from hotlap.source.module import Source
    from hotlap.source.names import Scope

# These see a function's variables from outside of its text.
_LOOKING_IN = ("_getframe", "currentframe", "f_locals", "breakpoint", "set_trace", "settrace")
_BY_NAME = {"locals", "eval", "exec", "vars"}
_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div
_ENDING = ("detach", "argmax", "argmin", "eq", "ne", "lt", "le", "gt", "ge")  # these end a gradient
_SHOWING = ("print", "set_postfix", "set_description", "write", "log", "info", "debug", "format", "add_scalar")
_COMPILING = ("torch.compile", "torch.jit", "torch._dynamo", "numba")


class Refused(Exception):
    """Why a number has to be read in every step."""


@dataclass(frozen=True)
class Total:
    """A local number that may be read late."""

    name: str
    reads: tuple[ast.Call, ...]  # in what is added: `.item()`, `float(...)`, `int(...)`
    shown: tuple[ast.stmt, ...]  # the statements before which it has to be read


def running_total(source: Source, read: ast.AST, is_read: Callable[[ast.AST], bool]) -> Total:
    """The number that what is read from the device is added to; raises `Refused`. `is_read` tells which calls of
    `float` and `int` read a device's value."""
    target = _added_to(source, read)
    return _Proof(source, target, is_read).total()


def _added_to(source: Source, read: ast.AST) -> ast.Name:
    """`total` of `total += 2 * x.item()`, and of `total = 0.9 * total + x.item()`."""
    value = read
    while isinstance(above := source.parent(value), ast.BinOp | ast.UnaryOp):
        value = above
    target = target_of(source, value)
    if isinstance(target, ast.Attribute | ast.Subscript):
        raise Refused("kept in an object, which other code may read")
    if isinstance(target, ast.Name):
        adds = isinstance(source.parent(target), ast.AugAssign)
        own = [node for node in ast.walk(value) if isinstance(node, ast.Name) and node.id == target.id]
        if adds or own:
            return target
        raise Refused("used again in the same step")
    call = next((one for one in source.ancestors(value) if isinstance(one, ast.Call | ast.stmt)), None)
    if isinstance(call, ast.Return):
        raise Refused("returned to the caller")
    is_shown = isinstance(call, ast.Call) and (last_name(call.func) or "").startswith(_SHOWING)
    raise Refused("shown in every step" if is_shown else "handed on in every step")


@dataclass
class _Parts:
    """What an added expression is made of, as far as it is arithmetic that can be put off."""

    reads: list[ast.Call]
    own: list[ast.Name]
    others: list[ast.expr]


class _Proof:
    """One variable of one function, and all that is done with it."""

    def __init__(self, source: Source, target: ast.Name, is_read: Callable[[ast.AST], bool]) -> None:
        self.source, self.name, self.is_read = source, target.id, is_read
        found = source.names.lookup(target)
        if found is None or found[0] is not source.names.scope_of[target] or not isinstance(found[0].node, Function):
            raise Refused("not its function's own, so that other code may read it")
        self.scope: Scope = found[0]
        self.function: Function = found[0].node
        self.uses = source.uses(target)
        self.stores = [use for use in self.uses if isinstance(use.ctx, ast.Store)]
        self.starts: list[ast.stmt] = []  # where it is set to a plain number
        self.added: dict[ast.stmt, _Parts] = {}

    def total(self) -> Total:
        self._is_its_own_functions()
        if ordered_by_hand(self.source):
            raise Refused("work on the device is ordered by hand, perhaps by this wait")
        for store in self.stores:
            self._is_set_or_added_to(store)
        self._stays_a_number()
        own = {use for parts in self.added.values() for use in parts.own}
        loads = [use for use in self.uses if isinstance(use.ctx, ast.Load) and use not in own]
        shown = list(dict.fromkeys(self._shown_at(use) for use in loads))
        reads = [read for parts in self.added.values() for read in parts.reads]
        return Total(self.name, tuple(reads), tuple(one for one in shown if not self._is_read_before(one, shown)))

    def _is_its_own_functions(self) -> None:
        names, source = self.source.names, self.source
        if self.name in parameters(self.function):
            raise Refused("given by the caller")
        if any(names.scope_of[use] is not self.scope for use in self.uses):
            raise Refused("used by an inner function")
        if any(isinstance(use.ctx, ast.Del) for use in self.uses):
            raise Refused("deleted")
        if len(self.scope.bindings[self.name]) != len(self.stores):
            raise Refused("also set in another way")
        if any(map(self._sees_variables, ast.walk(self.function))) or source.mentions(*_LOOKING_IN):
            raise Refused("its function's variables are looked at by name")
        if is_compiled(source, self.function):
            raise Refused("its function is compiled")

    def _sees_variables(self, node: ast.AST) -> bool:
        """`locals()` and its kind, where they are Python's own; `vars(args)` is about another object."""
        if not isinstance(node, ast.Name) or node.id not in _BY_NAME or self.source.names.lookup(node) is not None:
            return False
        call = self.source.parent(node)
        return node.id != "vars" or not (isinstance(call, ast.Call) and call.func is node and call.args)

    def _is_set_or_added_to(self, store: ast.Name) -> None:
        statement = self.source.statement(store)
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, _ARITHMETIC):
            value: ast.expr | None = statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.target is store:
            value = statement.value
        elif isinstance(statement, ast.Assign):
            assigned = [pair for target in statement.targets for pair in pairs(target, statement.value)]
            value = next((given for target, given in assigned if target is store), None)
        else:
            value = None
        if value is None or statement in self.added or statement in self.starts:
            raise Refused("also set in another way")
        if not isinstance(statement, ast.AugAssign) and _is_number(value):
            self.starts.append(statement)
            return
        parts = _Parts([], [], [])
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Div):
            parts.others.append(value)
        else:
            self._take_apart(value, parts)
        is_shared = isinstance(statement, ast.Assign) and len(statement.targets) > 1  # `a = b = b + x.item()`
        if is_shared or not (isinstance(statement, ast.AugAssign) or parts.own):
            raise Refused("also set in another way")
        self.added[statement] = parts

    def _take_apart(self, node: ast.expr, parts: _Parts) -> None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
            self._take_apart(node.left, parts)
            self._take_apart(node.right, parts)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            self._take_apart(node.left, parts)
            parts.others.append(node.right)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            self._take_apart(node.operand, parts)
        elif isinstance(node, ast.Call) and self._reads(node):
            parts.reads.append(node)
        elif isinstance(node, ast.Name) and node.id == self.name:
            parts.own.append(node)
        else:
            parts.others.append(node)

    def _reads(self, call: ast.Call) -> bool:
        if method(call) == "item":
            return not call.args and not call.keywords
        is_conversion = self.source.name_of(call.func) in ("float", "int") and len(call.args) == 1
        return is_conversion and not call.keywords and self.is_read(call) and _is_without_gradient(call.args[0])

    def _stays_a_number(self) -> None:
        """What is no number is added to in place, once the number has become one: with a single addition that is as it
        was; several need operands that are surely numbers."""
        if not self.starts:
            raise Refused("not set to a number in its own function")
        if not self._loops:
            raise Refused("not added up in a loop of its own function")
        unsure = [one for parts in self.added.values() for one in parts.others if not self._is_surely_number(one)]
        if len(self.added) > 1 and unsure:
            raise Refused("perhaps no plain number")
        if any(self._waits(one) for parts in self.added.values() for one in parts.others):
            raise Refused("added together with what is needed at once")

    def _is_surely_number(self, node: ast.AST) -> bool:
        """A literal, a size, a length, also by name."""
        node = self.source.value_of(node)
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Attribute) and node.value.attr == "shape" and _is_number(node.slice)
        if isinstance(node, ast.Call) and method(node) is None:
            return self.source.name_of(node.func) in ("len", "int", "float")
        is_size = isinstance(node, ast.Call) and (method(node) == "numel" or (method(node) == "size" and node.args))
        return bool(is_size) or _is_number(node)

    def _waits(self, node: ast.AST) -> bool:
        return any(self.is_read(one) for one in ast.walk(node))

    @cached_property
    def _loops(self) -> list[Loop]:
        """The innermost loops in which it is added to."""
        around = [
            next((one for one in self.source.ancestors(statement) if isinstance(one, Loop | Function)), None)
            for statement, parts in self.added.items()
            if parts.reads
        ]
        return [one for one in around if isinstance(one, Loop)]

    def _shown_at(self, use: ast.Name) -> ast.stmt:
        """The statement before which the number has to be read for a use of it, where no step has to."""
        source, statement = self.source, self.source.statement(use)
        above = list(source.ancestors(use))
        if any(isinstance(one, ast.ExceptHandler) for one in above[: above.index(statement)]):
            raise Refused("decides what comes next")
        if isinstance(statement, ast.While):
            raise Refused("decides how often the loop goes round")
        while source.segment(statement).startswith("elif"):
            statement = source.statement(source.parent(statement) or statement)
        for loop in self._loops:
            if loop in source.ancestors(statement) and not self._leaves(statement, loop):
                often = source.how_often(statement, loop)
                if often is not SOMETIMES:
                    may = "" if often is ALWAYS else "perhaps "
                    is_test = isinstance(statement, ast.If | ast.Assert)
                    raise Refused(f"{may}{'needed' if is_test else 'shown'} in every step")
        if not self._is_set_before(statement):
            raise Refused("not surely set before it is shown")
        return statement

    def _leaves(self, statement: ast.stmt, loop: Loop) -> bool:
        """Whether the loop is over once a statement was reached: it stands in a block that ends in `break`."""
        below = statement
        while below is not loop and (block := self.source.block(below)) is not loop.body:
            goes_on = any(isinstance(node, ast.Continue) for one in block for node in ast.walk(one))
            around = self.source.enclosing(block[-1], (ast.For, ast.AsyncFor, ast.While))
            is_end = isinstance(block[-1], ast.Return) or (isinstance(block[-1], ast.Break) and around is loop)
            if is_end and not goes_on:
                return True
            below = self.source.enclosing(below, ast.stmt) or loop
        return False

    def _is_read_before(self, statement: ast.stmt, shown: list[ast.stmt]) -> bool:
        """Whether it is a plain number anyway: it was read for a statement above, and nothing was added since."""
        below: ast.stmt | None = statement
        while below is not None and below is not self.function:
            block = self.source.block(below)
            for earlier in reversed(block[: block.index(below)]):
                if self._adds(earlier):
                    return False
                if earlier in shown:
                    return True
            below = self.source.enclosing(below, ast.stmt)
            if below is None or self._adds(below):
                return False
        return False

    def _adds(self, statement: ast.stmt) -> bool:
        return any(node in self.added for node in ast.walk(statement) if isinstance(node, ast.stmt))

    def _is_set_before(self, statement: ast.stmt) -> bool:
        """Whether it was surely set when a statement is reached: earlier in its block, or in one around it."""
        below: ast.stmt | None = statement
        while below is not None and below is not self.function:
            block = self.source.block(below)
            if any(one in self.starts for one in block[: block.index(below)]):
                return True
            below = self.source.enclosing(below, ast.stmt)
        return False


def is_compiled(source: Source, function: Function | None) -> bool:
    """By a decorator."""
    given = function.decorator_list if function is not None else []
    decorators = [one.func if isinstance(one, ast.Call) else one for one in given]
    return any((source.name_of(one) or "").startswith(_COMPILING) for one in decorators)


def _is_number(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_without_gradient(node: ast.expr) -> bool:
    """`(a == b).sum()`: torch warns, with the line, when a number is made of what carries a gradient."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in _ENDING:
        node = node.func.value
    return isinstance(node, ast.Compare) or method(node) in _ENDING
