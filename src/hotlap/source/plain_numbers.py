"""Whether an expression surely is a plain number: not a tensor, nor anything that a tensor may be put in place of."""

from __future__ import annotations

import ast
import builtins

from hotlap.source.bodies import method
from hotlap.source.loops import Function
from hotlap.source.module import Source
from hotlap.source.names import spelling

_MOST_HOPS = 8
_BUILTINS = ("len", "int", "float")
_ROOTS = ("numpy.sqrt", "numpy.power", "numpy.log", "numpy.log2", "numpy.exp")
_SIZED = ("torch.nn.Linear", "torch.nn.LayerNorm", "torch.nn.Embedding", "torch.nn.Conv1d", "torch.nn.Conv2d")


def is_number(source: Source, node: ast.AST | None, hops: int = 0) -> bool:
    if hops > _MOST_HOPS:
        return False
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and is_number(source, node.operand, hops + 1)
    if isinstance(node, ast.BinOp):
        # What is divided without a rest counts things: by what, nobody keeps in a tensor.
        both = [node.left] if isinstance(node.op, ast.FloorDiv) else [node.left, node.right]
        return not isinstance(node.op, ast.MatMult) and all(is_number(source, one, hops + 1) for one in both)
    if isinstance(node, ast.IfExp):
        return all(is_number(source, one, hops + 1) for one in (node.body, node.orelse))
    if isinstance(node, ast.Subscript):
        return _is_shape(source, node.value) and not isinstance(node.slice, ast.Slice | ast.Tuple)
    if isinstance(node, ast.Call):
        return _is_called(source, node, hops)
    if isinstance(node, ast.Name):
        return _is_named(source, node, hops)
    return isinstance(node, ast.Attribute) and _is_kept(source, node, hops)


def _is_shape(source: Source, node: ast.expr) -> bool:
    """`x.shape` or `x.size()`."""
    if isinstance(node, ast.Call):
        return method(node) == "size" and source.name_of(node.func) is None and not node.args and not node.keywords
    return isinstance(node, ast.Attribute) and node.attr == "shape"


def _is_called(source: Source, call: ast.Call, hops: int) -> bool:
    name = source.name_of(call.func)
    if name is None:
        return method(call) == "size" and len(call.args) + len(call.keywords) == 1
    if name.startswith("math.") or (name in _BUILTINS and hasattr(builtins, name)):
        return True  # whatever they are given
    return name in _ROOTS and not call.keywords and all(is_number(source, one, hops + 1) for one in call.args)


def _is_named(source: Source, name: ast.Name, hops: int) -> bool:
    """A variable that is given just once, or a parameter that says it is one or is the size of a layer."""
    found = source.names.lookup(name)
    if found is None or len(found[1]) != 1:
        return False
    scope, (binding,) = found
    if binding.value is not None:
        return is_number(source, binding.value, hops + 1)
    stores = [one for one in source.uses(name) if not isinstance(one.ctx, ast.Load)]
    if len(stores) == 1:  # B, T, C = x.shape
        around = source.parent(stores[0])
        assign = source.parent(around) if isinstance(around, ast.Tuple | ast.List) else None
        return isinstance(assign, ast.Assign) and _is_shape(source, assign.value)
    return not stores and isinstance(scope.node, Function) and _is_given(source, scope.node, name)


def _is_given(source: Source, function: Function, name: ast.Name) -> bool:
    given = function.args
    arguments = [one for one in [*given.posonlyargs, *given.args, *given.kwonlyargs] if one.arg == name.id]
    if arguments and isinstance(arguments[0].annotation, ast.Name):
        return arguments[0].annotation.id in ("int", "float")
    calls = [source.parent(one) for one in source.uses(name)] if arguments else []
    return any(isinstance(call, ast.Call) and source.name_of(call.func) in _SIZED for call in calls)


def _is_kept(source: Source, attribute: ast.Attribute, hops: int) -> bool:
    """`self.name`, where `__init__` of the class sets it once, and nothing else in the file sets one of that name."""
    owner, written = source.enclosing(attribute, ast.ClassDef), f"self.{attribute.attr}"
    if owner is None or spelling(attribute) != written:
        return False
    alike = [node for node in source.names.parents if isinstance(node, ast.Attribute) and node.attr == attribute.attr]
    stores = [
        node
        for node in alike
        if not isinstance(node.ctx, ast.Load)
        and (source.enclosing(node, ast.ClassDef) is owner or spelling(node) != written)
    ]
    assign = source.parent(stores[0]) if len(stores) == 1 else None
    function = source.function_of(assign) if isinstance(assign, ast.Assign) else None
    is_plain = isinstance(assign, ast.Assign) and assign.targets == stores
    if function is None or not is_plain or function.name != "__init__" or source.parent(function) is not owner:
        return False
    return isinstance(assign, ast.Assign) and is_number(source, assign.value, hops + 1)
