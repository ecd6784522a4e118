"""Whether two tensors surely are sequences of one length: made alike of the same input.

A query of one position beside a cache of many keys has another length than they do."""

from __future__ import annotations

import ast

from hotlap.source.bodies import constant, method, receiver
from hotlap.source.callers import parameters
from hotlap.source.loops import Function
from hotlap.source.module import Source
from hotlap.source.names import spelling
from hotlap.source.origins import makers

_LAYERS = ("Linear", "LayerNorm", "RMSNorm", "Identity", "Dropout")  # of torch.nn: they take each position by itself
_FUNCTIONS = ("torch.nn.functional.linear", "torch.nn.functional.normalize", "einops.rearrange")
_SHAPING = {"view", "reshape", "transpose", "permute", "unbind", "unflatten", "flatten", "squeeze", "unsqueeze"}
_SHAPING |= {"contiguous", "to", "type_as", "float", "half", "bfloat16", "mul", "div", "swapaxes"}
_PARTING = {"split", "chunk"}
_WIDTHS = (-1, 2)  # the axis that layers are parted along, not that of positions


class _NotSure(Exception):
    """It may be of any length."""


def are_of_one_length(source: Source, one: ast.expr, other: ast.expr) -> bool:
    try:
        inputs = _inputs(source, one, {})
        return len(inputs) == 1 and inputs == _inputs(source, other, {})
    except _NotSure:
        return False


def _inputs(source: Source, node: ast.AST, known: dict[str, set[str]]) -> set[str]:
    """The parameters of the function that a tensor is made of, position by position."""
    if isinstance(node, ast.Name):
        return _of_name(source, node, known)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div | ast.Add):
        return _inputs(source, node.left, known)
    if isinstance(node, ast.Subscript):
        return _parts(_inputs(source, node.value, known), node.slice)
    if isinstance(node, ast.Call):
        return _inputs(source, _taken(source, node), known)
    raise _NotSure


def _taken(source: Source, call: ast.Call) -> ast.expr:
    """The tensor that a call works on, where it leaves positions as many as they are."""
    name, kind = source.name_of(call.func), method(call)
    if name is not None:
        is_plain = name in _FUNCTIONS or (name in ("torch.split", "torch.chunk") and _parts_width(call, 2))
        if is_plain and call.args:
            return call.args[0]
    elif (spelling(call.func) or "").startswith("self."):
        if len(call.args) == 1 and any(makers(source, call.func, f"torch.nn.{layer}") for layer in _LAYERS):
            return call.args[0]
    elif kind in _SHAPING or (kind in _PARTING and _parts_width(call, 1)):
        return receiver(call)
    raise _NotSure


def _parts_width(call: ast.Call, place: int) -> bool:
    given = [*call.args[place : place + 1], *(one.value for one in call.keywords if one.arg == "dim")]
    return len(given) == 1 and ast.unparse(given[0]) in map(str, _WIDTHS)


def _parts(whole: set[str], index: ast.expr) -> set[str]:
    """Whole axes, and single places of some: `qkv[0]` is as long as `qkv[1]`, but not as `qkv`."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    taken = ["place" if type(constant(one)) is int else ast.unparse(one) for one in parts]
    if not whole or not set(taken) <= {"place", ":", "...", "None"}:
        raise _NotSure
    return {f"{one}[{', '.join(taken)}]" for one in whole}


def _of_name(source: Source, name: ast.Name, known: dict[str, set[str]]) -> set[str]:
    """All that a name stands for anywhere in its function: what is set later may be read in the next round."""
    if name.id in known:
        return known[name.id]
    known[name.id] = set()  # where it is made of itself, that adds nothing
    function = source.function_of(name)
    found = source.names.lookup(name)
    if not isinstance(function, Function) or found is None or found[0].node is not function:
        raise _NotSure
    inputs = {name.id} if name.id in parameters(function) else set()
    for use in source.uses(name):
        if not isinstance(use.ctx, ast.Load):
            inputs |= _inputs(source, _given(source, use), known)
    known[name.id] = inputs
    return inputs


def _given(source: Source, store: ast.Name) -> ast.expr:
    """What an assignment gives a name; all of it where several share it."""
    holder = source.parent(store)
    assign = source.parent(holder) if isinstance(holder, ast.Tuple | ast.List) else holder
    if not isinstance(assign, ast.Assign) or len(assign.targets) != 1:
        raise _NotSure
    value, places = assign.value, holder.elts if isinstance(holder, ast.Tuple | ast.List) else []
    if isinstance(value, ast.Tuple | ast.List):
        if len(value.elts) != len(places) or any(isinstance(one, ast.Starred) for one in [*value.elts, *places]):
            raise _NotSure
        return value.elts[places.index(store)]
    return value
