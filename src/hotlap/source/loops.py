"""The loops of a training script: where it trains and where it evaluates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.models import model_spellings, run_by
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source
    from hotlap.source.project import Defined

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef

_MOST_CALLS = 4  # from a function to the one that calls it

_GRAD_SWITCHES = {
    "torch.no_grad": True,
    "torch.inference_mode": True,
    "torch.autograd.no_grad": True,
    "torch.autograd.inference_mode": True,
    "torch.autograd.grad_mode.no_grad": True,
    "torch.enable_grad": False,
    "torch.autograd.enable_grad": False,
    "torch.set_grad_enabled": True,  # unless its argument is surely True
    "torch.autograd.set_grad_enabled": True,
}


def training_loops(source: Source) -> list[Loop]:
    """The innermost loops in which gradients are made and used, here or in a function called from here."""
    direct = _direct(source)
    found = list(direct)
    for loop in _from_inside(source):
        if loop not in direct and not any(loop in source.ancestors(inner) for inner in found):
            called = [one.node for one in _called(source, loop) if not _contains_training(one)]
            if called and _trains([loop, *called]):
                found.append(loop)
    return sorted(found, key=lambda loop: loop.lineno)


def _direct(source: Source) -> list[Loop]:
    """The innermost loops that hold both backward and update themselves."""
    found: list[Loop] = []
    for loop in _from_inside(source):
        if not any(loop in source.ancestors(inner) for inner in found) and _trains([loop]):
            found.append(loop)
    return found


def _from_inside(source: Source) -> list[Loop]:
    """Inner loops begin later, so they are already decided when the loop around them is looked at."""
    loops = [node for node in source.names.parents if isinstance(node, Loop)]
    return sorted(loops, key=lambda loop: (-loop.lineno, -loop.col_offset))


def loops_around(source: Source, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> list[tuple[Source, Loop]]:
    """Every loop in which a node runs: around it, and around the calls of the functions it stands in, here or in
    another file. A generator runs in the loop that draws from it."""
    found: list[tuple[Source, Loop]] = []
    below = node
    for above in source.ancestors(node):
        is_head = isinstance(above, ast.For | ast.AsyncFor) and below is above.iter
        if isinstance(above, Loop) and not is_head:
            found.append((source, above))
        if isinstance(above, Function) and above not in seen and len(seen) < _MOST_CALLS:
            is_generator = _yields(source, above)
            for where, call in source.callers(above):
                drawn = where.parent(call) if is_generator else None
                found += [(where, drawn)] if isinstance(drawn, ast.For) and drawn.iter is call else []
                found += loops_around(where, call, seen | {above})
        below = above
    return list(dict.fromkeys(found))


def training_loop_of(source: Source, node: ast.AST) -> tuple[Source, Loop] | None:
    """The training loop around a node, or around a call of the function it stands in."""
    around = loops_around(source, node)
    return next(((where, loop) for where, loop in around if loop in where.training_loops()), None)


def makes_gradients(source: Source, above: ast.AST, hops: int = 2) -> bool:
    """Whether gradients are made below a node, or in the functions called there."""
    if "backward" in _methods([above]):
        return True
    return hops > 0 and any(makes_gradients(one.source, one.node, hops - 1) for one in _called(source, above))


def evaluation_loops(source: Source) -> list[Loop]:
    """Loops that call a model and make no gradients, under `no_grad` or after `model.eval()`."""
    found: list[Loop] = []
    models = model_spellings(source)
    for loop in (node for node in source.names.parents if isinstance(node, ast.For | ast.AsyncFor)):
        called = {run_by(node, models) for node in ast.walk(loop) if isinstance(node, ast.Call)} - {None}
        if not called or _methods([loop, *(one.node for one in _called(source, loop))]) & {"backward"}:
            continue
        if under_no_grad(source, loop) or _inside_no_grad(source, loop) or _in_eval_mode(source, loop, called):
            found.append(loop)
    return [loop for loop in found if not any(loop in source.ancestors(inner) for inner in found)]


def under_no_grad(source: Source, node: ast.AST) -> bool:
    """Whether gradients are off at a node, by context or decorator, here or where its function is called; also where
    a switch could be either way."""
    switched = _switched(source, node)
    if switched is not None:
        return switched
    holder = source.function_of(node)
    return holder is not None and any(_switched(where, call) for where, call in source.callers(holder))


def _switched(source: Source, node: ast.AST) -> bool | None:
    for above in source.ancestors(node):
        if isinstance(above, ast.With | ast.AsyncWith):
            switches = [_switch(source, item.context_expr) for item in above.items]
        elif isinstance(above, Function):
            switches = [_switch(source, decorator) for decorator in above.decorator_list]
        else:
            continue
        for switch in switches:
            if switch is not None:
                return switch
    return None


def _yields(source: Source, function: Function) -> bool:
    nodes = (node for node in ast.walk(function) if isinstance(node, ast.Yield | ast.YieldFrom))
    return any(source.function_of(node) is function for node in nodes)


def _trains(nodes: list[ast.AST]) -> bool:
    methods = _methods(nodes)
    return "backward" in methods and bool(methods & {"step", "data.add_", "data.sub_"})


def _methods(nodes: list[ast.AST]) -> set[str]:
    """The methods called below the nodes; an update by hand, `p.data.add_`, counts as one of its own."""
    found: set[str] = set()
    for node in (below for above in nodes for below in ast.walk(above)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on_data = isinstance(node.func.value, ast.Attribute) and node.func.value.attr == "data"
            found.add(f"data.{node.func.attr}" if on_data else node.func.attr)
    return found


def _called(source: Source, loop: ast.AST) -> Iterator[Defined]:
    """The functions called below a loop that are written in this project."""
    for node in ast.walk(loop):
        found = source.resolve(node.func) if isinstance(node, ast.Call) else None
        if found is not None and isinstance(found.node, Function):
            yield found


def _contains_training(function: Defined) -> bool:
    loops = [node for node in ast.walk(function.node) if isinstance(node, Loop)]
    return bool(loops) and any(loop in loops for loop in _direct(function.source))


def _switch(source: Source, node: ast.expr) -> bool | None:
    call = node if isinstance(node, ast.Call) else None
    name = source.name_of(call.func if call else node)
    if name is None or name not in _GRAD_SWITCHES:
        return None
    first = call.args[0] if call and call.args else None
    if name.endswith(("set_grad_enabled", "inference_mode")) and isinstance(first, ast.Constant):
        return bool(first.value) is name.endswith("inference_mode")
    return _GRAD_SWITCHES[name]


def _inside_no_grad(source: Source, loop: Loop) -> bool:
    """`for ...:` with nothing but a `with torch.no_grad():` that holds the model's call."""
    inner = (node for node in ast.walk(loop) if isinstance(node, ast.With | ast.AsyncWith))
    return any(_switch(source, item.context_expr) for block in inner for item in block.items)


def _in_eval_mode(source: Source, loop: Loop, models: set[str | None]) -> bool:
    """Whether the last switch of mode before the loop, in its own function, was `.eval()` on a model it calls."""
    holder = source.enclosing(loop, (ast.FunctionDef, ast.AsyncFunctionDef)) or source.tree
    mode = None
    for call in source.method_calls("eval", "train"):
        assert isinstance(call.func, ast.Attribute)
        if call.lineno < loop.lineno and holder in source.ancestors(call) and spelling(call.func.value) in models:
            mode = call.func.attr
    return mode == "eval"
