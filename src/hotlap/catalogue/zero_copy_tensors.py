"""Tensors over the memory of arrays."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.arrays import element_type, is_array, is_fresh
from hotlap.source.calls import Call
from hotlap.source.edits import Edit, add_import, replace_node
from hotlap.source.loops import Loop
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

PLAIN = "torch.tensor"
TYPED = {
    "torch.Tensor": "float32",
    "torch.FloatTensor": "float32",
    "torch.DoubleTensor": "float64",
    "torch.LongTensor": "int64",
    "torch.IntTensor": "int32",
}
_TAKEN = {"data", "dtype", "device"}  # what as_tensor knows as well
_READING = {"shape", "size", "ndim", "dtype", "mean", "std", "min", "max", "sum", "nbytes"}


class ZeroCopyTensors(Technique):
    """A NumPy array becomes a tensor over the same memory instead of a copy of it.

    ## Why it is faster
    `torch.tensor(array)` always copies. `torch.as_tensor(array)` and `torch.from_numpy(array)` look at the array's own
    memory: no bytes are moved, and a large data set is held once, not twice.

    ## When it does not help
    A Python list has no memory that a tensor could look at: `as_tensor` copies it as `tensor` does, so lists are never
    reported. `torch.FloatTensor(array)` of doubles must convert, and so copy, anyway; it is reported only where the
    types are surely equal. In a step that is bound by something else one copy of a small array does not show.

    ## What changes numerically
    Nothing, as long as nobody writes: array and tensor are one memory, so a later change of one is a change of both.
    Where the array is made on the spot nothing else can hold it, and the fix is safe. Where it has a name, it is
    reported only if the name is read at most for its size afterwards, and the fix is marked unsafe, since a tensor
    changed in place would change it too.

    ## Claims
    "Use as_tensor or from_numpy instead of tensor" stands in the lists without a figure. It is right for arrays and
    without effect for Python lists, a difference the tip does not make.
    """

    family = Family.COPY
    aliases = ("as_tensor", "from_numpy", "torch.tensor")

    def parity(self, run: Run | None) -> Parity:
        return Parity.IDENTICAL

    def spot(self, source: Source) -> Iterator[Site]:
        if not source.mentions("numpy"):
            return
        for call in source.calls(PLAIN, *TYPED):
            array = call.setting("data", 0)
            if not isinstance(array, ast.expr) or not _can_share(call, array):
                continue
            if is_fresh(source, array):
                yield source.site(call.node, f"{call.name} copies the array; as_tensor uses its memory", "safe")
            elif is_array(source, array) and not _is_used_later(source, array):
                yield source.site(call.node, f"{call.name} copies the array; as_tensor uses its memory", "unsafe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        call = next(call for call in source.calls(PLAIN, *TYPED) if call.node is site.node)
        torch = source.names.spelled("torch") or "torch"
        yield from replace_node(source, call.node.func, f"{torch}.as_tensor")
        if source.names.spelled("torch") is None:
            yield from add_import(source, "import torch")


def _can_share(call: Call, array: ast.expr) -> bool:
    """Whether as_tensor takes what the call gives, and makes a tensor of the same type."""
    if call.name in TYPED:
        is_alone = len(call.node.args) == 1 and not call.node.keywords
        return is_alone and element_type(call.source, array) == TYPED[call.name]
    return len(call.node.args) <= 1 and all(given.arg in _TAKEN for given in call.node.keywords)


def _is_used_later(source: Source, array: ast.expr) -> bool:
    """Whether the array, or what it is a part of, is used otherwise after the call, or again in a loop around it."""
    names = [node for node in ast.walk(array) if isinstance(node, ast.Name) and is_array(source, node)]
    for name in names:
        around = [one for one in source.ancestors(name) if isinstance(one, Loop)]
        for use in source.uses(name):
            in_same_loop = any(loop in source.ancestors(use) for loop in around)
            is_later = (use.lineno, use.col_offset) > (name.lineno, name.col_offset)
            if use is not name and (is_later or in_same_loop) and not _only_reads(source, use):
                return True
        if around and not any(_is_bound_in(source, name, loop) for loop in around):
            return True  # one array, many tensors
    return False


def _only_reads(source: Source, use: ast.Name) -> bool:
    """`len(a)`, `a.shape`, a new value for the name; a slice that becomes a tensor too."""
    if isinstance(use.ctx, ast.Store):
        return not isinstance(source.parent(use), ast.AugAssign)
    holder = source.parent(use)
    if isinstance(holder, ast.Attribute):
        return holder.attr in _READING
    while isinstance(holder, ast.Subscript) and isinstance(holder.ctx, ast.Load):
        holder = source.parent(holder)
    name = source.name_of(holder.func) if isinstance(holder, ast.Call) else None
    return name in ("len", PLAIN, "torch.as_tensor", *TYPED)


def _is_bound_in(source: Source, name: ast.Name, loop: ast.AST) -> bool:
    return any(isinstance(use.ctx, ast.Store) and loop in source.ancestors(use) for use in source.uses(name))
