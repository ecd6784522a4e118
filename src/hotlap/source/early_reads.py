"""What a step does with the results of its pass after its update: numbers read from the loss and the outputs, to be
added up or shown. Such statements need nothing of backward and update, and so need not wait for them."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import constant, method, receiver
from hotlap.source.edits import can_wrap
from hotlap.source.handed_on import OF_PYTHON, READING, SIZES, VIEWS, WORK, handed_on
from hotlap.source.names import spelling
from hotlap.source.straight_passes import Pass
from hotlap.source.traffic import is_surely_set, sets

if TYPE_CHECKING:
    from hotlap.source.module import Source

_KEYWORDS = {"axis", "dim", "keepdim", "k", "unbiased"}
_ARITHMETIC = ast.Add | ast.Sub | ast.Mult | ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
_COMPREHENSION = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_SETTING = ast.Assign | ast.AnnAssign | ast.AugAssign
_COMPARING = ast.Eq | ast.NotEq | ast.Lt | ast.LtE | ast.Gt | ast.GtE


class _SomethingElse(Exception):
    """A statement does more than work with results, or may do so."""


@dataclass(frozen=True, eq=False)
class Readings:
    """Whole statements of one block, one after the other; at least one of them reads."""

    statements: tuple[ast.stmt, ...]
    names: tuple[str, ...]  # what they use that was there before: results, inputs and plain numbers


def readings(source: Source, found: Pass) -> Readings | None:
    """The first statements after a pass that do nothing but work with its results, if they read any."""
    if leans_on_waiting(source):
        return None
    run = _Run(source, found)
    for statement in after(source, found):
        if not run.goes_on_with(statement):
            if run.reads:
                break
            run = _Run(source, found)
            run.goes_on_with(statement)
    while run.reads:
        kept = run.needed()
        if kept == run.statements:
            is_alone = can_wrap(source, kept[0], kept[-1])
            return Readings(tuple(kept), tuple(run.names)) if is_alone else None
        run = _Run(source, found)
        all(map(run.goes_on_with, kept))  # up to the first that does not fit any more: they stay in a row
    return None


def after(source: Source, found: Pass) -> list[ast.stmt]:
    """What a step does after its pass."""
    block = source.block(found.last)
    return block[block.index(found.last) + 1 :]


def leans_on_waiting(source: Source) -> bool:
    """Whether a file has work whose end nobody waits for but a read: times between events, and copies to the host that
    are not waited for."""
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return source.mentions("elapsed_time") or (source.mentions("non_blocking") and any(map(_goes_to_host, calls)))


def _goes_to_host(call: ast.Call) -> bool:
    flags = [one.value for one in call.keywords if one.arg == "non_blocking"]
    if not flags or constant(flags[0]) is False:
        return False
    places = [*call.args[:1], *(one.value for one in call.keywords if one.arg == "device")]
    places += [one.args[0] for one in places if isinstance(one, ast.Call) and one.args]  # of `torch.device("cpu")`
    return method(call) in ("copy_", "cpu") or any(str(constant(one)).startswith("cpu") for one in places)


def _handed_on_before(source: Source, found: Pass, statement: ast.stmt) -> set[str]:
    """Results and inputs of a pass that somebody else has got hold of by then. `dist.all_reduce(loss)` and what is done
    to `loss.data` leave no trace in the tensor itself."""
    rest, names = after(source, found), {*found.results, *found.inputs}
    return set().union(*(handed_on(source, one, names) for one in rest[: rest.index(statement)]))


class _Run:
    """Statements in a row, as far as they have been looked at."""

    def __init__(self, source: Source, found: Pass) -> None:
        self._source, self._pass = source, found
        self.statements: list[ast.stmt] = []
        self._working: set[ast.stmt] = set()  # those with more than numbers in them,
        self._reading: set[ast.stmt] = set()  # and those that read
        self._is_reading = self._is_working = False
        self.names: dict[str, None] = {}
        self._tensors = {*found.results, *found.inputs}
        self._set: set[str] = set()  # names that it sets, to whatever
        self._handed_on: set[str] = set()  # names of tensors that others could change before it

    def goes_on_with(self, statement: ast.stmt) -> bool:
        if not self.statements:
            self._handed_on = _handed_on_before(self._source, self._pass, statement)
        before = dict(self.names), set(self._tensors), set(self._set)
        self._is_reading = self._is_working = False
        try:
            self._take(statement)
        except _SomethingElse:
            self.names, self._tensors, self._set = before
            return False
        self.statements.append(statement)
        self._working |= {statement} if self._is_working else set()
        self._reading |= {statement} if self._is_reading else set()
        return True

    @property
    def reads(self) -> bool:
        return bool(self._reading)

    def needed(self) -> list[ast.stmt]:
        """Its statements, up to the first that makes a tensor which is used elsewhere, where nobody would wait for it;
        from the first that works with a tensor to the last that reads one."""
        inside = {node for statement in self.statements for node in ast.walk(statement)}
        kept = list(itertools.takewhile(lambda one: not self._hands_on(one, inside), self.statements))
        kept = list(itertools.dropwhile(lambda one: one not in self._working, kept))
        while kept and kept[-1] not in self._reading:
            kept.pop()
        return kept

    def _hands_on(self, statement: ast.stmt, inside: set[ast.AST]) -> bool:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        made = [one for one in names if isinstance(one.ctx, ast.Store) and one.id in self._tensors]
        uses = (use for target in made for use in self._source.uses(target))
        return any(use not in inside and self._is_read(use) for use in uses)

    def _is_read(self, use: ast.Name) -> bool:
        return isinstance(use.ctx, ast.Load) or isinstance(self._source.parent(use), ast.AugAssign)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            names = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
            for one, is_tensor in zip(names, self._assigned(statement.value, len(names)), strict=True):
                self._set_to(one, is_tensor)
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, _ARITHMETIC):
            target, value = statement.target, statement.value
            if not isinstance(target, ast.Name) or self._is_tensor(target) or self._is_tensor(value):
                raise _SomethingElse
        elif isinstance(statement, ast.Return) and statement.value is not None:
            value = statement.value
            if any(map(self._is_tensor, value.elts if isinstance(value, ast.Tuple) else [value])):
                raise _SomethingElse
        else:
            raise _SomethingElse

    def _assigned(self, value: ast.expr, count: int) -> list[bool]:
        if isinstance(value, ast.Tuple) and len(value.elts) == count > 1:
            return [self._is_tensor(one) for one in value.elts]
        return [self._is_tensor(value)] * count

    def _set_to(self, target: ast.expr, is_tensor: bool) -> None:
        if not isinstance(target, ast.Name):
            raise _SomethingElse
        self._set.add(target.id)
        if is_tensor:
            self._tensors.add(target.id)
        else:
            self._tensors.discard(target.id)

    def _is_tensor(self, node: ast.expr) -> bool:
        """Of an expression made of results, inputs and numbers alone: whether it is a tensor, or else plain."""
        name = spelling(node)
        if isinstance(node, ast.Constant):
            return False
        if isinstance(node, ast.Name) or name in self._tensors:
            if name not in self._set:
                self._comes_from_outside(node, str(name))
            self._is_working |= name in self._tensors
            return name in self._tensors
        if isinstance(node, ast.Attribute) and node.attr in ("shape", *VIEWS) and self._is_tensor(node.value):
            return node.attr != "shape"
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
            return self._any([node.left, node.right])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return self._is_tensor(node.operand)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], _COMPARING) and len(node.ops) == 1:
            return self._any([node.left, *node.comparators])
        if isinstance(node, ast.Subscript) and isinstance(constant(node.slice), int):
            return self._is_tensor(node.value)
        if isinstance(node, ast.Call) and all(one.arg in _KEYWORDS for one in node.keywords):
            return self._called(node)
        raise _SomethingElse

    def _comes_from_outside(self, node: ast.expr, name: str) -> None:
        """It is looked at before the first of the statements, which must not fail where its own statement would."""
        is_plain = isinstance(node, ast.Name) and name not in self._tensors
        if name in self._handed_on or (is_plain and self._may_be_tensor(node)):
            raise _SomethingElse
        if is_plain and self.statements and not is_surely_set(self._source, name, self.statements[0]):
            raise _SomethingElse
        self.names[name] = None

    def _may_be_tensor(self, node: ast.expr) -> bool:
        """Whether a name that seems to be a number is set to a result or an input somewhere."""
        assert isinstance(node, ast.Name)
        setting = map(self._source.statement, self._source.uses(node))
        names = {*self._pass.results, *self._pass.inputs}
        return any(
            isinstance(one, _SETTING) and sets(one, node.id) and handed_on(self._source, one, names) for one in setting
        )

    def _any(self, nodes: Iterable[ast.expr]) -> bool:
        kinds = [self._is_tensor(node) for node in nodes]  # of each of them, since each is looked at
        return any(kinds)

    def _called(self, call: ast.Call) -> bool:
        name, given = self._source.name_of(call.func) or "", [*call.args, *(one.value for one in call.keywords)]
        has_tensors = self._any(given)
        if name == "len" and not has_tensors:  # of a loader, which is no number
            raise _SomethingElse
        if name in OF_PYTHON:
            self._is_reading |= has_tensors and name != "len"
            return False
        if name.startswith("torch."):
            if name.removeprefix("torch.") not in WORK or not has_tensors:
                raise _SomethingElse
            return True
        word = method(call)
        if word is None or not self._is_tensor(receiver(call)):
            raise _SomethingElse
        self._is_reading |= word in READING
        if word in READING or word in SIZES:
            return False
        if word in WORK:
            return True
        raise _SomethingElse
