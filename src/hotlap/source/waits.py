"""Where the host waits for the device on every trip through a training or evaluation loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from hotlap.source.bodies import method
from hotlap.source.device_values import READS, DeviceValues
from hotlap.source.gates import ALWAYS, asks_for_none
from hotlap.source.loops import Function, Loop
from hotlap.source.origins import is_called, iterated
from hotlap.source.transfers import uses_device

if TYPE_CHECKING:
    from hotlap.source.module import Source

Place = Function | Loop
_NUMBERS = ("float", "int", "bool", "math.isnan", "math.isinf", "math.isfinite")
_ORDERING = ("Stream", "ExternalStream", "CUDAGraph")


@lru_cache(maxsize=2)
def waits(source: Source) -> dict[ast.AST, tuple[str, bool]]:
    """The nodes at which it waits, in the order of the text: what each is called, and whether it is in a step (True) or
    in an evaluation."""
    found: dict[ast.AST, tuple[str, bool]] = {}
    if uses_device(source):
        for place in _evaluations(source):
            found |= {node: (what, False) for node, what in _waits(source, place, copies=False)}
        for place in _steps(source):
            found |= {node: (what, True) for node, what in _waits(source, place, copies=True)}
    return {node: found[node] for node in sorted(found, key=lambda one: source.lines.span(one))}


def ordered_by_hand(source: Source) -> bool:
    """Whether a file orders work on the device itself and so may count on a wait: for a copy to the host that nothing
    else waits for, for a pinned buffer that is filled again, for an event that must have happened."""
    if source.mentions(*_ORDERING) or any(source.method_calls("elapsed_time")):
        return True
    return any(_copies_by_hand(source, call) for call in source.names.call_nodes)


def _copies_by_hand(source: Source, call: ast.Call) -> bool:
    """`x.pin_memory().to(device)` pins anew each time; only a buffer with a name can be filled again."""
    given, name = {one.arg for one in call.keywords}, source.name_of(call.func) or ""
    if method(call) == "pin_memory":
        return not isinstance(source.parent(call), ast.Attribute)
    if method(call) == "copy_":
        return "non_blocking" in given or len(call.args) > 1
    makes_pinned = "pin_memory" in given and name.startswith("torch.") and name.count(".") == 1
    places = (*call.args, *(one.value for one in call.keywords))
    return makes_pinned or ("non_blocking" in given and any(_is_host(source, one) for one in places))


def _is_host(source: Source, node: ast.AST) -> bool:
    """`"cpu"` or `torch.device("cpu")`, also by name."""
    value = source.value_of(node)
    if isinstance(value, ast.Call) and source.name_of(value.func) == "torch.device" and value.args:
        value = value.args[0]
    return isinstance(value, ast.Constant) and value.value == "cpu"


def _steps(source: Source) -> Iterator[Place]:
    """The training loops, and the functions that run in every step of one, here or in another file."""
    yield from source.training_loops()
    for function in (node for node in source.names.parents if isinstance(node, Function)):
        used = {node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute)}
        if used & {*READS, "nonzero", "backward"} and _runs_every_step(source, function):
            yield function


def _runs_every_step(source: Source, function: Function, hops: int = 2) -> bool:
    for where, call in source.callers(function):
        above = next((one for one in where.ancestors(call) if isinstance(one, Loop | Function)), None)
        if not isinstance(above, Loop | Function):
            continue
        is_step = above in where.training_loops()
        if is_step or (hops and isinstance(above, Function) and _runs_every_step(where, above, hops - 1)):
            makes_gradients = is_step and any(map(_is_backward, ast.walk(function)))
            if makes_gradients or where.how_often(call, above) is ALWAYS:
                return True
    return False


def _is_backward(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "backward"


def _evaluations(source: Source) -> Iterator[Place]:
    """Loops over batches: `for i in range(n)` under no_grad is rather a text being generated word by word."""
    for loop in source.evaluation_loops():
        over = iterated(source, loop)[1] if isinstance(loop, ast.For | ast.AsyncFor) else None
        is_count = isinstance(over, ast.Call) and is_called(source, over, "range") and len(over.args) < 3
        if over is not None and not is_count:
            yield loop


def _waits(source: Source, place: Place, copies: bool) -> Iterator[tuple[ast.AST, str]]:
    """What makes the host wait on every trip through a place, with its name."""
    values = DeviceValues(source, place)
    named = {node: _wait(source, node, values, copies) for node in ast.walk(place)}
    found = {node: what for node, what in named.items() if what is not None}
    for node, what in found.items():
        if _is_reached(source, node, place, found):
            yield node, what


def _wait(source: Source, node: ast.AST, values: DeviceValues, copies: bool) -> str | None:
    if isinstance(node, ast.Call):
        name = source.name_of(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr in (*READS, "nonzero"):
            is_meant = copies or node.func.attr in ("item", "nonzero") or _is_verdict(node.func.value)
            is_bare = not node.args and not node.keywords
            return f".{node.func.attr}()" if is_meant and is_bare and values.is_derived(node.func.value) else None
        if name in _NUMBERS and len(node.args) == 1 and values.is_tensor(node.args[0]):
            return f"{name}(...)"
        if name == "print" and any(values.is_tensor(one) for given in node.args for one in _shown(given)):
            return "print(...)"
    if isinstance(node, ast.If | ast.While | ast.Assert):
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        tests = [one.operand if isinstance(one, ast.UnaryOp) and isinstance(one.op, ast.Not) else one for one in tests]
        if any(map(values.is_tensor, tests)):
            return "assert" if isinstance(node, ast.Assert) else "if" if isinstance(node, ast.If) else "while"
    return None


def _shown(argument: ast.expr) -> list[ast.expr]:
    """What `print` shows of an argument: itself, or the values inside an f-string."""
    if isinstance(argument, ast.JoinedStr):
        return [part.value for part in argument.values if isinstance(part, ast.FormattedValue)]
    return [argument]


def _is_verdict(node: ast.expr) -> bool:
    """`(a == b).all(1)`: as small as the batch is long, so that bringing it to the host frees nothing."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return isinstance(node, ast.Compare)


def _is_reached(source: Source, node: ast.AST, place: Place, waits: dict[ast.AST, str]) -> bool:
    """Whether a wait comes on every trip: under no condition, or whichever way the conditions around it go."""
    if source.how_often(node, place) is ALWAYS:
        return True
    fork = _fork(source, node)
    if not isinstance(fork, ast.If) or place not in source.ancestors(fork):
        return False
    inside = [one for one in waits if _fork(source, one) is fork]
    is_either = all(any(_is_below(source, one, branch) for one in inside) for branch in (fork.body, fork.orelse))
    return is_either and _is_reached(source, fork, place, waits)


def _fork(source: Source, node: ast.AST) -> ast.AST | None:
    """The nearest place above a node from which it may not be reached."""
    below = node
    for above in source.ancestors(node):
        if isinstance(above, ast.If | ast.IfExp) and below is not above.test and not asks_for_none(above.test):
            return above
        is_later = isinstance(above, ast.BoolOp) and below is not above.values[0]
        if is_later or isinstance(above, ast.ExceptHandler | ast.Match | Function | ast.Lambda | ast.ClassDef):
            return above
        below = above
    return None


def _is_below(source: Source, node: ast.AST, branch: list[ast.stmt]) -> bool:
    chain = {node, *source.ancestors(node)}
    return any(statement in chain for statement in branch)
