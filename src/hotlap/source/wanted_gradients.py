"""Gradients that somebody wants of an evaluation after all: a caller who goes back through what it gives, or a network
that asks for gradients in the middle of its own forward pass, as force fields do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.source.bodies import Body, body_of, method, own_calls, own_nodes, receiver
from hotlap.source.callers import last_name
from hotlap.source.loops import Function
from hotlap.source.models import is_module_class
from hotlap.source.module import Source
from hotlap.source.names import spelling

_ASKING = {"grad", "backward", "enable_grad", "vjp", "jvp", "jacrev", "jacfwd", "jacobian", "hessian", "requires_grad_"}
_BACKWARD = ("torch.autograd.backward", "torch.autograd.grad")
_NUMBERS = {"item", "tolist", "numpy", "argmax", "detach"}  # nobody goes back through these
_KEEPING = {"append", "extend"}
_HOPS = 2
_SETTING = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr


def networks_ask(source: Source) -> bool:
    """Whether a network of this file, or of one of the project that it imports, asks for gradients by itself."""
    project = source.project
    paths = project.imported(source) if project is not None else ()
    others = [project.source(path) for path in paths] if project is not None else []
    return any(_asks(one) for one in (source, *others) if one is not None and one.mentions(*_ASKING))


def _asks(source: Source) -> bool:
    for call in source.names.call_nodes:
        owner = source.enclosing(call, ast.ClassDef)
        if last_name(call.func) not in _ASKING or owner is None or not is_module_class(source, owner):
            continue
        is_freezing = any(isinstance(one, ast.Constant) and one.value is False for one in call.args)
        if not is_freezing and not _is_update(source, call, owner):
            return True
    return False


def _is_update(source: Source, call: ast.Call, owner: ast.ClassDef) -> bool:
    """In a method that makes a whole step of its training: its forward passes are others."""
    inside = source.function_of(call)
    return inside in owner.body and any(method(one) in ("step", "zero_grad") for one in ast.walk(inside or owner))


def goes_back_later(source: Source, target: ast.AST) -> bool:
    """Whether somebody goes back through what leaves a function, or a statement."""
    if isinstance(target, Function):
        return _is_gone_back_through(source, target, _HOPS)
    nodes = [target, *own_nodes(source, target)]
    return _reaches_backward(source, body_of(source, target), set(_kept(nodes, None)), _HOPS)


def _is_gone_back_through(source: Source, function: Function, hops: int) -> bool:
    for where, call in source.callers(function):
        above = [call, *where.ancestors(call)]
        if any(isinstance(one, ast.Call) and _goes_back(where, one, above) for one in above):
            return True
        body = body_of(where, call)
        is_returned = any(isinstance(one, ast.Return) for one in above)
        if is_returned and hops and isinstance(body, Function) and _is_gone_back_through(where, body, hops - 1):
            return True
        if _reaches_backward(where, body, set(_kept([where.statement(call)], {call})), hops):
            return True
    return False


def _reaches_backward(source: Source, body: Body, names: set[str], hops: int) -> bool:
    nodes = list(own_nodes(source, body))
    size = -1
    while len(names) > size:
        size = len(names)
        names |= set(_kept(nodes, names))
    everywhere = source.names.call_nodes if any("." in name for name in names) else own_calls(source, body)
    if any(_goes_back(source, call, list(_reading(call, names))) for call in everywhere):
        return True
    returned = [one.value for one in nodes if isinstance(one, ast.Return) and one.value is not None]
    is_returned = any(not _is_number(one) and any(_reading(one, names)) for one in returned)
    return bool(is_returned and hops and isinstance(body, Function) and _is_gone_back_through(source, body, hops - 1))


def _kept(nodes: list[ast.AST], of: set[ast.Call] | set[str] | None) -> Iterator[str]:
    """The names that are set to something made of these calls or names; of anything, where that is None."""
    for node in nodes:
        if isinstance(node, _SETTING) and node.value is not None:
            if not _is_number(node.value) and (of is None or any(_reading(node.value, of))):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (name for one in targets for name in _spelled(one))
        elif isinstance(node, ast.Call) and method(node) in _KEEPING:
            made = [one for one in node.args if not _is_number(one) and (of is None or any(_reading(one, of)))]
            yield from _spelled(receiver(node)) if made else ()


def _spelled(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _spelled(one)
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _spelled(target.value)
    elif name := spelling(target):
        yield name


def _reading(above: ast.AST, of: set[ast.Call] | set[str]) -> Iterator[ast.AST]:
    return (node for node in ast.walk(above) if node in of or (isinstance(node, ast.expr) and spelling(node) in of))


def _goes_back(source: Source, call: ast.Call, through: list[ast.AST]) -> bool:
    """Whether a call goes back through what is read in it: `loss.backward()`, or a function that does so."""
    own = [node for node in through if node is not call]
    if not own:
        return False
    if method(call) == "backward":
        return any(node in own for node in ast.walk(receiver(call)))
    given = [node for one in (*call.args, *(named.value for named in call.keywords)) for node in ast.walk(one)]
    if not any(node in own for node in given):
        return False
    if source.name_of(call.func) in _BACKWARD:
        return True
    inside = source.definition(call.func)
    return isinstance(inside, Function) and any(method(one) in ("backward", "grad") for one in ast.walk(inside))


def _is_number(value: ast.AST) -> bool:
    return method(value) in _NUMBERS or (isinstance(value, ast.Call) and spelling(value.func) in ("float", "int"))
