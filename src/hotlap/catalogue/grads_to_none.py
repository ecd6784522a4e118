"""Gradients dropped, not zeroed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from hotlap.source.bodies import body_of, constant, method, own_calls, receiver, within
from hotlap.source.edits import Edit, replace_node
from hotlap.source.names import spelling
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.module import Site, Source

ADDING = ("add_", "copy_", "sub_", "all_reduce")


class GradsToNone(Technique):
    """Old gradients are dropped instead of overwritten with zeros, and the next backward writes instead of adding.

    ## Why it is faster
    Zeroing writes every gradient once, and the next backward reads the zeros back to add to them. With None both are
    saved: backward puts its result in place. The memory of the gradients is free during the forward pass as well.

    ## When it does not help
    `zero_grad()` does this by itself since torch 2.0: only an explicit `set_to_none=False`, or a loop that zeroes by
    hand, still pays. `for p in model.parameters(): p.grad = None` is the good state. Code that adds into `p.grad` by
    itself needs the zeros, so files that do are left alone. The gain is modest: a pass over the gradients in every
    step.

    ## What changes numerically
    Nothing where every parameter gets a gradient in every step. Where one does not, it is another training: an
    optimizer moves a parameter with a zero gradient (momentum, weight decay, Adam's averages) and skips one with None.
    This cannot be read from source, so the fix is marked unsafe. The clearing must come before backward or after the
    update: a `zero_grad` between the two is reported here as well, and never fixed, since only its author knows where
    it belongs.

    ## Claims
    The lists call the gain modest and "not side-effect free", and both are right. One list says to clear the gradients
    "before the update": taken by the letter, after backward, that throws away what backward has just computed.
    """

    family = Family.UPDATE
    aliases = ("set_to_none", "zero_grad")

    def parity(self, run: Run | None) -> Parity:
        every_one = run is not None and run.look.steps > 0
        unused = every_one and any(one.kind == "parameter" for one in run.look.unused) if run else True
        return Parity.IDENTICAL if every_one and not unused else Parity.DIFFERENT

    def spot(self, source: Source) -> Iterator[Site]:
        for call in source.method_calls("zero_grad"):
            if _throws_away(source, call):
                yield source.site(call, "zero_grad between backward and step throws the gradients away")
        if _adds_by_hand(source):
            return
        for call in source.method_calls("zero_grad"):
            if constant(_set_to_none(call)) is False:
                yield source.site(call, "set_to_none=False writes zeros that backward then adds to", "unsafe")
        for call in source.method_calls("zero_"):
            if _zeroes_parameters(source, call):
                yield source.site(call, "zeroes each gradient by hand; p.grad = None needs no kernel", "unsafe")

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        assert isinstance(site.node, ast.Call)
        if method(site.node) == "zero_grad":
            return replace_node(site.source, site.node, f"{site.source.segment(site.node.func)}()")
        return replace_node(site.source, site.node, f"{spelling(_gradient(site.node))} = None")


def _set_to_none(call: ast.Call) -> ast.expr | None:
    given = [one.value for one in call.keywords if one.arg == "set_to_none"]
    only = len(call.args) + len(call.keywords) == 1
    return (given or call.args)[0] if only and (given or call.args) else None


def _gradient(call: ast.Call) -> ast.expr:
    """`p.grad` of `p.grad.zero_()` and of `p.grad.data.zero_()`."""
    inner = receiver(call)
    return inner.value if isinstance(inner, ast.Attribute) and inner.attr == "data" else inner


def _zeroes_parameters(source: Source, call: ast.Call) -> bool:
    """Whether the call stands alone in a loop over what it zeroes: `for p in ...: p.grad.zero_()`."""
    gradient = _gradient(call)
    if not isinstance(gradient, ast.Attribute) or gradient.attr != "grad" or not isinstance(gradient.value, ast.Name):
        return False
    loop = source.enclosing(call, (ast.For, ast.AsyncFor, ast.While))
    if not isinstance(loop, ast.For) or not isinstance(source.parent(call), ast.Expr):
        return False
    drawn = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    stores = [node for node in ast.walk(loop) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    has_choice = any(node.attr == "grad" for node in stores)  # the other branch sets None, or a gradient of its own
    return gradient.value.id in drawn and not has_choice


def _adds_by_hand(source: Source) -> bool:
    """`p.grad += g` and the like need a tensor to add to."""
    for node in source.names.parents:
        if isinstance(node, ast.Attribute) and node.attr in ("grad", "_grad"):
            above = source.parent(node)
            if isinstance(above, ast.AugAssign) and isinstance(above.op, ast.Add | ast.Sub):
                return True
            while isinstance(above, ast.Attribute):
                if above.attr in ADDING:
                    return True
                above = source.parent(above)
    return False


def _throws_away(source: Source, zero: ast.Call) -> bool:
    """Whether this clears, in one block after backward, what the next update was to use."""
    statement = source.statement(zero)
    block, owner = source.block(statement), spelling(receiver(zero))
    if owner is None or source.parent(zero) is not statement:
        return False
    place = within(source, statement, block)
    events: list[tuple[int, str]] = []
    for call in own_calls(source, body_of(source, zero)):
        where, name = within(source, call, block), method(call)
        if where is not None and where != place:
            if name == "backward":
                events.append((where, "backward"))
            elif name == "step" and _updates(source, call, owner):
                events.append((where, "step"))
    before = [name for where, name in events if place is not None and where < place]
    after = [name for where, name in events if place is not None and where > place]
    return before[-1:] == ["backward"] and after[:1] == ["step"]


def _updates(source: Source, step: ast.Call, owner: str) -> bool:
    """Whether an update, here or through a scaler, moves what the owner of `zero_grad` holds."""
    if step.keywords or len(step.args) > 1:
        return False
    optimizer = step.args[0] if step.args else receiver(step)
    if spelling(optimizer) == owner:
        return not step.args or "scaler" in (spelling(receiver(step)) or "")
    if step.args:  # a closure makes its own gradients
        return False
    built = source.value_of(optimizer)
    given = [one for one in ast.walk(built) if method(one) == "parameters"] if isinstance(built, ast.Call) else []
    return len(given) == 1 and isinstance(given[0], ast.Call) and spelling(receiver(given[0])) == owner
