"""Gradients gathered over several batches."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotlap.source.bodies import body_of, constant, in_brackets, method, own_calls, receiver
from hotlap.source.edits import Edit, replace_node
from hotlap.source.names import spelling
from hotlap.technique import Family, Parity, Setting, Technique

if TYPE_CHECKING:
    from hotlap.observe.run import Run
    from hotlap.source.loops import Loop
    from hotlap.source.module import Site, Source


@dataclass(frozen=True, eq=False)
class Group:
    """A loop that updates after every `size` batches: `if (i + 1) % size == 0: optimizer.step()`."""

    loop: Loop
    decision: ast.If
    counter: ast.expr
    size: ast.expr
    backward: ast.Call


class GradAccumulation(Technique):
    """A batch too large for the memory is gathered from small ones, with the gradient it would really have.

    ## Why it is faster
    Not by itself: the same samples cost the same work. It buys a large effective batch where memory allows only a
    small one, and saves k - 1 of k updates. Reported here is where it is done wrongly, which costs convergence.

    ## When it does not help
    Where the large batch fits, one large batch is faster than k small ones. Batch norm still sees the small batches.
    A loss that is already a sum, or gradients divided later, need no division: where a division, or a factor that is
    not a literal, is seen anywhere on the way to backward nothing is reported. The fix is marked unsafe, since the
    learning rate may have been tuned to gradients k times too large.

    ## What changes numerically
    Another training. Losses are means over a batch, and backward adds: without a division by k the gradient is k times
    that of the large batch. SGD then takes steps k times as long; Adam hides the factor, clipping and weight decay do
    not. A last group that is too small for an update stays in the gradients and goes into the next epoch's first one.

    ## Claims
    The lists show it as a loop of ten lines, and one of them forgets the division: its own code trains with a gradient
    that is twice too large for two steps of accumulation. None mentions the last, partial group.
    """

    family = Family.MEMORY
    aliases = ("accumulation", "accumulation_steps", "gradient accumulation", "accumulate")

    def parity(self, run: Run | None) -> Parity:
        return Parity.DIFFERENT

    def spot(self, source: Source) -> Iterator[Site]:
        for group in _groups(source):
            size = source.segment(group.size)
            if not _is_divided(source, group):
                message = f"the gradients of {size} batches are added; divide the loss by {size}"
                yield source.site(group.backward, message, "unsafe")
            if _drops_the_rest(source, group):
                message = f"where {size} does not divide the number of batches, the last ones are not used in time"
                yield source.site(group.decision.test, message)

    def rewrite(self, site: Site, setting: Setting) -> Iterable[Edit]:
        source = site.source
        group = next(one for one in _groups(source) if one.backward is site.node)
        loss, size = receiver(group.backward), in_brackets(source, group.size)
        if method(loss) == "scale" and isinstance(loss, ast.Call):
            return replace_node(source, loss.args[0], f"{in_brackets(source, loss.args[0])} / {size}")
        return replace_node(source, loss, f"({in_brackets(source, loss)} / {size})")


def _groups(source: Source) -> Iterator[Group]:
    for loop in source.training_loops():
        calls = own_calls(source, loop)
        backwards = [call for call in calls if method(call) == "backward"]
        zeroing = [source.enclosing(call, ast.If) for call in calls if method(call) == "zero_grad"]
        for call in calls:
            decision = source.enclosing(call, ast.If)
            if method(call) != "step" or decision is None or loop not in source.ancestors(decision):
                continue
            found = _every(decision.test)
            is_gathered = zeroing and all(one is decision for one in zeroing)  # cleared with the update, and only then
            outside = [one for one in backwards if decision not in source.ancestors(one)]
            if found and is_gathered and len(backwards) == len(outside) == 1 and not outside[0].args:
                yield Group(loop, decision, *found, outside[0])
                break


def _every(test: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    """Counter and size of `(i + 1) % k == 0`, also as a part of an `or`, and of `not (i + 1) % k`."""
    for part in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]:
        rest: ast.expr | None = None
        if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq):
            rest = part.left if not isinstance(constant(part.comparators[0]), ast.expr) else None
        elif isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
            rest = part.operand
        if isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Mod):
            return rest.left, rest.right
    return None


def _is_divided(source: Source, group: Group) -> bool:
    """Whether a division, or a factor that could be one, stands anywhere between the loss and the update."""
    loss = receiver(group.backward)
    if method(loss) == "scale" and isinstance(loss, ast.Call) and len(loss.args) == 1:
        loss = loss.args[0]
    name = spelling(loss)
    parts: list[ast.AST] = [loss]
    for node in ast.walk(group.loop):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            written = [spelling(one) for target in targets for one in ast.walk(target)]
            if name in written or any((one or "").endswith(".grad") for one in written):
                parts.append(node)
    called = [source.definition(one.func) for part in parts for one in ast.walk(part) if isinstance(one, ast.Call)]
    parts += [one for one in called if one is not None]
    by_method = any(method(one) in ("div", "div_", "mul", "mul_") for one in own_calls(source, group.loop))
    unknown = name is None and not isinstance(loss, ast.Call)
    return by_method or unknown or any(_divides(node) for part in parts for node in ast.walk(part))


def _divides(node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp | ast.AugAssign):
        return False
    if isinstance(node.op, ast.Mult) and isinstance(node, ast.BinOp):
        return not any(isinstance(one, ast.Constant) for one in (node.left, node.right))
    return isinstance(node.op, ast.Div | ast.Mult)


def _drops_the_rest(source: Source, group: Group) -> bool:
    """Whether the counter begins anew with every epoch and nothing is done about what is left over."""
    counted = group.loop.iter if isinstance(group.loop, ast.For) else None
    if not isinstance(counted, ast.Call) or source.name_of(counted.func) != "enumerate":
        return False
    assert isinstance(group.loop, ast.For)
    number = group.loop.target.elts[0] if isinstance(group.loop.target, ast.Tuple) else None
    uses_it = number is not None and any(spelling(one) == spelling(number) for one in ast.walk(group.counter))
    whole = isinstance(group.decision.test, ast.BoolOp) or _steps_after(source, group)
    return uses_it and not whole


def _steps_after(source: Source, group: Group) -> bool:
    end = group.loop.end_lineno or 0
    around = own_calls(source, body_of(source, group.loop))
    return any(method(call) == "step" and call.lineno > end and not call.args for call in around)
