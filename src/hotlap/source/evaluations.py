"""Forward passes whose graph nobody will go back through."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set

from hotlap.source.bodies import Body, body_of, method, own_calls, own_nodes, receiver
from hotlap.source.loops import Function
from hotlap.source.models import is_module_class, model_spellings
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.wanted_gradients import goes_back_later, networks_ask

# Somebody here wants gradients after all, or has switched them off in a way of their own.
WANTED = ("backward", "grad", "requires_grad_", "retain_grad", "enable_grad", "set_grad_enabled", "requires_grad")
TRACED = ("export", "script", "trace", "save", "onnx")  # what writes a model down builds no graph of its own
PARTS = ("forward", "encode", "decode")
NUMBERS = ("item", "tolist", "numpy", "argmax")  # no gradient comes through these


def evaluations(source: Source) -> Iterator[tuple[ast.Call, ast.FunctionDef | ast.stmt]]:
    """The first forward pass of each evaluation, and what to switch gradients off for: a function, or a loop of it."""
    if _is_off_everywhere(source):
        return
    found = [*_predictions(source), *_in_eval_mode(source)]
    if found and not networks_ask(source):
        yield from (one for one in found if not goes_back_later(source, one[1]))


def _in_eval_mode(source: Source) -> Iterator[tuple[ast.Call, ast.FunctionDef | ast.stmt]]:
    models = model_spellings(source)
    for body in [source.tree, *(node for node in source.names.parents if isinstance(node, Function))]:
        covered: list[ast.AST] = []
        for call in [*_forwards_in_eval_mode(source, body, models), *_forwards_of_loaded(source, body)]:
            if source.under_no_grad(call) or any(one in source.ancestors(call) for one in covered):
                continue
            target = _target(source, body, call)
            if target is not None and not _is_called_without_grad(source, body):
                covered.append(target)
                yield call, target


def _forwards_in_eval_mode(source: Source, body: Body, models: Set[str]) -> Iterator[ast.Call]:
    evaluating: set[str | None] = set()
    for call in own_calls(source, body):
        owner = spelling(receiver(call))
        if method(call) == "eval" and not call.args:
            evaluating.add(owner)
        elif method(call) == "train":
            evaluating.discard(owner)
        elif any(_runs(call, one) for one in evaluating & models) or _hands_on(source, call, evaluating):
            yield call


def _forwards_of_loaded(source: Source, body: Body) -> Iterator[ast.Call]:
    """Forward passes of what `torch.load` gave, in a file that never asks for a gradient."""
    if source.mentions(*WANTED):
        return
    for call in own_calls(source, body):
        given = source.bindings(call.func) if isinstance(call.func, ast.Name) else []
        loaded = [one.value for one in given if isinstance(one.value, ast.Call)]
        if any(source.name_of(one.func) == "torch.load" for one in loaded):
            yield call


def _predictions(source: Source) -> Iterator[tuple[ast.Call, ast.FunctionDef]]:
    """Calls of a network's own method that runs its layers and returns classes: no gradient comes through those."""
    for owner in (node for node in source.names.parents if isinstance(node, ast.ClassDef)):
        if not is_module_class(source, owner):
            continue
        for inside in (one for one in owner.body if isinstance(one, ast.FunctionDef) and one.name != "forward"):
            nodes = list(own_nodes(source, inside))
            returned = [node.value for node in nodes if isinstance(node, ast.Return)]
            are_classes = bool(returned) and all(method(one) in NUMBERS for one in returned)
            if are_classes and _runs_layers(source, nodes) and not _wants_gradients(source, inside):
                calls = [one for one in source.method_calls(inside.name) if not source.under_no_grad(one)]
                yield from ((one, inside) for one in calls)


def _runs_layers(source: Source, nodes: list[ast.AST]) -> bool:
    """Whether a method calls its network, or what it draws from one of its attributes, with gradients on."""
    drawn = {spelling(one.target) for one in nodes if isinstance(one, ast.For) and _is_own(one.iter)}
    called = [one.func for one in nodes if isinstance(one, ast.Call) and not source.under_no_grad(one)]
    return any(spelling(one) in drawn | {"self", "self.forward"} for one in called if spelling(one) is not None)


def _is_own(node: ast.AST) -> bool:
    return (spelling(node) or "").startswith("self.")


def _runs(call: ast.Call, model: str | None) -> bool:
    """Whether a call is a forward pass, or a part of one: `model(x)`, `model.encode(x)`."""
    is_method = method(call) in PARTS and spelling(receiver(call)) == model
    return (spelling(call.func) == model or is_method) and bool(call.args or call.keywords)


def _hands_on(source: Source, call: ast.Call, evaluating: set[str | None]) -> bool:
    """Whether a model in eval mode is given to a function of this file that runs it under autograd."""
    inside = source.definition(call.func) if isinstance(call.func, ast.Name) else None
    if not isinstance(inside, ast.FunctionDef):
        return False
    given = zip(inside.args.args, call.args, strict=False)
    names = [parameter.arg for parameter, value in given if spelling(value) in evaluating - {None}]
    forwards = [one for one in own_calls(source, inside) if any(_runs(one, name) for name in names)]
    sets_mode = any(method(one) in ("eval", "train") for one in own_calls(source, inside))
    return bool(forwards) and not sets_mode and not any(source.under_no_grad(one) for one in forwards)


def _target(source: Source, body: Body, call: ast.Call) -> ast.FunctionDef | ast.stmt | None:
    """The whole function where nothing in it wants gradients, else the widest loop round the call that wants none."""
    if isinstance(body, ast.FunctionDef) and not _wants_gradients(source, body):
        return body
    inside = [one for one in source.ancestors(call) if isinstance(one, ast.For) and body in source.ancestors(one)]
    loops = [loop for loop in inside if body_of(source, loop) is body and not _wants_gradients(source, loop)]
    if not loops and not source.mentions(*WANTED):  # nothing in the whole file does
        return source.statement(call)
    return loops[-1] if loops else None


def _wants_gradients(source: Source, above: ast.AST) -> bool:
    nodes = list(own_nodes(source, above))
    mentioned = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    mentioned |= {node.id for node in nodes if isinstance(node, ast.Name)}
    mentioned |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return bool(mentioned & {*WANTED, *TRACED}) or _trains_elsewhere(source, own_calls(source, above))


def _trains_elsewhere(source: Source, calls: list[ast.Call]) -> bool:
    """Whether a function of this file that is called here makes gradients or an update."""
    for call in calls:
        inside = source.definition(call.func)
        if method(call) == "step" or isinstance(inside, ast.ClassDef):
            continue
        if inside is not None and any(method(one) in ("backward", "grad") for one in ast.walk(inside)):
            return True
    return False


def _is_called_without_grad(source: Source, body: Body) -> bool:
    if isinstance(body, ast.Module):
        return False
    named = [one for one in source.names.call_nodes if (spelling(one.func) or "").split(".")[-1] == body.name]
    return body.name == "forward" or any(source.under_no_grad(call) for call in named)


def _is_off_everywhere(source: Source) -> bool:
    switches = source.calls("torch.set_grad_enabled", "torch.autograd.set_grad_enabled")
    return any(isinstance(source.parent(call.node), ast.Expr) for call in switches)


def tensors_leave(source: Source, target: ast.AST) -> bool:
    """Whether a tensor may leave, so that somebody outside could have gone back through it."""
    nodes = list(own_nodes(source, target))
    if not isinstance(target, Function):
        return _is_read_later(source, target, nodes)
    if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal) for node in nodes):
        return True
    if any(isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) for node in nodes):
        return True
    plain = _plain_names(nodes)
    returned = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    return not all(_is_plain(value, plain) for value in returned)


def _is_read_later(source: Source, loop: ast.AST, nodes: list[ast.AST]) -> bool:
    """Whether something other than numbers leaves a loop: returned, put into an attribute, or read after it."""
    stored = [one for one in nodes if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)]
    if stored or any(isinstance(one, ast.Return | ast.Yield | ast.YieldFrom) for one in nodes):
        return True
    made = {one.id for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    end = source.lines.line_at(source.lines.span(loop)[1])
    after = [one for one in own_nodes(source, body_of(source, loop)) if isinstance(one, ast.Name) and one.lineno > end]
    return bool({one.id for one in after if isinstance(one.ctx, ast.Load)} & (made - _plain_names(nodes)))


def _plain_names(nodes: list[ast.AST]) -> set[str]:
    """Names that only ever hold numbers."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    given.setdefault(target.id, []).append(node.value)
                else:
                    given.update({one.id: [ast.Yield()] for one in ast.walk(target) if isinstance(one, ast.Name)})
    plain = set(given)
    for _ in range(len(given) + 1):
        plain = {name for name in plain if all(_is_plain(value, plain) for value in given[name])}
    return plain


def _is_plain(value: ast.expr, plain: set[str]) -> bool:
    if isinstance(value, ast.Constant):
        return True
    if isinstance(value, ast.Name):
        return value.id in plain
    if isinstance(value, ast.BinOp):
        return _is_plain(value.left, plain) and _is_plain(value.right, plain)
    if isinstance(value, ast.Tuple):
        return all(_is_plain(one, plain) for one in value.elts)
    if isinstance(value, ast.Call):
        return method(value) in NUMBERS or spelling(value.func) in ("len", "float", "int", "round")
    return False
