"""The loops of a training script: where it trains and where it evaluates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hotlap.source.models import model_spellings
from hotlap.source.names import spelling

if TYPE_CHECKING:
    from hotlap.source.module import Source

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef

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
    found: list[Loop] = []
    loops = [node for node in source.names.parents if isinstance(node, Loop)]
    # Inner loops begin later, so they are already decided when the loop around them is looked at.
    from_inside = sorted(loops, key=lambda loop: (-loop.lineno, -loop.col_offset))
    for loop in from_inside:
        if not any(loop in source.ancestors(inner) for inner in found) and _trains([loop]):
            found.append(loop)
    direct = set(found)
    for loop in from_inside:
        if loop not in direct and not any(loop in source.ancestors(inner) for inner in found):
            called = [one for one in _called(source, loop) if not _contains(one, direct)]
            if called and _trains([loop, *called]):
                found.append(loop)
    return sorted(found, key=lambda loop: loop.lineno)


def evaluation_loops(source: Source) -> list[Loop]:
    """Loops that call a model and make no gradients, under `no_grad` or after `model.eval()`."""
    found: list[Loop] = []
    models = model_spellings(source)
    for loop in (node for node in source.names.parents if isinstance(node, ast.For | ast.AsyncFor)):
        called = {spelling(node.func) for node in ast.walk(loop) if isinstance(node, ast.Call)} & models
        if not called or _methods([loop, *_called(source, loop)]) & {"backward"}:
            continue
        if under_no_grad(source, loop) or _inside_no_grad(source, loop) or _in_eval_mode(source, loop, called):
            found.append(loop)
    return [loop for loop in found if not any(loop in source.ancestors(inner) for inner in found)]


def under_no_grad(source: Source, node: ast.AST) -> bool:
    """Whether gradients are off at a node, by context or decorator; also where a switch could be either way."""
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
    return False


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


def _called(source: Source, loop: ast.AST) -> Iterator[Function]:
    for node in ast.walk(loop):
        definition = source.definition(node.func) if isinstance(node, ast.Call) else None
        if isinstance(definition, Function):
            yield definition


def _contains(above: ast.AST, loops: set[Loop]) -> bool:
    return any(node in loops for node in ast.walk(above))


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
